"""What clients do to sessions: submit, act, stop, retry, read.

The commands of a running step are in `steps`.
"""
