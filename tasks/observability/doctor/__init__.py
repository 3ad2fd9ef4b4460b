"""Checks of an installation: what could keep agents from running, and what to do about it.

`checks.examine` runs them all. `check_server` is the part that a worker runs before it starts.
"""

from .findings import Finding, Level
from .server import check_server

__all__ = ["Finding", "Level", "check_server"]
