"""Connections of one process, taken and given back without asking them whether they still live.

redis-py's pool looks at a connection each time it hands it out. Ours are used many times a second; one that has died is
noticed at its next use, and with it all idle ones are closed, since what ended one has mostly ended them all.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Any


class Connections:
    """A stack of open connections over a pool of redis-py, which makes and counts them. Safe between threads."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._idle: deque[Any] = deque()
        self._pid = os.getpid()

    def take(self) -> Any:
        """A connection of this process's own.

        Raises:
            RedisError, OSError: Redis cannot be reached, or there are too many connections.
        """
        if self._pid != os.getpid():  # a forked child must not speak on its parent's connections
            self._idle, self._pid = deque(), os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return self._pool.get_connection()

    def give(self, connection: Any) -> None:
        """It was used up to its last reply."""
        self._idle.append(connection)

    def discard(self, connection: Any) -> None:
        """It is broken, or has replies on the wire that belong to nobody: close it and all idle ones."""
        self._close(connection)
        while self._idle:
            try:
                self._close(self._idle.pop())
            except IndexError:
                return

    def close(self) -> None:
        """Give all connections back to the system."""
        while self._idle:
            self._close(self._idle.pop())
        self._pool.disconnect()

    def _close(self, connection: Any) -> None:
        connection.disconnect()
        self._pool.release(connection)
