"""Redis over TLS, as most that are rented speak it: store, broker and clients, and a worker that is killed."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from celery_agents import AgentClient, AsyncAgentClient
from celery_agents.worker.errors import StoreUnavailable

from support.agents import call, plan
from support.ledger import Ledger
from support.redis_server import RedisServer
from support.tls_proxy import TlsProxy
from support.worker_process import WorkerProcess


@pytest.fixture
def proxy(redis_server: RedisServer, tmp_path: Path) -> Iterator[TlsProxy]:
    with TlsProxy(tmp_path, redis_server.port) as started:
        yield started


def test_jobs_survive_a_killed_worker_over_tls(
    new_worker: Callable[..., WorkerProcess], proxy: TlsProxy, ledger: Ledger
) -> None:
    lease = {"CELERY_AGENTS_LEASE_SECONDS": "2", "CELERY_AGENTS_LEASE_RENEW_SECONDS": "0.5"}
    env = {**ledger.env, **lease}
    doomed = new_worker(proxy.url, env={**env, "CELERY_AGENTS_CRASH": "c5:1:4"})
    client = AgentClient(proxy.url)
    steps = [[call("keyed", work="a"), call("keyed_async", work="b")], [call("keyed", work="c")]]
    jobs = [client.submit("planned", plan(*steps)) for _ in range(5)]
    doomed.wait(30)
    assert doomed.exit_code == -signal.SIGKILL
    new_worker(proxy.url, env=env)
    assert {job.result(timeout=40).status for job in jobs} == {"completed"}
    effects = Counter(entry["key"] for entry in ledger.entries() if entry["kind"] == "effect" and entry["effect"])
    assert list(effects.values()) == [1] * 3 * len(jobs)

    async def followed() -> list[str]:
        following = AsyncAgentClient(proxy.url)
        job = await following.submit("planned", plan())
        return [event.type async for event in job.events()]

    assert asyncio.run(followed())[-1] == "execution_completed"


def test_a_redis_whose_certificate_nobody_vouches_for_is_told_nothing(proxy: TlsProxy) -> None:
    with pytest.raises(StoreUnavailable, match="certificate"):
        AgentClient(f"rediss://localhost:{proxy.port}/0").submit("planned", plan())
