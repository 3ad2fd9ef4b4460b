"""The transactions of one step: claim, journal, commit.

Actions of clients are in `sessions`, work that nobody asked for in `housekeeping`.
"""
