"""Checks of an installation: what could keep agents from running, and what to do about it.

`checks.examine` runs them all.
"""

from .findings import Finding, Level

__all__ = ["Finding", "Level"]
