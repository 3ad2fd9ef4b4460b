"""The transactions of one step: claim, journal, commit.

Actions of clients are in `sessions`, work that no client asked for in `housekeeping`.
"""
