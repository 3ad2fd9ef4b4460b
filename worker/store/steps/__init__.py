"""What one step does to the store: claim, journal, commit.

Actions of clients are in `sessions`, work that nobody asked for in `housekeeping`.
"""
