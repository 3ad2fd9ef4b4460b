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

_UNCOLLECTED_BYTES: Final = 16_000_000


class MessageGarbage:
    """Collects what control messages leave behind, by their bytes and not by the number of their objects.

    A task that fails leaves a cycle of exception and frames, which holds the message. A hundred messages of 4 MB are
    fewer objects than the thresholds wait for.
    """

    def __init__(self) -> None:
        self._bytes = 0

    def add(self, size: int) -> None:
        """Note that a message of this size is done; collect young objects when there were many bytes."""
        self._bytes += size
        if self._bytes >= _UNCOLLECTED_BYTES:
            self._bytes = 0
            gc.collect(1)


def collect_rarely() -> None:
    """Raise the collector's thresholds for the whole process."""
    gc.set_threshold(*_THRESHOLDS)


def freeze_loaded_objects(**_: object) -> None:
    """Exempt everything loaded so far from collection: modules and classes live as long as the process."""
    gc.collect()
    gc.freeze()
