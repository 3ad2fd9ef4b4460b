"""Who may run beside whom in one process: suspects run alone.

A step that ended without an answer several times may have taken its process with it. Alone, it takes no neighbour
along, and a neighbour that was only taken along shows that it was innocent.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator


class Pass:
    """That somebody is inside, until they leave."""

    __slots__ = ("alone", "left")

    def __init__(self, *, alone: bool) -> None:
        self.alone = alone
        self.left = False


class Gate:
    """Many steps at once, or one suspect."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._alone = False

    @contextlib.contextmanager
    def shared(self) -> Generator[Pass]:
        """Run beside others; waits while a suspect runs or is about to."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._running += 1
        entered = Pass(alone=False)
        try:
            yield entered
        finally:
            self.leave(entered)

    @contextlib.contextmanager
    def alone(self, patience_seconds: float) -> Generator[Pass | None]:
        """Wait until nothing else runs; None when that took too long, and then nothing is held."""
        entered = Pass(alone=True) if self._emptied(patience_seconds) else None
        try:
            yield entered
        finally:
            if entered is not None:
                self.leave(entered)

    def leave(self, entered: Pass) -> None:
        """Be no longer inside; also said of a thread that was given up, so that it stands in nobody's way."""
        with self._changed:
            if entered.left:
                return
            entered.left = True
            if entered.alone:
                self._alone = False
            else:
                self._running -= 1
            self._changed.notify_all()

    def _emptied(self, patience_seconds: float) -> bool:
        with self._changed:
            if self._alone:
                return False
            self._alone = True
            if self._changed.wait_for(lambda: self._running == 0, timeout=patience_seconds):
                return True
            self._alone = False
            self._changed.notify_all()
            return False
