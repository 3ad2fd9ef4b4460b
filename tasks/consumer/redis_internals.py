"""Everything of redis-py that is used and not documented.

Nobody else touches it. `PROBES` lists what a worker looks for when it starts.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Final

PROBES: Final = ("redis.connection:Connection()._sock", "redis.connection:Connection()._parser.parse_error")


def plain_socket(connection: Any) -> tuple[socket.socket, Callable[[bytes], Exception]] | None:
    """Return the socket of a connected redis-py connection and the parser of its errors.

    Returns:
        None with TLS, and where redis-py keeps them elsewhere: then its own calls have to be used.
    """
    plain = getattr(connection, "_sock", None)
    parse_error = getattr(getattr(connection, "_parser", None), "parse_error", None)
    if type(plain) is not socket.socket or parse_error is None:
        return None
    return plain, parse_error
