"""One connection for all fibers of a loop: what they ask in the same turn leaves in one write.

A round trip of its own costs a step two calls to the kernel and Redis two more. Steps that share a thread share these:
their commands stand one behind the other on the wire, and Redis answers in that order. A transaction stays one, since
its commands stand together. WATCH does not fit here, as it belongs to a connection; who watches takes one alone.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Any, Final

from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import InvalidResponse
from redis.exceptions import TimeoutError as TimedOut

from ...concurrency import fibers
from ..database import Command, Meanwhile, Reply
from .connection import INCOMPLETE, RedisConnection, packed, replies_of, waits_at_most

_READ_BYTES: Final = 65_536
# A step that is alone keeps the loop for so long; an answer that takes longer is waited for by turns.
_ALONE_SECONDS: Final = 0.005
# Before it sleeps it asks again and again: most answers come within a tenth of a millisecond, and a core that has slept
# takes twice as long for what follows.
AWAKE_SECONDS: Final = 0.001
_GRACE_SECONDS: Final = 0.05


class _Asking:
    """A fiber that waits for so many replies, until this time of the loop's clock; for ever, while nothing is sent."""

    __slots__ = ("fiber", "replies", "until")

    def __init__(self, fiber: fibers.Fiber, replies: int, until: float) -> None:
        self.fiber = fiber
        self.replies = replies
        self.until = until


class MultiplexedConnection(RedisConnection):
    """A connected plain socket with many round trips under way. Used on the thread of its loop only."""

    def __init__(self, connection: Any, loop: asyncio.AbstractEventLoop) -> None:
        """
        Args:
            connection: One of redis-py, connected, for which `speaks_plainly` holds.
            loop: The one that runs.
        """
        super().__init__(connection)
        self._loop = loop
        self._socket: socket.socket = connection._sock
        if not waits_at_most(self._socket, _ALONE_SECONDS):
            self._socket.setblocking(False)
        self._limit: float = connection.socket_timeout
        self._parser: Any = replies_of(connection)
        self._unsent: list[bytes] = []
        self._asking: deque[_Asking] = deque()
        self._new: list[_Asking] = []  # of those, whose commands are not on their way
        self._late: _Asking | None = None
        self._replies: list[Reply] = []
        self._is_sending = False
        self._timer: asyncio.TimerHandle | None = None
        self.broken: Exception | None = None
        self._loop.add_reader(self._socket, self._read)

    def serves(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether fibers of this loop can use it."""
        return self.broken is None and self._loop is loop

    def exchange(self, commands: Sequence[Command], meanwhile: Meanwhile | None = None) -> list[Reply]:
        """See `Wire.exchange`. Other fibers go on while one waits; where there are none, there is `meanwhile`.

        Raises:
            RedisError, OSError: The connection is of no use any more, for none of those that wait on it.
        """
        fiber = fibers.current()
        assert fiber is not None
        if self.broken is not None:
            raise self.broken
        data = packed(commands)
        replies: list[Reply] | None = None
        if fiber.among.alive == 1 and not self._asking:
            replies = self._at_once(data, len(commands), meanwhile)
        else:
            self._unsent.append(data)
        if replies is None:
            replies = self._in_turn(fiber, len(commands))
        for reply in replies:
            if isinstance(reply, ConnectionLost):  # such as LOADING: an answer that ends what can be said here
                self.close(reply)
                raise reply
        return replies

    def _at_once(self, data: bytes, count: int, meanwhile: Meanwhile | None) -> list[Reply] | None:
        """Of a step that is alone: send and read without turning the loop. None: the answer takes its time."""
        try:
            if (sent := self._sent(data)) < len(data):
                self._unsent.append(data[sent:])
                return None
            if meanwhile is not None:
                self._let(meanwhile)
            sleeps_at = self._loop.time() + AWAKE_SECONDS
            while len(self._replies) < count:
                self._replies += self._arrived_awake(sleeps_at)
            if len(self._replies) > count:
                raise InvalidResponse("Redis said more than it was asked")
        except BlockingIOError:
            return None
        except Exception as error:
            self.close(error)
            raise
        replies, self._replies = self._replies, []
        return replies

    def _let(self, meanwhile: Meanwhile) -> None:
        """Whatever it does, nobody takes the answer that is under way for one of theirs."""
        try:
            meanwhile()
        except BaseException:
            self.close(ConnectionLost("a step ended before its answer came"))
            raise
        if self.broken is not None:  # it has turned the loop, which read an answer that nobody waited for
            raise self.broken

    def _in_turn(self, fiber: fibers.Fiber, count: int) -> list[Reply]:
        """Replies to what is sent or about to be; meanwhile other fibers go on."""
        asking = _Asking(fiber, count, self._loop.time() + self._limit)
        self._asking.append(asking)
        if self._unsent:
            asking.until = inf
            self._new.append(asking)
            if not self._is_sending:
                self._is_sending = True
                self._loop.call_soon(self._send)
        if self._timer is None:
            self._timer = self._loop.call_later(self._limit, self._look)
        answer = fiber.park()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self, why: Exception) -> None:
        """Of no use any more: everybody who waits hears why."""
        if self.broken is not None:
            return
        self.broken = why
        if self._socket.fileno() >= 0:  # else the whole process gives its connections up
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        if self._timer is not None:
            self._timer.cancel()
        asking, self._asking = self._asking, deque[_Asking]()
        for each in asking:
            self._loop.call_soon(each.fiber.resume, why)

    def _send(self) -> None:
        if self.broken is not None:
            return
        data = b"".join(self._unsent)
        self._unsent.clear()
        until = self._loop.time() + self._limit
        for each in self._new:
            each.until = until
        self._new.clear()
        try:
            sent = self._sent(data)
        except OSError as error:
            self.close(error)
            return
        if sent < len(data):  # the rest goes when there is room
            self._unsent.append(data[sent:])
            self._loop.add_writer(self._socket, self._send)
        else:
            self._is_sending = False
            self._loop.remove_writer(self._socket)

    def _sent(self, data: bytes) -> int:
        """Bytes that the kernel took."""
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def _read(self) -> None:
        try:
            replies = self._arrived(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except Exception as error:  # noqa: BLE001 - the connection, or an answer that is none: nobody knows what follows it
            self.close(error)
            return
        for reply in replies:
            if not self._asking:
                self.close(InvalidResponse("Redis said something that nobody had asked"))
                return
            self._replies.append(reply)
            if len(self._replies) == self._asking[0].replies:
                whole, self._replies = self._replies, []
                self._asking.popleft().fiber.resume(whole)

    def _arrived_awake(self, until: float) -> list[Reply]:
        """As `_arrived`, which sleeps only from this time of the loop's clock on."""
        while self._loop.time() < until:
            try:
                return self._arrived(socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
        return self._arrived(0)

    def _arrived(self, flags: int) -> list[Reply]:
        """Replies that are complete after one more read."""
        chunk = self._socket.recv(_READ_BYTES, flags)
        if not chunk:
            raise ConnectionLost("the connection was closed by Redis")
        self._parser.feed(chunk)
        return list(iter(self._parser.gets, INCOMPLETE))

    def _look(self) -> None:
        """Whether the answer that is due next is late. It may lie here, if the loop was kept from reading it."""
        self._timer = None
        if not self._asking:
            return
        first = self._asking[0]
        left = min(first.until - self._loop.time(), self._limit)
        if left <= 0 and first is self._late:
            self.close(TimedOut("no answer within the time limit"))
            return
        self._late = first if left <= 0 else None
        self._timer = self._loop.call_later(max(left, _GRACE_SECONDS), self._look)
