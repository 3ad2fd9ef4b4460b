"""The stack of open connections, against a real Redis."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_agents.worker.errors import ConfigurationError, StoreUnavailable
from celery_agents.worker.store.redis import connections as redis_connections
from celery_agents.worker.store.redis.database import RedisDatabase, connect


def open_connections(database: RedisDatabase, name: str) -> int:
    (clients,) = database.pipeline("test", [("CLIENT", "LIST")])
    return clients.decode().count(f"name={name} ")


def at_once(times: int, act: Callable[[], object]) -> None:
    """Act in as many threads at once; raises what one of them has raised."""
    with ThreadPoolExecutor(times) as threads:
        for acting in [threads.submit(act) for _ in range(times)]:
            acting.result()


def test_what_a_burst_needed_is_closed_after_a_while(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_connections, "_KEPT_SECONDS", 0.3)
    database = connect(redis_url, timeout_seconds=5, connections=32, name="burst")
    together = threading.Barrier(8)

    def one_of_many() -> None:
        with database.watch("test", ("x",), []):
            together.wait(5)

    at_once(8, one_of_many)
    assert open_connections(database, "burst") == 8
    deadline = time.monotonic() + 10
    while open_connections(database, "burst") > 1 and time.monotonic() < deadline:
        time.sleep(0.02)  # it is used all the time, as by a worker that looks after its leases
    assert open_connections(database, "burst") == 1
    database.close()


def test_more_users_than_connections_take_turns(redis_url: str) -> None:
    database = connect(redis_url, timeout_seconds=5, connections=2, name="crowd")
    together, done = threading.Barrier(20), list[int]()

    def one_of_many() -> None:
        together.wait(5)
        for _ in range(10):
            with database.watch("test", ("x",), []):
                time.sleep(0.001)
        done.append(1)

    at_once(20, one_of_many)
    assert len(done) == 20
    assert open_connections(database, "crowd") <= 2
    database.close()


def test_who_gets_no_connection_is_told_what_to_set(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_connections, "_LONGEST_WAIT_SECONDS", 0.2)
    database = connect(redis_url, timeout_seconds=5, connections=1, name="narrow")
    with (
        database.watch("test", ("x",), []),
        pytest.raises(StoreUnavailable, match="are in use; raise CELERY_AGENTS_REDIS_CONNECTIONS"),
    ):
        database.pipeline("test", [("PING",)])
    database.close()


@pytest.mark.parametrize(
    "url",
    [
        "redis://h?decode_responses=true",
        "redis://h?protocol=3",
        "redis://h?encoding=utf-16",
        "redis://h?ssl_cert_reqs=none",
        "redis://h?no_such_option=1",
        "redis+sentinel://h/main?decode_responses=true",
    ],
)
def test_an_option_of_a_url_that_nothing_can_be_read_with_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=url.partition("?")[2].partition("=")[0]):
        connect(url, timeout_seconds=5, connections=1, name="options")


@pytest.mark.parametrize("url", ["redis://h?db=3&socket_timeout=2", "rediss://h?ssl_cert_reqs=none", "unix:///s?db=1"])
def test_other_options_of_a_url_are_taken(url: str) -> None:
    connect(url, timeout_seconds=5, connections=1, name="options").close()
