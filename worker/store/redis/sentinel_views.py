"""Questions to Sentinels about the servers that they watch, and to these servers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import redis

from ....config.redis_urls import SENTINEL_SECONDS, SentinelUrl, uses_sentinels
from ...errors import StoreUnavailable
from ..database import KnownServer
from .pools import make_pool, make_sentinels

_Redis: Final[Any] = redis.Redis
_SERVER_SECONDS: Final = 0.5
"""A server that takes longer is taken for one that is away: nobody chooses it."""


@dataclass(frozen=True, slots=True)
class SentinelView:
    """One Sentinel's answer.

    Attributes:
        address: Host and port of the Sentinel.
        primary: Host and port of the server that it names; None: it does not watch this name, or does not answer.
        quorum: How many Sentinels have to agree that the primary is down.
        trouble: Why it does not answer; "" when it does.
    """

    address: str
    primary: str | None = None
    quorum: int = 0
    trouble: str = ""


def ask_sentinels(url: str) -> list[SentinelView]:
    """Ask each Sentinel of a URL for the primary, in the order of the URL."""
    named = SentinelUrl.parse(url)
    return [_view(address, answer, named.primary) for address, answer in make_sentinels(named).ask_all()]


def _view(address: str, answer: dict[str, Any] | str, name: str) -> SentinelView:
    if isinstance(answer, str):
        return SentinelView(address, trouble=answer)
    if (state := answer.get(name)) is None:
        return SentinelView(address)
    return SentinelView(address, primary=f"{state['ip']}:{state['port']}", quorum=state["quorum"])


@dataclass(frozen=True, slots=True)
class WatchedReplica:
    """A replica that Sentinels know, whether it follows or not.

    Attributes:
        host: Its host, as the Sentinels name it.
        priority: Its `replica-priority`.
    """

    host: str
    port: int
    priority: int


def watched_replicas(url: str) -> list[WatchedReplica]:
    """Ask the Sentinels for the replicas that they know; the longest answer counts, none where none answers.

    A URL without Sentinels has none.
    """
    if not uses_sentinels(url):
        return []
    named = SentinelUrl.parse(url)
    found: list[WatchedReplica] = []
    for client in make_sentinels(named).sentinels:
        try:
            states = client.sentinel_slaves(named.primary)
        except redis.RedisError:
            continue
        known = [WatchedReplica(each["ip"], int(each["port"]), int(each["slave-priority"])) for each in states]
        found = max(found, known, key=len)
    return found


class KnownServers:
    """The servers that the Sentinels of a URL know, asked again and again. Safe between threads."""

    def __init__(self, url: str) -> None:
        self._named = SentinelUrl.parse(url)
        self._sentinels = make_sentinels(self._named)

    def ask(self) -> list[KnownServer]:
        """Ask each server what it holds.

        Raises:
            StoreUnavailable: No Sentinel answers, or a server does not tell.
        """
        places = self._sentinels.find_servers(self._named.primary)
        if not places:
            raise StoreUnavailable("no Sentinel tells which servers there are")
        return [self._ask(*place) for place in sorted(places)]

    def _ask(self, host: str, port: int) -> KnownServer:
        pool = make_pool(self._named.server, timeout_seconds=_SERVER_SECONDS, host=host, port=port)
        try:
            with _Redis.from_pool(pool) as client:
                said = client.info("replication")
        except (redis.ConnectionError, redis.TimeoutError, OSError):
            return KnownServer(f"{host}:{port}")
        except redis.RedisError as error:
            raise StoreUnavailable(f"{host}:{port} does not tell what it holds: {error}") from None
        is_replica = said.get("role") != "master"
        is_linked = is_replica and said.get("master_link_status") == "up"
        if not (primary := str(said.get("master_replid", ""))):
            raise StoreUnavailable(f"{host}:{port} tells no replication id")
        return KnownServer(f"{host}:{port}", primary, is_replica=is_replica, is_linked=is_linked)


def replica_times(url: str) -> Iterator[tuple[str, float]]:
    """Ask each replica that answers for its time: its address, and its Unix time in seconds."""
    named = SentinelUrl.parse(url)
    for host, port in make_sentinels(named).discover_slaves(named.primary):
        pool = make_pool(named.server, timeout_seconds=SENTINEL_SECONDS, host=host, port=port)
        try:
            with _Redis.from_pool(pool) as client:
                seconds, micros = client.time()
        except (redis.RedisError, OSError):
            continue  # INFO of the primary tells which replicas follow
        yield f"{host}:{port}", seconds + micros / 1_000_000
