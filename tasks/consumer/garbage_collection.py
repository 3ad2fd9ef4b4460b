"""How often Python's garbage collector looks for reference cycles in a worker.

While the collector runs, every step of the process waits. A worker keeps many long-lived values and makes few cycles,
so the collector finds hardly anything, and runs rarely.
"""

from __future__ import annotations

import gc
from typing import Final

# New objects until the youngest generation is collected, then how often each older one is. Five hundred steps of a slow
# model make fewer objects before they end. Python's own 700 cost a tenth of a step (docs/decisions/0005, 0012).
_THRESHOLDS: Final = (200_000, 20, 50)


def collect_rarely() -> None:
    """Raise the collector's thresholds for the whole process."""
    gc.set_threshold(*_THRESHOLDS)


def freeze_loaded_objects(**_: object) -> None:
    """Exempt everything loaded so far from collection: modules and classes live as long as the process."""
    gc.collect()
    gc.freeze()
