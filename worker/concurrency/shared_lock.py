"""Who may run beside whom in one process: suspects run alone.

A step that ended without an answer several times may have taken its process with it. Alone, it takes no neighbour
along, and a neighbour that was only taken along shows that it was innocent.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator
from concurrent.futures import Future

from . import fibers


class LockHolder:
    """That somebody is inside, until they leave."""

    __slots__ = ("alone", "left")

    def __init__(self, *, alone: bool) -> None:
        self.alone = alone
        self.left = False


class SharedLock:
    """Many steps at once, or one suspect."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._alone = False
        self._waiting: list[Future[None]] = []

    @property
    def is_closed(self) -> bool:
        """Whether a suspect runs, or waits for the others to leave."""
        return self._alone

    @contextlib.contextmanager
    def shared(self) -> Generator[LockHolder]:
        """Run beside others; waits while a suspect runs or is about to."""
        while (change := self._refused()) is not None:
            fibers.wait((change,), None)
        entered = LockHolder(alone=False)
        try:
            yield entered
        finally:
            self.leave(entered)

    @contextlib.contextmanager
    def alone(self, patience_seconds: float) -> Generator[LockHolder | None]:
        """Wait until nothing else runs; None when that took too long, and then nothing is held."""
        entered = LockHolder(alone=True) if self._emptied(patience_seconds) else None
        try:
            yield entered
        finally:
            if entered is not None:
                self.leave(entered)

    def leave(self, entered: LockHolder) -> None:
        """Be no longer inside; also said of a step that was given up, so that it stands in nobody's way."""
        with self._lock:
            if entered.left:
                return
            entered.left = True
            if entered.alone:
                self._alone = False
            else:
                self._running -= 1
            waiting = self._noticed()
        for change in waiting:
            change.set_result(None)

    def _refused(self) -> Future[None] | None:
        """What to wait for before one may come in beside others; None: it is in."""
        with self._lock:
            if self._alone:
                return self._next_change()
            self._running += 1
            return None

    def _emptied(self, patience_seconds: float) -> bool:
        with self._lock:
            if self._alone:
                return False
            self._alone = True
        ends = time.monotonic() + patience_seconds
        while (change := self._still_full()) is not None:
            left = ends - time.monotonic()
            if left <= 0:
                self._give_way()
                return False
            fibers.wait((change,), left)
        return True

    def _still_full(self) -> Future[None] | None:
        with self._lock:
            return self._next_change() if self._running else None

    def _give_way(self) -> None:
        with self._lock:
            self._alone = False
            waiting = self._noticed()
        for change in waiting:
            change.set_result(None)

    def _next_change(self) -> Future[None]:
        change = Future[None]()
        self._waiting.append(change)
        return change

    def _noticed(self) -> list[Future[None]]:
        waiting, self._waiting = self._waiting, []
        return waiting
