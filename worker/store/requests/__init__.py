"""Requests as clients use them: answer, list, find.

The commands of the step that asks are in `steps`.
"""
