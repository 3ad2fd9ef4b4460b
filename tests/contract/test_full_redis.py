"""A Redis at its memory limit."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from celery_agents.worker.engine import stop_transition
from celery_agents.worker.errors import (
    SessionDeleted,
    SessionNotFound,
    StateUnreadable,
    StoreFull,
    StoreUnavailable,
)
from celery_agents.worker.store import Attempt, NewDelta
from celery_agents.worker.store.redis.database import connect

from support.asking import a_request, approve, ask, open_requests, wait
from support.redis_server import RedisServer
from support.store import Bench

pytestmark = pytest.mark.leaves_keys("sessions are left in the middle of an execution")


class Full:
    """A Redis that can be filled."""

    def __init__(self, server: RedisServer) -> None:
        self.client = server.client()

    def __enter__(self) -> Full:
        self.client.config_set("maxmemory", 1)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.config_set("maxmemory", 0)


@pytest.fixture
def full(redis_server: RedisServer) -> Full:
    return Full(redis_server)


@pytest.fixture
def on_redis(redis_url: str) -> Iterator[Bench]:
    opened = connect(redis_url, timeout_seconds=5, connections=16, name="contract")
    found = Bench(opened)
    found.submit()
    yield found
    opened.close()


def test_a_full_redis_refuses_a_submit_and_writes_nothing(on_redis: Bench, full: Full) -> None:
    with full, pytest.raises(StoreFull):
        on_redis.submit("another", execution=uuid.uuid4().hex)
    with pytest.raises(SessionNotFound):
        on_redis.store.sessions.header("another")


def test_a_table_of_clients_that_is_full_says_what_to_do(redis_server: RedisServer) -> None:
    with redis_server.client() as admin:
        (most,) = admin.config_get("maxclients").values()
        admin.config_set("maxclients", 1)
        database = connect(redis_server.url(), timeout_seconds=5, connections=1, name="contract")
        with pytest.raises(StoreUnavailable, match="raise maxclients, or end clients"):
            database.pipeline("any", [("PING",)])
        admin.config_set("maxclients", most)
    database.close()


def test_a_full_redis_takes_a_deletion_which_makes_room(on_redis: Bench, full: Full) -> None:
    on_redis.commit(on_redis.claim(), final=True)
    with full:
        assert on_redis.store.sessions.delete(on_redis.session).outcome == "changed"
    with pytest.raises(SessionDeleted):
        on_redis.submit()


def test_a_full_redis_takes_a_paid_answer_and_a_result(on_redis: Bench, full: Full) -> None:
    claim = on_redis.claim().claim
    with full:
        assert on_redis.store.steps.record_answer(claim, b"paid") == b"paid"
        assert on_redis.store.steps.record_answer(claim, b"again") == b"paid"
        on_redis.store.steps.record_results(claim, {0: b"done"})
    on_redis.end_lease(claim)
    journal = on_redis.claim().loaded.journal
    assert (journal.answer, journal.results) == (b"paid", {0: b"done"})


def test_a_full_redis_refuses_a_commit_which_succeeds_later(on_redis: Bench, full: Full) -> None:
    claimed = on_redis.claim()
    before = on_redis.snapshot()
    with full:
        with pytest.raises(StoreFull):
            on_redis.commit(claimed)
        assert on_redis.store.steps.renew([claimed.claim])[0].alive is True
    assert on_redis.snapshot() == before
    assert on_redis.commit(claimed).version == 2


def test_a_full_redis_refuses_messages_and_stops(on_redis: Bench, full: Full) -> None:
    before = on_redis.snapshot()
    with full:
        with pytest.raises(StoreFull):
            on_redis.message("more")
        with pytest.raises(StoreFull):
            on_redis.store.sessions.stop(on_redis.session, None, stop_transition)
    assert on_redis.snapshot() == before


def test_a_full_redis_refuses_a_request_and_a_wait_which_succeed_later(on_redis: Bench, full: Full) -> None:
    claimed = on_redis.claim()
    request = a_request(on_redis)
    with full, pytest.raises(StoreFull):
        open_requests(on_redis, claimed, request)
    journal = open_requests(on_redis, claimed, request)
    before = on_redis.snapshot()
    with full, pytest.raises(StoreFull):
        wait(on_redis, claimed, journal, {0: b"pure"})
    assert on_redis.snapshot() == before
    assert wait(on_redis, claimed, journal, {0: b"pure"}).open == (request,)


def test_a_full_redis_refuses_answers_and_holds_which_succeed_later(on_redis: Bench, full: Full) -> None:
    request = a_request(on_redis)
    ask(on_redis, request)
    before = on_redis.snapshot()
    with full:
        with pytest.raises(StoreFull):
            approve(on_redis, request)
        with pytest.raises(StoreFull):
            on_redis.store.sessions.suspend(on_redis.session, reason="why")
    assert on_redis.snapshot() == before
    assert approve(on_redis, request).outcome == "woken"


def test_a_key_of_another_type_is_damage_and_not_a_crash(bench: Bench) -> None:
    keys = bench.store.context.keys(bench.session)
    bench.database("DEL", keys.inbox)
    bench.database("SET", keys.inbox, "not a list")
    with pytest.raises(StateUnreadable):
        bench.message("more")


def test_a_full_redis_refuses_live_text_and_the_step_goes_on(on_redis: Bench, full: Full) -> None:
    claimed = on_redis.claim()
    pieces = {Attempt(claimed.claim): [NewDelta(call=1, part="text", offset=0, text="live")]}
    with full, pytest.raises(StoreFull):
        on_redis.store.live.write(pieces)
    keys = on_redis.store.context.keys(on_redis.session)
    assert on_redis.database("HGET", keys.ctl, "live") is None
    assert on_redis.database("EXISTS", keys.live) == 0
    assert on_redis.commit(claimed).version == 2
