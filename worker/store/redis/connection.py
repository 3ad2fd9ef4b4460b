"""One connection to Redis, which retries nothing; taken for each round trip, or shared by the fibers of a loop.

`RedisConnection` uses redis-py's documented calls only and works everywhere: with TLS, over Unix sockets, without
hiredis. `MultiplexedConnection` is faster and needs the connection's plain socket; see `PlainSocket`. The commands that
the fibers of a loop send in the same turn leave in one write.

A round trip costs two system calls here and two in Redis. Steps that share a thread share these calls too: Redis reads
their commands in the order of the writes and answers in that order. A transaction stays whole, since its commands are
written together. WATCH belongs to a connection, so a transaction that watches takes a connection alone.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final, cast

from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import InvalidResponse, ResponseError
from redis.exceptions import TimeoutError as TimedOut

from ...concurrency import fibers
from ..database import Command, Reply
from .outages import find_outage

try:
    import hiredis
except ImportError:  # no wheel for this machine
    hiredis = None

_hiredis: Final[Any] = cast("Any", hiredis)

PlainSocket = Callable[[Any], tuple[socket.socket, Callable[[bytes], Exception]] | None]
"""Takes a connected connection of redis-py and gives its socket and the parser of its error replies.

None: this connection has no plain socket, such as one with TLS. redis-py does not promise how to get at either, so the
store leaves it to the caller that opens it, and uses redis-py's own calls where none is passed.
"""


class RedisConnection:
    """A connection that speaks by redis-py's own calls; a fiber waits for them in a thread.

    Attributes:
        primary: The server's replication id when it was opened; "" where nothing is confirmed.
    """

    def __init__(self, connection: Any) -> None:
        """
        Args:
            connection: One of redis-py.
        """
        self.connection = connection
        self.primary = ""

    def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """Send all commands, then read all replies.

        Returns:
            A reply for each command; an error that Redis answered is among them, not raised.
        Raises:
            RedisError, OSError: The connection is of no use any more.
        """
        return _check_replies(fibers.run_in_thread(self._exchange, commands))

    def _exchange(self, commands: Sequence[Command]) -> list[Reply]:
        self.connection.send_packed_command(self._pack(commands))
        return [self._read_reply() for _ in commands]

    def _pack(self, commands: Sequence[Command]) -> list[bytes]:
        """Pack the commands. redis-py would look at each word of each before it hands them to hiredis."""
        if hiredis is None:
            return self.connection.pack_commands(commands)
        return [b"".join(map(_hiredis.pack_command, commands))]

    def _read_reply(self) -> Reply:
        try:
            return self.connection.read_response()
        except ResponseError as error:
            return error


def _check_replies(replies: list[Reply]) -> list[Reply]:
    """Return the replies.

    Raises:
        ConnectionLost: One of them says that Redis is away, for this connection at least.
    """
    for reply in replies:
        if isinstance(reply, ConnectionLost):  # such as LOADING, by redis-py
            raise reply
        if isinstance(reply, Exception) and (outage := find_outage(reply)) is not None:
            raise outage
    return replies


_MICROSECONDS: Final = 1_000_000
# The parser gives this while a reply is not there in full.
_INCOMPLETE: Final = object()
_READ_BYTES: Final = 65_536
# A lone fiber keeps the loop for this time while it waits for its reply; for a longer one it parks.
_ALONE_SECONDS: Final = 0.005
# Before it blocks it polls: most replies come within a tenth of a millisecond, and a core that has slept takes twice as
# long for what follows.
AWAKE_SECONDS: Final = 0.001
_GRACE_SECONDS: Final = 0.05


class _Request:
    """A fiber that waits for `replies` replies until this time of the loop's clock; for ever while nothing is sent."""

    __slots__ = ("fiber", "replies", "until")

    def __init__(self, fiber: fibers.Fiber, replies: int, until: float) -> None:
        self.fiber = fiber
        self.replies = replies
        self.until = until


class MultiplexedConnection(RedisConnection):
    """A plain socket with many round trips under way at once. Used on the thread of its loop only."""

    def __init__(
        self,
        connection: Any,
        plain: socket.socket,
        parse_error: Callable[[bytes], Exception],
        loop: asyncio.AbstractEventLoop,
        *,
        holds_loop: bool = True,
    ) -> None:
        """
        Args:
            connection: One of redis-py, connected, with a time limit.
            plain: Its socket, without TLS.
            parse_error: Makes an exception of redis-py's kinds of an error reply.
            loop: The loop that runs the fibers.
            holds_loop: Whether a lone fiber may keep the loop while it waits for a reply; not for commands that block.
        """
        super().__init__(connection)
        self._loop = loop
        self._holds_loop = holds_loop
        self._socket = plain
        if not _limit_blocking(self._socket, _ALONE_SECONDS):
            self._socket.setblocking(False)
        self._limit: float = connection.socket_timeout
        self._parser: Any = _hiredis.Reader(
            protocolError=InvalidResponse, replyError=parse_error, notEnoughData=_INCOMPLETE
        )
        self._unsent: list[bytes] = []
        self._requests: deque[_Request] = deque()
        self._unsent_requests: list[_Request] = []
        self._late: _Request | None = None
        self._replies: list[Reply] = []
        self._is_sending = False
        self._timer: asyncio.TimerHandle | None = None
        self.broken: Exception | None = None
        self._loop.add_reader(self._socket, self._read)

    @classmethod
    def over(
        cls, connection: Any, plain_socket: PlainSocket, loop: asyncio.AbstractEventLoop, *, holds_loop: bool = True
    ) -> MultiplexedConnection | None:
        """Multiplex a connection of redis-py; None without a plain socket, hiredis or a time limit."""
        found = plain_socket(connection) if hiredis is not None and connection.socket_timeout else None
        if found is None:
            return None
        plain, parse_error = found
        return cls(connection=connection, plain=plain, parse_error=parse_error, loop=loop, holds_loop=holds_loop)

    def serves(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether fibers of this loop can use it."""
        return self.broken is None and self._loop is loop

    def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """Send all commands and wait for their replies, while other fibers run.

        Raises:
            RedisError, OSError: The connection is of no use any more, for none of the fibers that wait on it.
        """
        fiber = fibers.current()
        assert fiber is not None
        if self.broken is not None:
            raise self.broken
        data = b"".join(map(_hiredis.pack_command, commands))
        replies: list[Reply] | None = None
        if self._holds_loop and fiber.among.alive == 1 and not self._requests:
            replies = self._exchange_alone(data, len(commands))
        else:
            self._unsent.append(data)
        if replies is None:
            replies = self._wait_for_replies(fiber, len(commands))
        try:
            return _check_replies(replies)
        except ConnectionLost as error:
            self.close(error)
            raise

    def _exchange_alone(self, data: bytes, count: int) -> list[Reply] | None:
        """Send and read without a turn of the loop. None: the commands are under way, and the replies take longer."""
        try:
            if (sent := self._write(data)) < len(data):
                self._unsent.append(data[sent:])
                return None
            sleeps_at = self._loop.time() + AWAKE_SECONDS
            while len(self._replies) < count:
                self._replies += self._receive_awake(sleeps_at)
            if len(self._replies) > count:
                raise InvalidResponse("Redis sent more replies than commands were sent")
        except BlockingIOError:
            return None
        except Exception as error:
            self.close(error)
            raise
        replies, self._replies = self._replies, []
        return replies

    def _wait_for_replies(self, fiber: fibers.Fiber, count: int) -> list[Reply]:
        """Park the fiber until its replies are there; its commands are sent, or leave in this turn."""
        request = _Request(fiber, count, self._loop.time() + self._limit)
        self._requests.append(request)
        if self._unsent:
            request.until = inf
            self._unsent_requests.append(request)
            if not self._is_sending:
                self._is_sending = True
                self._loop.call_soon(self._send)
        if self._timer is None:
            self._timer = self._loop.call_later(self._limit, self._check_deadline)
        answer = fiber.park()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self, why: Exception) -> None:
        """Give the connection up, and tell every fiber that waits on it why."""
        if self.broken is not None:
            return
        self.broken = why
        if self._socket.fileno() >= 0:  # negative where the whole process gives its connections up
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        if self._timer is not None:
            self._timer.cancel()
        requests, self._requests = self._requests, deque[_Request]()
        for each in requests:
            self._loop.call_soon(each.fiber.resume, why)

    def close_soon(self, why: Exception) -> None:
        """Give the connection up from any thread."""
        self._loop.call_soon_threadsafe(self.close, why)

    def _send(self) -> None:
        if self.broken is not None:
            return
        data = b"".join(self._unsent)
        self._unsent.clear()
        until = self._loop.time() + self._limit
        for each in self._unsent_requests:
            each.until = until
        self._unsent_requests.clear()
        try:
            sent = self._write(data)
        except OSError as error:
            self.close(error)
            return
        if sent < len(data):  # the rest goes when there is room
            self._unsent.append(data[sent:])
            self._loop.add_writer(self._socket, self._send)
        else:
            self._is_sending = False
            self._loop.remove_writer(self._socket)

    def _write(self, data: bytes) -> int:
        """Write as many bytes as the kernel takes; how many these were."""
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def _read(self) -> None:
        try:
            replies = self._receive(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except Exception as error:  # noqa: BLE001 - lost, or not a reply: where the next one begins is unknown
            self.close(error)
            return
        for reply in replies:
            if not self._requests:
                self.close(InvalidResponse("Redis sent a reply that no command asked for"))
                return
            self._replies.append(reply)
            if len(self._replies) == self._requests[0].replies:
                whole, self._replies = self._replies, []
                self._requests.popleft().fiber.resume(whole)

    def _receive_awake(self, until: float) -> list[Reply]:
        """Receive by polling up to this time of the loop's clock, then by blocking."""
        while self._loop.time() < until:
            try:
                return self._receive(socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
        return self._receive(0)

    def _receive(self, flags: int) -> list[Reply]:
        """Read once; the replies that are complete then."""
        chunk = self._socket.recv(_READ_BYTES, flags)
        if not chunk:
            raise ConnectionLost("the connection was closed by Redis")
        self._parser.feed(chunk)
        return list(iter(self._parser.gets, _INCOMPLETE))

    def _check_deadline(self) -> None:
        """Give the connection up when the next reply is late, unless the busy loop has only not read it yet."""
        self._timer = None
        if not self._requests:
            return
        first = self._requests[0]
        left = min(first.until - self._loop.time(), self._limit)
        if left <= 0 and first is self._late:
            self.close(TimedOut("no answer within the time limit"))
            return
        self._late = first if left <= 0 else None
        self._timer = self._loop.call_later(max(left, _GRACE_SECONDS), self._check_deadline)


def _limit_blocking(plain: socket.socket, seconds: float) -> bool:
    """Have a blocking call on the socket raise BlockingIOError after `seconds`; False where the kernel has no limit.

    Python's own time limit costs a poll before each call, and each poll lets another thread go first.
    """
    limit = struct.pack("@ll", *divmod(round(seconds * _MICROSECONDS), _MICROSECONDS))
    try:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    except OSError:
        return False
    plain.settimeout(None)
    return True
