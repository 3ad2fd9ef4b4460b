"""Whether a connection of kombu's is the one to the primary that Sentinels name, and how often they are asked."""

from __future__ import annotations

from typing import Any

import pytest
from redis.connection import SSLConnection
from redis.exceptions import RedisError
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool

from celery_agents.worker.store.redis import primary_connections
from celery_agents.worker.store.redis.pools import Sentinels
from celery_agents.worker.store.redis.primary_connections import PrimaryConnection, PrimaryTlsConnection


class Named:
    """Names a primary, as a test says; counts the questions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.address: tuple[str, int] | RedisError = ("10.0.0.1", 6001)
        self.asked = 0
        monkeypatch.setattr(Sentinels, "discover_master", self._discover)
        monkeypatch.setattr(Sentinel, "discover_master", lambda *_: ("10.0.0.9", 6009))  # the first that answers

    def _discover(self, name: str) -> tuple[str, int]:
        assert name == "main"
        self.asked += 1
        if isinstance(self.address, RedisError):
            raise self.address
        return self.address


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Named:
    return Named(monkeypatch)


class Opened(PrimaryConnection):
    """Opens no socket, and notes where it would lead."""

    _sock: Any

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.places: list[tuple[str, int]] = []

    def connect_check_health(self, *_: Any, **__: Any) -> None:
        self._sock = object()
        self.places.append((self.host, self.port))

    def disconnect(self, *args: Any, **options: Any) -> None:
        self._sock = None
        super().disconnect(*args, **options)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(primary_connections.time, "monotonic", lambda: now[0])
    return now


def connection() -> Opened:
    pool = SentinelConnectionPool("main", Sentinel([("s1", 1)]), connection_class=Opened)
    return pool.connection_class(**pool.connection_kwargs)  # type: ignore[return-value]


def test_it_leads_where_the_newest_configuration_says(named: Named) -> None:
    opened = connection()
    opened.connect()
    assert opened.places == [named.address]


def test_it_looks_once_a_second_and_leaves_a_former_primary(named: Named, clock: list[float]) -> None:
    opened = connection()
    opened.connect()
    named.address, before = ("10.0.0.2", 6002), named.asked
    opened.connect()
    assert (opened.places, named.asked) == ([("10.0.0.1", 6001)], before)
    clock[0] += 1.5
    opened.connect()
    assert opened.places == [("10.0.0.1", 6001), ("10.0.0.2", 6002)]


def test_it_stays_where_no_sentinel_knows_better(named: Named, clock: list[float]) -> None:
    opened = connection()
    opened.connect()
    named.address = MasterNotFoundError("no Sentinel answers")
    clock[0] += 1.5
    opened.connect()
    assert opened.places == [("10.0.0.1", 6001)]


def test_without_a_primary_it_says_why_and_what_to_set(named: Named) -> None:
    named.address = MasterNotFoundError("no Sentinel answers")
    opened = connection()
    with pytest.raises(MasterNotFoundError, match="no Sentinel answers"):
        opened.connect()
    assert "CELERY_AGENTS_BROKER_URL" in opened._sentinels.setting


def test_one_with_tls_does_the_same() -> None:
    options = {"connection_class": PrimaryTlsConnection, "ssl_cert_reqs": "required"}
    pool = SentinelConnectionPool("main", Sentinel([("s1", 1)]), **options)
    made = pool.connection_class(**pool.connection_kwargs)
    assert isinstance(made, (PrimaryConnection, SSLConnection))
    assert (type(made).connect, type(made).connect_to) == (PrimaryConnection.connect, PrimaryConnection.connect_to)
    assert type(made)._connect is SSLConnection._connect  # type: ignore[attr-defined]
