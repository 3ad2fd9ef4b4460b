"""Who may run beside whom in one process: suspects run alone.

A step that ended without an answer several times may have taken its process with it. Alone, it takes no neighbour
along, and a neighbour that was only taken along shows that it was innocent.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator


class Gate:
    """Many steps at once, or one suspect."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._alone = False

    @contextlib.contextmanager
    def shared(self) -> Generator[None]:
        """Run beside others; waits while a suspect runs or is about to."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self, patience_seconds: float) -> Generator[bool]:
        """Wait until nothing else runs; False when that took too long, and then nothing is held."""
        with self._changed:
            if self._alone:
                entered = False
            else:
                self._alone = True
                entered = self._changed.wait_for(lambda: self._running == 0, timeout=patience_seconds)
                if not entered:
                    self._alone = False
                    self._changed.notify_all()
        try:
            yield entered
        finally:
            if entered:
                with self._changed:
                    self._alone = False
                    self._changed.notify_all()
