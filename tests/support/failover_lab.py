"""A lab whose Redis is a primary with replicas and Sentinels, so that it can fail over."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from celery_agents import AgentClient

from .hosts import Hosts
from .http_service import ServiceProcess
from .lab import Lab
from .redis_server import RedisServer
from .sentinels import MASTER, SentinelGroup


class FailoverLab(Lab):
    """Everything of one scenario with failovers; its clients and workers know the Sentinels alone.

    Args:
        group: More arguments of `SentinelGroup`.
        apart: Each server with its Sentinel on a host of its own; the lab is on another one.
        options: Those of `Lab`.
    """

    def __init__(
        self, directory: Path, *, group: Mapping[str, Any] | None = None, apart: bool = False, **options: Any
    ) -> None:
        super().__init__(directory, **options)
        self.hosts = Hosts(directory / "hosts") if apart else None
        if self.hosts is not None:
            self.service = ServiceProcess("support.ledger", directory / "ledger", self.hosts.service)
            self.settings_env["NO_PROXY"] = "*"
        self.group = SentinelGroup(directory / "group", hosts=self.hosts, **(group or {}))

    def _start_redis(self) -> redis.Redis:
        if self.hosts is not None:
            self._closing.append(self.hosts.end)
            self.hosts.start()
        self._closing.append(self.group.end)
        self.group.start()
        sentinel = Sentinel(self.group.places, sentinel_kwargs={"socket_timeout": 1, "retry": None})
        return sentinel.master_for(MASTER, decode_responses=True, socket_timeout=2, retry=Retry(NoBackoff(), 0))

    @property
    def store_url(self) -> str:
        """The Sentinels' address."""
        return self.group.url

    def new_client(self, port: int | None = None) -> AgentClient:
        """A client with this lab's settings."""
        assert port is None, "no proxy stands in front of Sentinels"
        return self._client(self.group.url)

    def connect_again(self) -> None:
        """Let the lab's own clients ask the Sentinels."""
        self.redis.connection_pool.disconnect()
        self.client = self.new_client()

    def kill_primary(self) -> RedisServer:
        """End the primary at once, and wait for the next; the one that was killed."""
        before = self.group.primary
        before.kill()
        self.group.wait_for_failover(before)
        return before
