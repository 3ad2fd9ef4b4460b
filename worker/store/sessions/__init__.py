"""Sessions as clients use them: submit, act, stop, retry, read.

The commands of a running step are in `steps`.
"""
