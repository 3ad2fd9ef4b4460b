"""`CELERY_AGENTS_REPLICAS=1` with two replicas: nothing is confirmed that the one which may become primary lacks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_agents import AgentClient
from celery_agents.config.settings import Settings
from celery_agents.flow import ProviderLimit
from celery_agents.worker.errors import NotConfirmed

from support.redis_server import RedisServer
from support.sentinels import SENTINEL_MISSING, SentinelGroup, find_sentinel
from support.wait import wait_until

pytestmark = [
    pytest.mark.skipif(find_sentinel() is None, reason=SENTINEL_MISSING),
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:no worker has registered"),
]
LIMIT = ProviderLimit("openai:m", rpm=60)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[SentinelGroup]:
    # The Sentinels choose nothing by themselves meanwhile.
    with SentinelGroup(tmp_path, servers=3, sentinels=3, down_after_ms=60_000) as group:
        yield group


@pytest.fixture
def client(group: SentinelGroup) -> Iterator[AgentClient]:
    settings = Settings.build(redis_url=group.url, replicas=1, replica_timeout_seconds=0.5)
    with AgentClient(settings=settings) as client:
        client.limits.set(LIMIT)
        yield client


def follow(group: SentinelGroup, replica: RedisServer) -> None:
    with replica.client() as asked:
        asked.replicaof(group.primary.host, str(group.primary.port))
        wait_until(lambda: asked.info("replication")["master_link_status"] == "up", "it follows", 20)


def test_a_replica_that_was_made_primary_beside_the_primary_lets_nothing_be_confirmed(
    group: SentinelGroup, client: AgentClient
) -> None:
    """So begins each failover while the primary is there: `SENTINEL FAILOVER`, or a primary that was slow."""
    chosen, other = group.replicas
    with chosen.client() as asked:
        asked.replicaof("NO", "ONE")
    with other.client() as asked:
        assert asked.info("replication")["master_link_status"] == "up", "it still follows, and would confirm"
    with pytest.raises(NotConfirmed, match=f"{chosen.port} does not follow this primary"):
        client.limits.set(LIMIT)
    follow(group, chosen)
    client.limits.set(LIMIT)


def test_a_replica_that_has_not_caught_up_lets_nothing_be_confirmed(group: SentinelGroup, client: AgentClient) -> None:
    behind, _ = group.replicas
    with behind.client() as asked:
        asked.replicaof("127.0.0.1", "1")  # it has another primary, which does not answer
    with pytest.raises(NotConfirmed, match=f"{behind.port} does not follow this primary"):
        client.limits.set(LIMIT)
    follow(group, behind)
    client.limits.set(LIMIT)


@pytest.mark.parametrize("how", ["is gone", "stands still"])
def test_a_replica_that_answers_nobody_keeps_nothing_from_being_confirmed(
    group: SentinelGroup, client: AgentClient, how: str
) -> None:
    away, other = group.replicas
    away.kill() if how == "is gone" else away.pause()
    client.limits.set(LIMIT)
    other.kill()
    with pytest.raises(NotConfirmed, match="0 of 1 replicas have it"):
        client.limits.set(LIMIT)
    if how == "stands still":
        away.resume()
