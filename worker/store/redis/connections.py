"""The open connections of one process, taken and given back without asking each time whether they still live.

redis-py's pool checks a connection whenever it hands it out. Ours are used many times a second, so a dead one is
noticed at its next use; whatever ended it has mostly ended the others too, so all idle ones are closed with it. Only a
connection that was not used for a while is checked first: a client that acts once an hour must not fail at each
restart of Redis. Connections that a burst of work opened are closed after a minute without use. Where there are as many
as there may be, the next user waits for one.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import MaxConnectionsError, RedisError

from ...concurrency import fibers
from ..primaries import REPLICATION, replication_id
from .connection import MultiplexedConnection, PlainSocket, RedisConnection

_TRUSTED_SECONDS: Final = 1.0
_KEPT_SECONDS: Final = 60.0
# For a connection that others use; a follower of a session has one for two seconds. Closed ones are looked for.
_LONGEST_WAIT_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.1


class RedisConnections:
    """A stack of open connections over a pool of redis-py, which makes and counts them. Safe between threads.

    Attributes:
        on_lost: Called when a connection broke or leads to another server: the next one may lead to any.
        asks_primary: Each new connection asks for the replication id of its server.
    """

    def __init__(self, pool: Any, plain_socket: PlainSocket | None = None, *, holds_loop: bool = True) -> None:
        """
        Args:
            pool: redis-py's.
            plain_socket: Gives the socket that the fibers of a loop share. None: each fiber takes a connection.
            holds_loop: See `MultiplexedConnection`.
        """
        self._pool = pool
        self._plain_socket = plain_socket
        self._holds_loop = holds_loop
        self._idle: deque[tuple[RedisConnection, float]] = deque()
        self._given = threading.Condition()
        self._waiting = 0
        self._pid = os.getpid()
        self._multiplexed: MultiplexedConnection | None = None
        self._opening: concurrent.futures.Future[MultiplexedConnection | None] | None = None
        self._server: object = None
        self.on_lost: Callable[[], object] = lambda: None
        self.asks_primary = False

    def take(self, *, alone: bool = False) -> RedisConnection:
        """Take a connection of this process; `give` or `discard` it afterwards.

        Args:
            alone: Nothing else may use it meanwhile, as WATCH needs. Otherwise the fibers of a loop share one.
        Raises:
            RedisError, OSError: Redis cannot be reached, or all connections were in use for too long.
        """
        if not alone and (fiber := fibers.current()) is not None and (shared := self._share(fiber)) is not None:
            return shared
        if self._pid != os.getpid():  # a forked child must not use its parent's connections
            self._idle, self._pid, self._given, self._waiting = deque(), os.getpid(), threading.Condition(), 0
        try:
            if self._waiting:  # who gives one back and needs it again waits behind those who have none
                return fibers.run_in_thread(self._open_or_wait)
            wire, given = self._idle.pop()
        except IndexError:
            return fibers.run_in_thread(self._open_or_wait)
        if time.monotonic() - given <= _TRUSTED_SECONDS or _is_open(wire):
            return wire
        self.discard(wire)
        return fibers.run_in_thread(self._open_or_wait)

    def give(self, wire: RedisConnection) -> None:
        """Give back a connection whose every reply was read."""
        if isinstance(wire, MultiplexedConnection):
            return
        now = time.monotonic()
        self._idle.append((wire, now))
        if self._waiting:
            with self._given:
                self._given.notify()
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
        """Close a connection that broke or has unread replies, and all idle ones with it."""
        self.on_lost()
        if isinstance(wire, MultiplexedConnection):  # every fiber on it hears that it broke; its successor closes it
            return
        self._close(wire)
        self._close_idle()

    def drop(self) -> None:
        """Close all connections that are not in use; the shared one as soon as its loop comes to it."""
        self.on_lost()
        self._close_idle()
        if self._multiplexed is not None:
            self._multiplexed.close_soon(ConnectionLost("another server may be primary"))

    def close(self) -> None:
        """Close all connections; the shared one only where a fiber of its loop calls this."""
        fiber, shared = fibers.current(), self._multiplexed
        if fiber is not None and shared is not None and shared.serves(fiber.among.loop):
            shared.close(ConnectionLost("closed by its owner"))
        self._close_idle()
        self._pool.disconnect()

    def _open_or_wait(self) -> RedisConnection:
        """Open a connection, or get one that another user gives back where no more may be opened."""
        ends = time.monotonic() + _LONGEST_WAIT_SECONDS
        while True:
            try:
                return self._open()
            except MaxConnectionsError:
                if time.monotonic() >= ends:
                    raise
            with self._given:
                self._waiting += 1
                self._given.wait(_LOOK_SECONDS)
                self._waiting -= 1
            with contextlib.suppress(IndexError):
                return self._idle.pop()[0]

    def _open(self) -> RedisConnection:
        wire = RedisConnection(self._connect())
        if self.asks_primary:
            try:
                (info,) = wire.exchange([REPLICATION])
                if isinstance(info, Exception):
                    raise info
            except BaseException:
                self._close(wire)
                raise
            wire.primary = replication_id(info)
        return wire

    def _connect(self) -> Any:
        connection = self._pool.get_connection()
        server = getattr(connection, "host", None), getattr(connection, "port", None)
        if server != self._server:
            self._server = server
            self.on_lost()
            self._close_idle()  # they lead to a former primary, which may take writes for a while yet
        return connection

    def _share(self, fiber: fibers.Fiber) -> MultiplexedConnection | None:
        """The connection that the fibers of this loop share; None where there is no plain socket.

        The first fiber that needs a new one opens it, and the others wait for it.
        """
        if self._multiplexed is not None:
            if self._multiplexed.serves(fiber.among.loop):
                return self._multiplexed
            broken, self._multiplexed = self._multiplexed, None
            self.on_lost()
            self._close(broken)
            self._close_idle()
        if self._plain_socket is None:
            return None
        if self._opening is not None:
            return fibers.result(self._opening)
        opening = self._opening = concurrent.futures.Future[MultiplexedConnection | None]()
        try:
            opened = fibers.run_in_thread(self._open)
            self._multiplexed = MultiplexedConnection.over(
                opened.connection, self._plain_socket, fiber.among.loop, holds_loop=self._holds_loop
            )
            if self._multiplexed is None:
                self._plain_socket = None
                self.give(opened)
            else:
                self._multiplexed.primary = opened.primary
            opening.set_result(self._multiplexed)
        except BaseException as error:
            opening.set_exception(error)
            raise
        finally:
            self._opening = None
        return self._multiplexed

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
    """Whether nothing waits to be read; at the end of the stream something would."""
    try:
        return not wire.connection.can_read()
    except (RedisError, OSError):
        return False
