"""Repeating a transaction after a conflict or a lost reply.

Each attempt reads before it writes, since no exception of EXEC proves that nothing was written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from ..errors import StoreUnavailable
from .clock import Clock
from .database import Changed

# Transactions of one session compete with each other and with the sweep; each attempt takes about a millisecond.
_CONFLICTS: Final = 100
_PAUSE_SECONDS: Final = 0.05
LOST_REPLIES: Final = 5
"""How many lost replies a caller accepts who looks first whether its change was applied."""

Answer = TypeVar("Answer")


class TooManyConflicts(StoreUnavailable):
    """Other transactions changed the session each time. Nothing was written."""


def retry_transaction(
    attempt: Callable[[], Answer], *, clock: Clock, message: str, lost_replies: int = 0, conflicts: int = _CONFLICTS
) -> Answer:
    """Repeat an attempt until no watched key changes under it.

    Args:
        attempt: Reads, decides and writes; raises `Changed` after a conflict.
        message: What the error says when there are too many conflicts.
        lost_replies: How often an attempt is repeated after `StoreUnavailable`, each after a longer pause. Only for
            attempts that find out whether they were applied before.
    Raises:
        TooManyConflicts: Each attempt met a conflict.
        StoreUnavailable: More replies were lost than that.
    """
    lost = 0
    for _ in range(conflicts):
        try:
            return attempt()
        except Changed:
            continue
        except StoreUnavailable:
            lost += 1
            if lost > lost_replies:
                raise
            clock.pause(_PAUSE_SECONDS * lost)
    raise TooManyConflicts(message)
