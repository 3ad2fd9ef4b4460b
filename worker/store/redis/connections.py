"""Connections of one process, taken and given back without asking them each time whether they still live.

redis-py's pool looks at a connection each time it hands it out. Ours are used many times a second; one that has died is
noticed at its next use, and with it all idle ones are closed, since what ended one has mostly ended them all. Only one
that nobody has used for a while is looked at first: a client that acts once an hour is not to fail at each restart.
What a burst of work needed is closed a minute after it.
"""

from __future__ import annotations

import concurrent.futures
import os
import time
from collections import deque
from typing import Any, Final

from redis.exceptions import RedisError

from ...concurrency import fibers
from .connection import RedisConnection, speaks_plainly, wire_over
from .multiplexed import MultiplexedConnection

_TRUSTED_SECONDS: Final = 1.0
_KEPT_SECONDS: Final = 60.0


class Connections:
    """A stack of open connections over a pool of redis-py, which makes and counts them. Safe between threads."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._idle: deque[tuple[RedisConnection, float]] = deque()
        self._pid = os.getpid()
        self._lane: MultiplexedConnection | None = None
        self._opening: concurrent.futures.Future[MultiplexedConnection | None] | None = None
        self._may_share = True

    def take(self, *, alone: bool = False) -> RedisConnection:
        """A connection of this process's own.

        Args:
            alone: Nobody else is to speak on it meanwhile. Otherwise the fibers of a loop share one.
        Raises:
            RedisError, OSError: Redis cannot be reached, or there are too many connections.
        """
        if not alone and (fiber := fibers.current()) is not None and (lane := self._shared(fiber)) is not None:
            return lane
        if self._pid != os.getpid():  # a forked child must not speak on its parent's connections
            self._idle, self._pid = deque(), os.getpid()
        try:
            wire, given = self._idle.pop()
        except IndexError:
            return fibers.run_in_thread(self._opened)
        if time.monotonic() - given <= _TRUSTED_SECONDS or _is_open(wire):
            return wire
        self.discard(wire)
        return fibers.run_in_thread(self._opened)

    def give(self, wire: RedisConnection) -> None:
        """It was used up to its last reply."""
        if isinstance(wire, MultiplexedConnection):
            return
        now = time.monotonic()
        self._idle.append((wire, now))
        try:  # one at a time, and other threads take them meanwhile
            if now - self._idle[0][1] <= _KEPT_SECONDS:
                return
            oldest, given = self._idle.popleft()
        except IndexError:
            return
        if now - given > _KEPT_SECONDS:
            self._close(oldest)
        else:
            self._idle.append((oldest, given))

    def discard(self, wire: RedisConnection) -> None:
        """It is broken, or has replies on the wire that belong to nobody: close it and all idle ones."""
        if isinstance(wire, MultiplexedConnection):  # of all who hear that it broke, who replaces it closes it
            return
        self._close(wire)
        self._close_idle()

    def close(self) -> None:
        """Give all connections back to the system."""
        self._close_idle()
        self._pool.disconnect()

    def _opened(self) -> RedisConnection:
        return wire_over(self._pool.get_connection())

    def _shared(self, fiber: fibers.Fiber) -> MultiplexedConnection | None:
        """The connection of this loop's fibers; None where there can be none (TLS).

        The first that needs a new one opens it, the others wait for it.
        """
        if self._lane is not None:
            if self._lane.serves(fiber.among.loop):
                return self._lane
            broken, self._lane = self._lane, None
            self._close(broken)
            self._close_idle()
        if not self._may_share:
            return None
        if self._opening is not None:
            return fibers.result(self._opening)
        opening = self._opening = concurrent.futures.Future[MultiplexedConnection | None]()
        try:
            connection = fibers.run_in_thread(self._pool.get_connection)
            if speaks_plainly(connection):
                self._lane = MultiplexedConnection(connection, fiber.among.loop)
            else:
                self._may_share = False
                self.give(wire_over(connection))
            opening.set_result(self._lane)
        except BaseException as error:
            opening.set_exception(error)
            raise
        finally:
            self._opening = None
        return self._lane

    def _close_idle(self) -> None:
        while self._idle:
            try:
                self._close(self._idle.pop()[0])
            except IndexError:
                return

    def _close(self, wire: RedisConnection) -> None:
        wire.connection.disconnect()
        self._pool.release(wire.connection)


def _is_open(wire: RedisConnection) -> bool:
    """Whether nothing waits to be read; the end of the stream would."""
    try:
        return not wire.connection.can_read()
    except (RedisError, OSError):
        return False
