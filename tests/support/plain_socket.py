"""The plain socket of a redis-py connection, for tests of the multiplexed connection."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any


def plain_socket(connection: Any) -> tuple[socket.socket, Callable[[bytes], Exception]] | None:
    """The socket and the error parser of a connection without TLS."""
    found = connection._sock
    return (found, connection._parser.parse_error) if type(found) is socket.socket else None
