"""A connection by redis-py's calls, on a real Redis and on servers that end, stall or stop in the middle of a reply."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Connection
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as TimedOut
from redis.retry import Retry

from celery_agents.worker.store.redis.connection import RedisConnection

from support.redis_server import RedisServer

LIMIT = 0.3


def connected(port: int, limit: float | None = 5.0) -> Any:
    connection = Connection(
        host="127.0.0.1", port=port, socket_timeout=limit, retry=Retry(NoBackoff(), 0), protocol=2, driver_info=None,
    )  # fmt: skip
    connection.connect()
    return connection


@pytest.fixture
def said() -> Iterator[Callable[..., int]]:
    """A server that answers everything with these bytes, and closes or keeps silent after them; its port."""
    ends: list[socket.socket] = []

    def start(answer: bytes, *, closes: bool) -> int:
        server = socket.create_server(("127.0.0.1", 0))
        ends.append(server)

        def serve() -> None:
            peer, _ = server.accept()
            ends.append(peer)
            peer.recv(1_000)
            peer.sendall(answer)
            if closes:
                peer.shutdown(socket.SHUT_RDWR)

        threading.Thread(target=serve, daemon=True).start()
        return int(server.getsockname()[1])

    yield start
    for end in ends:
        end.close()


def test_replies_come_in_their_order_with_errors_among_them(redis_server: RedisServer) -> None:
    wire = RedisConnection(connected(redis_server.port))
    large = b"x" * 300_000
    replies = wire.exchange(
        [
            ("SET", "large", large), ("GET", "large"), ("LPUSH", "large", 1), ("EVALSHA", "0" * 40, 0), ("GET", "none"),
            ("MULTI",), ("INCR", "n"), ("LPUSH", "large", 1), ("EXEC",),
        ]
    )  # fmt: skip
    assert replies[:2] == [b"OK", large]
    assert isinstance(replies[2], ResponseError)
    assert "WRONGTYPE" in str(replies[2])
    assert isinstance(replies[3], NoScriptError)
    assert replies[4:8] == [None, b"OK", b"QUEUED", b"QUEUED"]
    assert replies[8][0] == 1
    assert isinstance(replies[8][1], ResponseError)
    assert wire.exchange([("DEL", "large", "n")]) == [2]
    wire.connection.disconnect()


@pytest.mark.parametrize("answer", [b"", b"$10\r\nabc", b"+OK\r\n"])
def test_a_connection_that_ends_early_is_lost(said: Callable[..., int], answer: bytes) -> None:
    wire = RedisConnection(connected(said(answer, closes=True)))
    with pytest.raises((ConnectionLost, OSError)):
        wire.exchange([("GET", "a"), ("GET", "b")])


@pytest.mark.parametrize("answer", [b"", b"$10\r\nabc", b"+OK\r\n"])
def test_a_reply_that_does_not_come_is_waited_for_no_longer_than_allowed(
    said: Callable[..., int], answer: bytes
) -> None:
    wire = RedisConnection(connected(said(answer, closes=False), LIMIT))
    begun = time.monotonic()
    with pytest.raises(TimedOut):
        wire.exchange([("GET", "a"), ("GET", "b")])
    assert LIMIT * 0.9 <= time.monotonic() - begun < LIMIT + 2


@pytest.mark.parametrize(
    "answer", [b"-LOADING Redis is loading the dataset in memory\r\n", b"-NOAUTH\r\n", b"junk\r\n"]
)
def test_an_answer_that_ends_what_can_be_said_is_raised(said: Callable[..., int], answer: bytes) -> None:
    wire = RedisConnection(connected(said(answer, closes=False), LIMIT))
    with pytest.raises(RedisError):
        wire.exchange([("GET", "a")])
