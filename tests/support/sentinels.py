"""Redis with replicas and Sentinels of our own, on free ports: what a failover happens to."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .hosts import Hosts
from .processes import Process, ProcessGroup, free_port
from .redis_server import RedisServer
from .wait import wait_until

SENTINEL_MISSING = "redis-sentinel is not on this machine (Debian: apt-get install redis-sentinel)"
MASTER = "mymaster"


def find_sentinel() -> str | None:
    """The redis-sentinel on PATH; None: this machine has none."""
    return shutil.which("redis-sentinel")


class SentinelGroup(ProcessGroup):
    """Servers that replicate the first, watched by Sentinels; the address of a group that fails over by itself.

    Args:
        directory: Home of the data and the logs.
        servers: How many servers, the first primary included.
        down_after_ms: A server that does not answer for this long is down to a Sentinel.
        failover_ms: A failover that takes longer is tried again, after twice this time.
        config: More settings of each server.
        hosts: Where they are: a server and a Sentinel on each, as many as there are hosts. None: on this one.
    """

    def __init__(
        self,
        directory: Path,
        *,
        servers: int = 3,
        sentinels: int = 3,
        down_after_ms: int = 1_000,
        failover_ms: int = 5_000,
        config: Mapping[str, str] | None = None,
        hosts: Hosts | None = None,
    ) -> None:
        self.directory = directory
        self.hosts = hosts
        self._timing = (down_after_ms, failover_ms)
        settings = {"repl-diskless-sync-delay": "0", "repl-timeout": "5", "repl-ping-replica-period": "1"}
        self.servers = [
            RedisServer(
                directory / f"redis-{number}", append_only="everysec", config={**settings, **(config or {})},
                host=self._address(number),
            )
            for number in range(1, servers + 1)
        ]  # fmt: skip
        self.ports = [free_port() for _ in range(sentinels)]
        self.sentinels: list[Process] = []

    def start(self) -> Self:
        """Start all, and wait until the Sentinels know each other and the replicas follow."""
        for number, server in enumerate(self.servers, 1):
            server.prefix = self.hosts.prefix(number) if self.hosts is not None else ()
        first, *others = (server.start() for server in self.servers)
        for server in others:
            with server.client() as client:
                client.replicaof(first.host, str(first.port))
        # A Sentinel asks the primary for its replicas every ten seconds: one that comes earlier learns of them late.
        wait_until(
            lambda: self._following_of(first) == len(others), "the replicas follow", 30, ignoring=(redis.RedisError,)
        )
        for number, port in enumerate(self.ports, 1):
            self.sentinels.append(self._start_sentinel(number, port, first))
        wait_until(
            self._is_ready, "the Sentinels know servers and each other", 60,
            ignoring=(redis.RedisError,), details=self._tails,
        )  # fmt: skip
        return self

    def _address(self, number: int) -> str:
        return "127.0.0.1" if self.hosts is None else self.hosts.address(number)

    def _start_sentinel(self, number: int, port: int, primary: RedisServer) -> Process:
        folder = self.directory / f"sentinel-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        down_after, failover = self._timing
        quorum = len(self.ports) // 2 + 1
        (folder / "sentinel.conf").write_text(
            f"port {port}\nbind {self._address(number)}\nprotected-mode no\ndir {folder}\n"
            f"sentinel monitor {MASTER} {primary.host} {primary.port} {quorum}\n"
            f"sentinel down-after-milliseconds {MASTER} {down_after}\n"
            f"sentinel failover-timeout {MASTER} {failover}\n"
            f"sentinel parallel-syncs {MASTER} 2\n"
        )
        binary = find_sentinel()
        assert binary is not None, SENTINEL_MISSING
        sentinel = Process("redis-sentinel", [binary, str(folder / "sentinel.conf")], folder)
        sentinel.prefix = self.hosts.prefix(number) if self.hosts is not None else ()
        sentinel.start()
        return sentinel

    @property
    def places(self) -> list[tuple[str, int]]:
        """Host and port of each Sentinel."""
        return [(self._address(number), port) for number, port in enumerate(self.ports, 1)]

    @property
    def url(self) -> str:
        """The group's address."""
        hosts = ",".join(f"{host}:{port}" for host, port in self.places)
        return f"redis+sentinel://{hosts}/{MASTER}/0"

    def sentinel_client(self, number: int = 0) -> redis.Redis:
        """A client of one Sentinel."""
        host, port = self.places[number]
        return redis.Redis(host=host, port=port, decode_responses=True, socket_timeout=1, retry=Retry(NoBackoff(), 0))

    @property
    def primary(self) -> RedisServer:
        """The server that the newest configuration of a Sentinel names."""
        states: list[dict[str, Any]] = []
        for number in range(len(self.ports)):
            with contextlib.suppress(redis.RedisError), self.sentinel_client(number) as client:
                states.append(client.sentinel_masters()[MASTER])
        newest = max(states, key=lambda state: state["config-epoch"])
        return next(each for each in self.servers if (each.host, each.port) == (newest["ip"], newest["port"]))

    @property
    def replicas(self) -> list[RedisServer]:
        """The other servers."""
        primary = self.primary
        return [server for server in self.servers if server is not primary]

    def wait_for_failover(self, before: RedisServer, timeout: float = 30.0) -> RedisServer:
        """Wait until the Sentinels name another primary than before, which takes writes."""

        def is_moved() -> bool:
            found = self.primary
            if found is before:
                return False
            with found.client() as client:
                return client.role()[0] == "master"  # type: ignore[index]

        wait_until(is_moved, "another server is primary", timeout, ignoring=(redis.RedisError,))
        return self.primary

    def wait_for_replicas(self, count: int | None = None, timeout: float = 60.0) -> None:
        """Wait until so many replicas follow the primary, by default all others."""
        wanted = len(self.servers) - 1 if count is None else count
        wait_until(lambda: self._following() >= wanted, "the replicas follow", timeout, ignoring=(redis.RedisError,))

    def wait_until_settled(self, timeout: float = 90.0) -> None:
        """Wait until all Sentinels name one primary, and every other server follows it."""

        def is_settled() -> bool:
            named: set[tuple[str, int]] = set()
            for number in range(len(self.ports)):
                with self.sentinel_client(number) as client:
                    state = client.sentinel_masters()[MASTER]
                    named.add((state["ip"], int(state["port"])))
            return len(named) == 1 and self._following() == len(self.servers) - 1

        wait_until(is_settled, "the group has settled", timeout, ignoring=(redis.RedisError,))

    def _following(self) -> int:
        return self._following_of(self.primary)

    @staticmethod
    def _following_of(server: RedisServer) -> int:
        with server.client() as client:
            found = client.info("replication")
        return sum(
            each.get("state") == "online"
            for name, each in found.items()
            if name.startswith("slave") and isinstance(each, dict)
        )

    def _is_ready(self) -> bool:
        assert all(each.alive for each in self.sentinels), f"a Sentinel has ended\n{self._tails()}"
        for number in range(len(self.ports)):
            with self.sentinel_client(number) as client:
                state = client.sentinel_masters()[MASTER]
            if state["num-other-sentinels"] < len(self.ports) - 1 or state["num-slaves"] < len(self.servers) - 1:
                return False
        return self._following() == len(self.servers) - 1

    def _tails(self) -> str:
        return "\n".join(each.tail() for each in self.sentinels)

    def end(self) -> None:
        """End all, whatever state they are in."""
        for sentinel in self.sentinels:
            sentinel.end(patience=0.0)
        for server in self.servers:
            server.end()
