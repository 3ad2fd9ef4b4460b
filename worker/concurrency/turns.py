"""`Turns`: calls about the same thing, one after the other within a process.

Transactions that watch the same key make each other repeat what they have read: of n at once, each is tried n / 2 times
on average. In turns, each is tried once. Only speed rests on it: a caller that has waited too long goes on.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future

from . import fibers


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
