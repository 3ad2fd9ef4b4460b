"""Buckets where the store is a cluster: leases and journals are on other nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_agents.worker.flow.values import ModelEndpoint, ProviderFacts, ProviderLimit
from celery_agents.worker.store import Claim
from celery_agents.worker.store.flow.records import CallCounts, Reservation, Settlement
from celery_agents.worker.store.redis.cluster import connect_cluster

from support.cluster import ClusterGroup
from support.store import Bench

pytestmark = pytest.mark.leaves_keys("sessions are left in the middle of an execution")

M = ModelEndpoint("openai:m")
ONE_A_MINUTE = ProviderLimit("openai:m", rpm=1)


@pytest.fixture
def bench(cluster: ClusterGroup) -> Iterator[Bench]:
    cluster.clear()
    database = connect_cluster(cluster.url, timeout_seconds=5, connections=16, name="contract")
    made = Bench(database)
    made.submit()
    yield made
    database.close()


def reserve(bench: Bench, claim: Claim) -> Reservation:
    found = bench.store.flow.reserve(claim, M, ONE_A_MINUTE, call="1", cost={}, lease_ms=60_000)
    assert isinstance(found, Reservation)
    return found


def test_a_reservation_counts_as_long_as_its_worker_registers(bench: Bench) -> None:
    reserve(bench, bench.claim().claim)
    fleet = bench.store.context.fleet
    _, until = bench.database("ZRANGE", fleet.alive, 0, -1, "WITHSCORES")
    now_ms = bench.store.context.now_ms()
    assert now_ms < float(until) <= now_ms + 20_000
    bench.store.registry.register("worker", {}, {})
    _, again = bench.database("ZRANGE", fleet.alive, 0, -1, "WITHSCORES")
    assert float(again) >= float(until)
    bench.store.registry.register("one that has reserved nothing", {}, {})
    assert bench.database("ZCARD", fleet.alive) == 1
    bench.database("HDEL", fleet.workers, "worker", "one that has reserved nothing")


def test_an_answer_is_journaled_first_and_its_request_settled_then(bench: Bench) -> None:
    claim = bench.claim().claim
    asked = Settlement(reserve(bench, claim), ProviderFacts(kind="ok"), CallCounts("w1"), used={"requests": 1})
    bench.store.steps.record_answer(claim, b"raw", asked)
    assert asked.settled is None
    bench.store.flow.settle(asked)
    assert asked.settled is not None
    assert bench.database("ZCARD", bench.store.context.fleet.rate(M.digest).held) == 0
