"""Locks whose waiting fibers let others run: one that many steps share and a suspect holds alone, and turns.

A suspect is a step that ended without an answer several times; it may have ended its process. When it runs alone, it
ends no other step with it, and an innocent step that only died together with a guilty one completes.

Transactions that watch the same key make each other repeat what they have read: of n at once, each is tried n / 2 times
on average. In turns, each is tried once. Only speed rests on turns: a caller that has waited too long continues.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future
from typing import Final

from . import fibers

_DOUBLED: Final = 6


class LockHolder:
    """One holder of the lock, until it leaves: at the end of its `with` block, or when other code leaves for it."""

    __slots__ = ("_lock", "has_left", "is_exclusive")

    def __init__(self, lock: SharedLock, *, is_exclusive: bool) -> None:
        self._lock = lock
        self.is_exclusive = is_exclusive
        self.has_left = False

    def __enter__(self) -> LockHolder:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.leave(self)


class SharedLock:
    """A lock that many steps share, or one suspect holds alone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sharing = 0
        self._is_closed = False
        self._in_vain = 0
        self._open_until = 0.0
        self._waiting: list[Future[None]] = []

    @property
    def is_closed(self) -> bool:
        """Whether a suspect holds the lock, or waits for the other holders to leave."""
        return self._is_closed

    def shared(self) -> LockHolder:
        """Share the lock for a `with` block; waits while a suspect holds it or waits for it."""
        while (change := self._try_share()) is not None:
            fibers.wait((change,), None)
        return LockHolder(self, is_exclusive=False)

    @contextlib.contextmanager
    def exclusive(self, patience_seconds: float) -> Generator[LockHolder | None]:
        """Hold the lock alone, once all other holders have left; None when that took too long.

        Args:
            patience_seconds: For the first try; each one in vain doubles it, up to 64 times that. Under steady
                work somebody always takes longer, and without that a suspect would never get the lock. Behind a try in
                vain, others begin for as long as it has kept them from it: a step may take hours.
        """
        holder = LockHolder(self, is_exclusive=True) if self._wait_until_empty(patience_seconds) else None
        try:
            yield holder
        finally:
            if holder is not None:
                self.leave(holder)

    def leave(self, holder: LockHolder) -> None:
        """Release the lock, once; also on behalf of an abandoned step, which would otherwise block the others."""
        # The keeper leaves for an abandoned step, which leaves itself when its function returns one day.
        with self._lock:
            if holder.has_left:
                return
            holder.has_left = True
            if holder.is_exclusive:
                self._is_closed = False
            else:
                self._sharing -= 1
            waiting = self._take_waiting()
        _wake(waiting)

    def _try_share(self) -> Future[None] | None:
        """Share the lock and return None, or return the next change to wait for."""
        with self._lock:
            if self._is_closed:
                return self._next_change()
            self._sharing += 1
            return None

    def _wait_until_empty(self, patience_seconds: float) -> bool:
        with self._lock:
            if self._is_closed or (self._sharing and time.monotonic() < self._open_until):
                return False
            self._is_closed = True
        patience_seconds *= 2 ** min(self._in_vain, _DOUBLED)
        ends = time.monotonic() + patience_seconds
        while (change := self._change_unless_empty()) is not None:
            left = ends - time.monotonic()
            if left <= 0:
                self._in_vain += 1
                self._open_until = ends + patience_seconds
                self._reopen()
                return False
            fibers.wait((change,), left)
        self._in_vain = 0
        return True

    def _change_unless_empty(self) -> Future[None] | None:
        with self._lock:
            return self._next_change() if self._sharing else None

    def _reopen(self) -> None:
        with self._lock:
            self._is_closed = False
            waiting = self._take_waiting()
        _wake(waiting)

    def _next_change(self) -> Future[None]:
        change = Future[None]()
        self._waiting.append(change)
        return change

    def _take_waiting(self) -> list[Future[None]]:
        waiting, self._waiting = self._waiting, []
        return waiting


def _wake(waiting: list[Future[None]]) -> None:
    for change in waiting:
        change.set_result(None)


class Turns:
    """Gives turns by key, in the order of asking."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[Future[None]]] = {}

    @contextlib.contextmanager
    def of(self, key: str, patience_seconds: float) -> Generator[None]:
        """Wait for the turn of this caller, `patience_seconds` at most, and pass it on in the end."""
        turn = self._ask(key)
        fibers.wait((turn,), patience_seconds)
        try:
            yield
        finally:
            self._leave(key, turn)

    def _ask(self, key: str) -> Future[None]:
        turn = Future[None]()
        with self._lock:
            waiting = self._waiting.setdefault(key, deque())
            waiting.append(turn)
            is_first = len(waiting) == 1
        if is_first:
            turn.set_result(None)
        return turn

    def _leave(self, key: str, turn: Future[None]) -> None:
        with self._lock:
            waiting = self._waiting[key]
            was_first = waiting[0] is turn
            waiting.remove(turn)
            if not waiting:
                del self._waiting[key]
            following = waiting[0] if waiting and was_first else None
        if following is not None:
            following.set_result(None)
