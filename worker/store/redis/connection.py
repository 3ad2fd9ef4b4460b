"""One connection to Redis: send the commands of a round trip, read as many replies, retry nothing.

`RedisConnection` uses redis-py's documented calls only and works everywhere: with TLS, over Unix sockets, without
hiredis. `MultiplexedConnection` is faster and needs the connection's plain socket; see `PlainSocket`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import ResponseError

from ...concurrency import fibers
from ..database import Command, Reply

PlainSocket = Callable[[Any], tuple[socket.socket, Callable[[bytes], Exception]] | None]
"""Takes a connected connection of redis-py and gives its socket and the parser of its error replies.

None: this connection has no plain socket, such as one with TLS. redis-py does not promise how to get at either, so the
store leaves it to whoever opens it, and goes by redis-py's own calls where nobody passes one.
"""


class RedisConnection:
    """A connection that speaks by redis-py's own calls; a fiber waits for them in a thread."""

    def __init__(self, connection: Any) -> None:
        """
        Args:
            connection: One of redis-py.
        """
        self.connection = connection

    def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """Send all commands, then read all replies.

        Returns:
            A reply for each command; an error that Redis answered is among them, not raised.
        Raises:
            RedisError, OSError: The connection is of no use any more.
        """
        return fibers.run_in_thread(self._exchange, commands)

    def _exchange(self, commands: Sequence[Command]) -> list[Reply]:
        self.connection.send_packed_command(self.connection.pack_commands(commands))
        return [self._read_reply() for _ in commands]

    def _read_reply(self) -> Reply:
        try:
            return self.connection.read_response()
        except ResponseError as error:
            return error
