"""A real worker: `python -m celery_agents worker` in a process of its own, to be killed, paused and asked to leave."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import redis

from .processes import TESTS, Process
from .wait import wait_until

# Printed by Celery once the worker consumes.
READY = "ready."


class WorkerProcess(Process):
    """One worker. `start` waits until it consumes and clients know its agents.

    Args:
        directory: Its working directory and the home of its log.
        redis_url: Store and broker; one of the database's own, or of a proxy in front.
        agents: Modules with agents, `CELERY_AGENTS_AGENTS`. `tests/` is on its path: "support.agents".
        env: More environment, for example {"CELERY_AGENTS_CRASH": "c5:1:7"}; None takes a name away.
        arguments: More arguments of the command.
        name: Of the log, when a test has several.
        fresh: See `Process`.
    """

    def __init__(
        self,
        directory: Path,
        redis_url: str,
        agents: str = "support.agents",
        *,
        env: Mapping[str, str | None] | None = None,
        arguments: Sequence[str] = (),
        name: str = "worker",
        fresh: bool = False,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.redis_url = redis_url
        super().__init__(
            name,
            [sys.executable, "-m", "celery_agents", "worker", *arguments],
            directory,
            {
                "PYTHONPATH": str(TESTS),
                "PYTHONFAULTHANDLER": "1",
                "CELERY_AGENTS_REDIS_URL": redis_url,
                "CELERY_AGENTS_AGENTS": agents,
                # Ledger and provider are on this machine, whatever proxy the environment names.
                "NO_PROXY": "127.0.0.1,localhost",
                **(env or {}),
            },
            fresh=fresh,
        )

    def start(self, *, wait: bool = True, timeout: float = 30.0) -> None:
        """Start it, and unless `wait` is False wait until it consumes and its agents are known.

        Raises:
            AssertionError: Not ready in time, or ended before; with the end of its log.
        """
        since = len(self.text())
        super().start()
        if wait:
            self.wait_for_text(READY, timeout, since=since)
            wait_until(self._is_registered, f"{self.name} has registered its agents", timeout, details=self.tail)

    def _is_registered(self) -> bool:
        from celery_agents.config.redis_urls import ClusterUrl, uses_cluster
        from celery_agents.worker.store import keys
        from celery_agents.worker.store.redis.pools import make_pool
        from celery_agents.worker.store.redis.topology import slot_of

        from .cluster import node_of

        assert self.alive, f"{self.name} ended with {self.exit_code}\n{self.tail()}"
        url, workers, place = self.redis_url, keys.FLEET.workers, dict[str, Any]()
        if uses_cluster(url):
            workers = keys.FleetKeys(is_apart=True).workers
            place["host"], place["port"] = node_of(url, slot_of(workers))
            url = ClusterUrl.parse(url).server
        with redis.Redis.from_pool(make_pool(url, timeout_seconds=5, **place)) as client:
            return any(json.loads(facts).get("pid") == self.pid for facts in client.hgetall(workers).values())

    def kill_alone(self) -> None:
        """SIGKILL the main process only, as the kernel's out-of-memory killer does; its pool children may live on."""
        self.signal(signal.SIGKILL)
        self.wait(10)

    def stop(self, timeout: float = 30.0) -> int:
        """SIGTERM, and wait for the drain to end; its exit code."""
        self.resume()
        self.terminate()
        return self.wait(timeout)
