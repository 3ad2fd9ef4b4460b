"""A lab whose store is a Redis Cluster, and whose broker is a Redis of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis

from celery_agents import AgentClient

from .cluster import ClusterGroup
from .lab import Lab


class ClusterLab(Lab):
    """Everything of one scenario with a cluster; its clients and workers know three of its nodes.

    Args:
        group: More arguments of `ClusterGroup`.
        options: Those of `Lab`.
    """

    def __init__(self, directory: Path, *, group: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(directory, **options)
        self.group = ClusterGroup(directory / "cluster", **(group or {}))

    def _start_redis(self) -> redis.Redis:
        super()._start_redis().close()  # the broker
        self._closing.append(self.group.end)
        self.group.start()
        return self.group.client()

    @property
    def store_url(self) -> str:
        """The address of the cluster."""
        return self.group.url

    @property
    def broker_url(self) -> str:
        """The broker's."""
        return self.server.url()

    def new_client(self, port: int | None = None) -> AgentClient:
        """A client with this lab's settings."""
        assert port is None, "no proxy stands in front of a cluster"
        return self._client(self.group.url)

    def now_ms(self) -> int:
        """The time of one of the nodes."""
        return self.client.store.context.now_ms()

    def connect_again(self) -> None:
        """Let redis-py's client of the lab find the nodes again."""
        self.redis.close()
        self.redis = self.group.client()
