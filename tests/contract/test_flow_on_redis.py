"""Limits on a real Redis that is full, forgets its scripts, or lets a user run none; and its notices."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from celery_agents.config.settings import Settings
from celery_agents.flow import ModelEndpoint, Pause, ProviderLimit
from celery_agents.worker.flow.values import ProviderFacts, limit_field
from celery_agents.worker.store.flow.records import CallCounts, Refused, Reservation, Settled, Settlement
from celery_agents.worker.store.keys import FLEET, FLOW_CHANNEL
from celery_agents.worker.store.redis import database
from celery_agents.worker.store.redis.database import connect
from celery_agents.worker.store.redis.wake_ups import wake_ups

from support.redis_server import RedisServer
from support.store import Bench
from support.wait import wait_until

pytestmark = pytest.mark.leaves_keys("sessions are left in the middle of an execution")

M = ModelEndpoint("openai:m")
KEYS = FLEET.rate(M.digest)
LIMIT = ProviderLimit("openai:m", rpm=1)


def open_bench(url: str) -> Iterator[Bench]:
    opened = connect(url, timeout_seconds=5, connections=16, name="contract")
    found = Bench(opened)
    found.submit()
    yield found
    opened.close()


@pytest.fixture
def bench(redis_url: str) -> Iterator[Bench]:
    yield from open_bench(redis_url)


def ok(found: object) -> Settlement:
    assert isinstance(found, Reservation)
    return Settlement(found, ProviderFacts(), CallCounts("w"))


def test_a_full_redis_still_counts_requests(bench: Bench, redis_server: RedisServer) -> None:
    claim = bench.claim().claim
    with redis_server.client() as client:
        client.config_set("maxmemory", 1)
        try:
            first = bench.store.flow.reserve(claim, M, LIMIT, call="1", cost={}, lease_ms=9_000)
            second = bench.store.flow.reserve(claim, M, LIMIT, call="2", cost={}, lease_ms=9_000)
            asked = ok(first)
            # The answer takes the way for a full Redis, which settles nothing.
            assert bench.store.steps.record_answer(claim, b"raw", asked) == b"raw"
            assert asked.settled is None
            assert bench.store.flow.settle(asked) == Settled()
        finally:
            client.config_set("maxmemory", 0)
    assert isinstance(second, Refused)
    assert bench.database("ZCARD", KEYS.held) == 0


def test_a_redis_that_has_forgotten_the_script_keeps_the_answer_and_settles_afterwards(bench: Bench) -> None:
    claim = bench.claim().claim
    asked = ok(bench.store.flow.reserve(claim, M, LIMIT, call="1", cost={}, lease_ms=9_000))
    bench.database("SCRIPT", "FLUSH")
    assert bench.store.steps.record_answer(claim, b"raw", asked) == b"raw"
    assert asked.settled is None
    assert bench.store.flow.settle(asked) == Settled()
    assert bench.database("ZCARD", KEYS.held) == 0


def test_a_process_that_has_reserved_nothing_settles_in_a_round_trip_of_its_own(bench: Bench) -> None:
    claim = bench.claim().claim
    asked = Settlement(bench.store.flow.unreserved(claim, M, call="1"), ProviderFacts(), CallCounts("w"))
    bench.store.steps.record_answer(claim, b"raw", asked)
    assert asked.settled is None
    bench.store.flow.settle(asked)


def test_a_user_who_may_run_no_scripts_asks_without_limits(
    bench: Bench, redis_server: RedisServer, redis_url: str
) -> None:
    claim = bench.claim().claim
    with redis_server.client() as client:
        client.acl_setuser(
            "plain",
            enabled=True,
            nopass=True,
            keys=["*"],
            channels=["*"],
            categories=["+@all"],
            commands=["-evalsha", "-script"],
        )
        url = redis_url.replace("://", "://plain:x@")
        for plain in open_bench(url):
            found = plain.store.flow.reserve(claim, M, ProviderLimit("openai:m", rpm=0), call="1", cost={}, lease_ms=9)
            assert plain.store.flow.settle(ok(found)) == Settled()
        client.acl_deluser("plain")


def test_a_user_who_may_run_scripts_again_runs_them(
    redis_server: RedisServer, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "FORBIDDEN_SECONDS", 0.0)
    opened = connect(redis_url.replace("://", "://plain:x@"), timeout_seconds=5, connections=1, name="contract")
    with redis_server.client() as client:
        for rules, expected in (("-@scripting", None), ("+@scripting", [])):
            client.execute_command("ACL", "SETUSER", "plain", "on", "nopass", "~*", "+@all", rules)
            assert opened.compare_and_apply("test", [(("GET", "ca:none"), [""])], []) == expected
        opened.close()
        client.acl_deluser("plain")


def test_workers_hear_of_every_change(bench: Bench, redis_url: str) -> None:
    ended, listening, heard = threading.Event(), threading.Event(), list[tuple[str, str]]()
    notices = wake_ups(Settings.build(redis_url=redis_url), (FLOW_CHANNEL, "ca:wake:w"), ended)

    def listen() -> None:
        for notice in notices:
            heard.append(notice)
            listening.set()

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        assert listening.wait(10)
        flow, claim = bench.store.flow, bench.claim().claim
        flow.set_value(LIMIT)
        flow.remove_value(limit_field("openai:m", None))
        flow.pause(Pause("tool", "t", reason="r"))
        flow.unpause("tool", "t")
        facts = ProviderFacts(kind="rate_limit", retry_after=1.0)
        for call in ("1", "2"):
            flow.settle(Settlement(flow.unreserved(claim, M, call=call), facts, CallCounts("w")))
        changed = ["limit:openai:m", "limit:openai:m", "pause:tool:t", "pause:tool:t", f"bucket:{M.digest}"]
        expected = [(FLOW_CHANNEL, ""), ("ca:wake:w", ""), *((FLOW_CHANNEL, field) for field in changed)]
        wait_until(lambda: len(heard) >= len(expected), "all changes were heard")
        assert heard == expected, "the second refusal tells nothing new"
    finally:
        ended.set()
        thread.join()
