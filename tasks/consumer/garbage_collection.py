"""When Python's garbage collector looks for cycles.

Where a thousand steps share a thread, all of them wait while it looks. A worker keeps many long-lived values and makes
few cycles, so that hardly anything is found. It looks where nobody waits for his turn, and little at a time.
"""

from __future__ import annotations

import gc
from typing import Final

# New objects until it looks through them whatever else there is to do: more than what five hundred steps of a slow
# model make before they end, which is looked at for nothing. Python's own 700 cost a tenth of a step
# (docs/decisions/0005, 0012).
_AT_LATEST: Final = 200_000
# The same in a quiet moment, for some ten milliseconds.
_AT_LEISURE: Final = 40_000
# How often the older generations are looked through: after so many times the next younger one, at the latest and at
# leisure. It comes to the same number of new objects.
_MIDDLE_AT_LATEST: Final = 20
_MIDDLE_AT_LEISURE: Final = _MIDDLE_AT_LATEST * _AT_LATEST // _AT_LEISURE
_OLD: Final = 50
_RARELY: Final = (_AT_LATEST, _MIDDLE_AT_LATEST, _OLD)


def collect_rarely() -> None:
    """For the whole process."""
    gc.set_threshold(*_RARELY)


def spare_what_is_loaded(**_: object) -> None:
    """Modules and classes live as long as the process; the collector need not look through them again."""
    gc.collect()
    gc.freeze()


def collect_when_idle() -> None:
    """Look now if it is worth it; nothing where not `collect_rarely` decides when this process looks."""
    if gc.get_threshold() != _RARELY or not gc.isenabled():
        return
    young, middle, old = gc.get_count()
    if young >= _AT_LEISURE:
        gc.collect(2 if old > _OLD else 1 if middle > _MIDDLE_AT_LEISURE else 0)
