"""One connection to Redis, spoken on without redis-py's layers where that is possible.

redis-py connects, greets and authenticates. After that a plain socket and hiredis do: a socket with a time limit of
Python's polls before it sends and before it reads, and each of these calls lets another thread of the worker go first.
The kernel keeps the same limits without asking. Elsewhere (TLS, no hiredis) redis-py's own calls are used.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Any, Final, cast

from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import InvalidResponse, ResponseError
from redis.exceptions import TimeoutError as TimedOut

from ...concurrency import fibers
from ..database import Command, Meanwhile, Reply

try:
    import hiredis
except ImportError:  # no wheel for this machine
    hiredis = None

_hiredis: Final[Any] = cast("Any", hiredis)
_MICROSECONDS: Final = 1_000_000
_READ_BYTES: Final = 65_536
INCOMPLETE: Final = object()
"""What the parser of `replies_of` gives while an answer is not there in full."""


def wire_over(connection: Any) -> RedisConnection:
    """The fastest way to speak on a connection of redis-py that is connected."""
    if speaks_plainly(connection) and waits_at_most(connection._sock, connection.socket_timeout):
        return _Bare(connection)
    return RedisConnection(connection)


def speaks_plainly(connection: Any) -> bool:
    """Whether a plain socket and hiredis do: not with TLS, nor without hiredis or a time limit."""
    return hiredis is not None and type(connection._sock) is socket.socket and bool(connection.socket_timeout)


def packed(commands: Sequence[Command]) -> bytes:
    """Commands as they stand on the wire."""
    return b"".join(map(_hiredis.pack_command, commands))


def replies_of(connection: Any) -> Any:
    """A parser of its own for what comes on a connection; errors that Redis answers are values of redis-py's kinds."""
    return _hiredis.Reader(
        protocolError=InvalidResponse, replyError=connection._parser.parse_error, notEnoughData=INCOMPLETE
    )


class RedisConnection:
    """A connection by redis-py's own calls."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def exchange(self, commands: Sequence[Command], meanwhile: Meanwhile | None = None) -> list[Reply]:
        """Send all commands, then read all replies.

        Args:
            meanwhile: See `Database.transaction`. Who waits in a thread does nothing meanwhile.
        Returns:
            A reply for each command; an error that Redis answered is among them, not raised.
        Raises:
            RedisError, OSError: The connection is of no use any more.
        """
        del meanwhile
        return fibers.run_in_thread(self._exchange, commands)

    def _exchange(self, commands: Sequence[Command]) -> list[Reply]:
        self.connection.send_packed_command(self.connection.pack_commands(commands))
        return [self._reply() for _ in commands]

    def _reply(self) -> Reply:
        try:
            return self.connection.read_response()
        except ResponseError as error:
            return error


class _Bare(RedisConnection):
    """The socket itself, which keeps its own time limits, and hiredis."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._socket: socket.socket = connection._sock
        self._replies: Any = replies_of(connection)

    def _exchange(self, commands: Sequence[Command]) -> list[Reply]:
        try:
            self._socket.sendall(packed(commands))
            replies: list[Reply] = []
            while len(replies) < len(commands):
                replies += self._arrived(len(commands) - len(replies))
        except BlockingIOError:
            raise TimedOut("no answer within the time limit") from None
        for reply in replies:
            if isinstance(reply, ConnectionLost):  # such as LOADING: an answer that ends what can be said here
                raise reply
        return replies

    def _arrived(self, most: int) -> list[Reply]:
        """Replies that are complete after one more read."""
        chunk = self._socket.recv(_READ_BYTES)
        if not chunk:
            raise ConnectionLost("the connection was closed by Redis")
        self._replies.feed(chunk)
        replies: list[Reply] = []
        while len(replies) < most and (reply := self._replies.gets()) is not INCOMPLETE:
            replies.append(reply)
        return replies


def waits_at_most(plain: socket.socket, seconds: float) -> bool:
    """Have a socket block, and its calls raise BlockingIOError after so long; False where the kernel knows no limit."""
    limit = struct.pack("@ll", *divmod(round(seconds * _MICROSECONDS), _MICROSECONDS))
    try:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    except OSError:
        return False
    plain.settimeout(None)
    return True
