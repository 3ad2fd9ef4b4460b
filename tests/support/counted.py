"""How many are somewhere at the same time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Counted:
    """What runs at the same time, and how much of it there was at most."""

    def __init__(self) -> None:
        self.now = self.most = self.done = 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        yield
        with self._lock:
            self.now -= 1
            self.done += 1
