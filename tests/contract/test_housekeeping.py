"""Registry, callbacks, due index and sweep, on every store."""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import Any

import pytest

from celery_agents.worker.engine import retry_transition
from celery_agents.worker.errors import (
    ClaimLost,
)
from celery_agents.worker.store import (
    Callback,
    NotClaimed,
    NotClaimedReason,
    QueueSnapshot,
    Result,
)
from celery_agents.worker.store.database import Database
from celery_agents.worker.store.keys import PERMANENT
from celery_agents.worker.store.labels import labels_range
from celery_agents.worker.store.memory.database import MemoryDatabase

from support.store import Bench, fleet_of, step_transition
from support.wait import wait_until

pytestmark = pytest.mark.leaves_keys("sessions are left in the middle of an execution")


# --- the registry -----------------------------------------------------------------------------------------------------


UNREADABLE = ["", "no JSON", "[]", "7", "{}", '{"seen": "yesterday"}', '{"seen": 1, "agents": 7, "hash": 7}', "\udcff"]


@pytest.mark.parametrize("entry", UNREADABLE)
def test_an_entry_of_the_registry_that_cannot_be_read_hides_no_other_and_goes_away(
    database: Database, entry: str
) -> None:
    store, worker = Bench(database).store, f"w{uuid.uuid4().hex[:8]}"
    store.registry.register(worker, {"slots": 3, "running": 1, "draining": False}, {"agent": "hash"})
    database.pipeline(
        "test", [("HSET", fleet_of(database).workers, "broken", entry.encode("utf-8", "surrogateescape"))]
    )
    database.pipeline("test", [("HSET", fleet_of(database).agents, "broken", entry.encode("utf-8", "surrogateescape"))])
    assert store.registry.workers()[worker]["slots"] == 3
    assert "broken" not in store.registry.workers()
    assert store.registry.agents()["agent"]["hash"] == "hash"
    assert store.registry.agents()["broken"]["hash"] == ""  # its name is all that is known
    store.housekeeping.prune()
    assert database.pipeline("test", [("HGET", fleet_of(database).workers, "broken")]) == [None]
    database.pipeline(
        "test", [("HDEL", fleet_of(database).agents, "broken"), ("HDEL", fleet_of(database).workers, worker)]
    )


@pytest.mark.parametrize("name", ["7", "null", "{}", '["gpu"]', '"\\ud800"'])
def test_of_names_in_the_registry_those_that_are_none_are_left_out(database: Database, name: str) -> None:
    store, worker = Bench(database).store, f"w{uuid.uuid4().hex[:8]}"
    store.registry.register(worker, {"queues": ["", "gpu", "ODD"], "host": "ODD", "group": "ODD"}, {"odd": "hash"})
    (entry,) = database.pipeline("test", [("HGET", fleet_of(database).workers, worker)])
    database.pipeline("test", [("HSET", fleet_of(database).workers, worker, entry.replace(b'"ODD"', name.encode()))])
    facts = store.registry.workers()[worker]
    assert (facts["queues"], facts["host"], facts["group"]) == (["", "gpu"], "", "")
    assert store.registry.offers()["odd"] == ("", "gpu")
    store.registry.unregister(worker)
    database.pipeline("test", [("HDEL", fleet_of(database).agents, "odd")])


def test_a_worker_learns_whether_the_store_knew_of_it(database: Database) -> None:
    store, worker = Bench(database).store, f"w{uuid.uuid4().hex[:8]}"
    assert [store.registry.register(worker, {}, {}) for _ in range(2)] == [True, False]
    store.registry.unregister(worker)  # or Redis has lost it
    assert store.registry.register(worker, {}, {"agent": "hash"})
    store.registry.unregister(worker)
    database.pipeline("test", [("HDEL", fleet_of(database).agents, "agent")])


# --- callbacks --------------------------------------------------------------------------------------------------------


@pytest.fixture
def told(database: Database) -> Bench:
    """A session of which somebody wants to hear, whose execution has failed."""
    bench = Bench(database)
    bench.submit(notify={"webhook": "https://example.com/ended"})
    claimed = bench.claim()
    transition = step_transition(claimed, final=True, failed=True)
    bench.store.steps.commit(claimed.claim, claimed.loaded, transition, results={}, keep_claim=False)
    return bench


def _end_retried(bench: Bench) -> None:
    bench.store.sessions.retry(bench.session, retry_transition(None))
    bench.commit(bench.claim(2), final=True)


def _failing_callbacks(bench: Bench) -> list[tuple[str, int]]:
    found = bench.store.housekeeping.failing_callbacks()
    return [(each.kind, each.attempts) for each in found if each.session_id == bench.session]


def _due_callbacks(bench: Bench) -> list[Callback]:
    found = bench.store.housekeeping.due_callbacks(limit=100_000, hold_ms=60_000)
    return [callback for callback in found if callback.session_id == bench.session]


def test_an_end_is_told_until_it_was_heard(told: Bench) -> None:
    (callback,) = _due_callbacks(told)
    assert (callback.kind, callback.target, callback.about.status) == (
        "webhook",
        "https://example.com/ended",
        "failed",
    )
    assert _failing_callbacks(told) == []
    told.store.housekeeping.fail_callback(callback, delay_ms=0, reason="nobody there")
    assert _failing_callbacks(told) == [(callback.kind, 1)]
    (again,) = _due_callbacks(told)
    assert (again.about, again.attempts) == (callback.about, 1)
    told.store.housekeeping.finish_callback(again)
    assert _due_callbacks(told) == _failing_callbacks(told) == []


@pytest.mark.parametrize("heard", [True, False])
def test_an_end_after_a_retry_is_told_whatever_becomes_of_the_one_before(told: Bench, heard: bool) -> None:
    (before,) = _due_callbacks(told)
    _end_retried(told)
    if heard:
        told.store.housekeeping.finish_callback(before)
    else:
        told.store.housekeeping.fail_callback(before, delay_ms=None, reason="nobody there")
    (after,) = _due_callbacks(told)
    assert isinstance(after.about, Result)
    assert (after.about.status, after.about.retries, after.attempts) == ("completed", 1, 0)


def test_of_ends_that_nobody_was_told_of_the_last_is_told(told: Bench) -> None:
    _end_retried(told)
    (callback,) = _due_callbacks(told)
    assert (callback.about.status, callback.about.retries) == ("completed", 1)
    told.store.housekeeping.finish_callback(callback)
    outbox = told.store.context.keys(told.session).shard.callbacks
    assert not [
        note for note in told.database("ZRANGEBYSCORE", outbox, "-inf", "+inf") if told.session.encode() in note
    ]


def test_a_callback_is_delayed_although_its_session_is_saved_at_that_moment(told: Bench) -> None:
    (callback,) = _due_callbacks(told)
    session = told.store.context.keys(told.session).session
    told.spy.before("callbacks.later", lambda: told.database("HSET", session, "beside", 1))
    told.store.housekeeping.fail_callback(callback, delay_ms=0, reason="nobody there")
    (again,) = _due_callbacks(told)
    assert again.attempts == 1


def test_a_count_of_failures_that_is_none_hides_no_other_finding(told: Bench) -> None:
    (callback,) = _due_callbacks(told)
    told.store.housekeeping.fail_callback(callback, delay_ms=0, reason="nobody there")
    session = told.store.context.keys(told.session).session
    (name,) = (each for each in told.database("HGETALL", session)[::2] if each.startswith(b"told:"))
    for value in ("9" * 5000, "-1", "many"):
        told.database("HSET", session, name, value)
        assert _failing_callbacks(told) == []


def test_what_is_no_callback_is_put_to_the_dead_and_others_are_made(told: Bench) -> None:
    outbox = told.store.context.keys(told.session).shard.callbacks
    told.database("ZADD", outbox, 1, "gibberish")
    assert _failing_callbacks(told) == []
    assert len(_due_callbacks(told)) == 1
    assert b"gibberish" not in told.database("ZRANGEBYSCORE", outbox, "-inf", "+inf")
    assert told.store.housekeeping.list_dead()[0]["kind"] == "callback"


# --- the due index and the sweep --------------------------------------------------------------------------------------


def swept(bench: Bench, lookout: QueueSnapshot | None = None) -> Any:
    return bench.store.housekeeping.sweep(lookout or QueueSnapshot())


def test_a_lost_step_is_named_once_and_moved(bench: Bench) -> None:
    bench.make_due()
    assert [(ref.session_id, ref.step) for ref in swept(bench).lost] == [(bench.session, 1)]
    moved = bench.due()
    assert moved is not None
    assert moved > 1
    assert swept(bench).lost == ()


def test_what_is_not_due_is_not_looked_at(bench: Bench) -> None:
    before = bench.due()
    found = swept(bench)
    assert (found.lost, found.live, found.queued) == ((), 0, 0)
    assert bench.due() == before


def test_a_live_step_is_moved_to_its_leases_end(bench: Bench) -> None:
    bench.claim()
    bench.make_due()
    found = swept(bench)
    assert (found.lost, found.live) == ((), 1)
    due = bench.due()
    assert due is not None
    assert due > bench.store.housekeeping.now_ms()


def test_a_step_that_is_delayed_while_the_sweep_looks_keeps_its_time(bench: Bench) -> None:
    def delay() -> None:
        bench.store.steps.release(bench.claim().claim, delay_ms=3_600_000, give_back=True)

    bench.make_due()
    bench.spy.before("sweep.pass", delay)
    assert swept(bench).lost == ()
    due = bench.due()
    assert due is not None
    assert due > bench.store.housekeeping.now_ms() + 3_000_000


def test_a_step_whose_message_is_still_queued_waits(bench: Bench) -> None:
    bench.make_due()
    found = swept(bench, QueueSnapshot(oldest_ms=1))
    assert (found.lost, found.queued) == ((), 1)


@pytest.mark.one_server("each server has a share of the room")
def test_no_more_is_published_than_there_is_room_for(bench: Bench) -> None:
    others = [f"{bench.session}-{number}" for number in range(3)]
    for other in others:
        bench.submit(other, execution=uuid.uuid4().hex)
    for number, session in enumerate([bench.session, *others]):
        bench.database("ZADD", bench.store.context.keys(session).shard.due, number + 1, session)
    assert len(swept(bench, QueueSnapshot(capacity=2)).lost) == 2
    assert len(swept(bench, QueueSnapshot(capacity=5)).lost) == 2


def test_an_ended_session_in_the_index_is_removed_and_never_revived(bench: Bench) -> None:
    bench.commit(bench.claim(), final=True)
    bench.make_due()
    assert swept(bench).lost == ()
    assert bench.due() is None


def test_each_further_publication_waits_longer_and_a_claim_starts_over(bench: Bench) -> None:
    waits: list[float] = []
    for _ in range(3):
        bench.make_due()
        swept(bench)
        due = bench.due()
        assert due is not None
        waits.append(due - bench.store.housekeeping.now_ms())
    assert waits[0] < waits[1] < waits[2]
    bench.end_lease(bench.claim().claim)
    bench.make_due()
    swept(bench)
    due = bench.due()
    assert due is not None
    assert due - bench.store.housekeeping.now_ms() < waits[1]


def test_after_a_start_of_redis_the_sweep_waits_one_lease(bench: Bench) -> None:
    bench.clock.up_for = 0.5
    bench.make_due()
    assert swept(bench).lost == ()
    assert bench.due() == 1


def test_after_a_start_of_redis_a_claim_waits_for_its_holder(bench: Bench) -> None:
    first = bench.claim().claim
    bench.end_lease(first)
    bench.clock.up_for = 0.5
    assert bench.answer() == NotClaimed(NotClaimedReason.RESTARTED)


def test_one_worker_at_a_time_sweeps_a_shard(bench: Bench) -> None:
    assert bench.store.housekeeping.lock_sweep(bench.store.context.shards, "one", 60_000) is True
    assert bench.store.housekeeping.lock_sweep(bench.store.context.shards, "two", 60_000) is False
    assert bench.store.housekeeping.lock_sweep(bench.store.context.shards, "one", 60_000) is True


# --- what stays -------------------------------------------------------------------------------------------------------


def test_after_the_end_every_key_has_a_life_or_is_permanent(bench: Bench) -> None:
    slept = bench.claim()
    bench.message("more")
    bench.end_lease(slept.claim)
    bench.commit(bench.claim())
    bench.commit(bench.claim(2), final=True)
    with contextlib.suppress(ClaimLost):
        bench.commit(slept)
    inner = bench.spy.inner
    names = (
        inner.keys() if isinstance(inner, MemoryDatabase) else [name.decode() for name in bench.database("KEYS", "*")]
    )
    assert [n for n in names if bench.database("PTTL", n) == -1 and not PERMANENT.match(n)] == []


def test_a_session_whose_keys_live_longer_than_its_end_was_noted_for_is_pruned_when_they_have_gone(
    database: Database,
) -> None:
    """Its life begins with the commit, which may come long after the time that it has read."""
    bench = Bench(database, retention_seconds=0.3)
    bench.submit(labels={"customer": "42"})
    claimed = bench.claim()
    bench.spy.before(bench.commits_at, lambda: time.sleep(0.2))
    bench.commit(claimed, final=True)
    keys = bench.store.context.keys(bench.session)
    indexes = [(keys.shard.sessions, "ZSCORE"), (keys.shard.ending, "ZSCORE")]
    deadline = time.monotonic() + 5
    while bench.database("EXISTS", keys.session) or bench.database("ZSCORE", keys.shard.ending, bench.session):
        assert time.monotonic() < deadline
        bench.store.housekeeping.prune()
        time.sleep(0.01)
    assert [bench.database(read, index, bench.session) for index, read in indexes] == [None, None]
    assert bench.database("ZRANGEBYLEX", keys.shard.labels, *labels_range(bench.session)) == []


def test_keys_to_which_an_earlier_build_gave_no_time_to_live_go_with_their_session(database: Database) -> None:
    bench = Bench(database, retention_seconds=0.3)
    bench.submit()
    bench.commit(bench.claim(), final=True)
    keys = bench.store.context.keys(bench.session)
    left = {keys.old_values: ("HSET", "head:1.1", "old"), keys.next: ("RPUSH", "a message")}
    for key, (command, *values) in left.items():
        bench.database("DEL", key)
        bench.database(command, key, *values)
    bench.store.housekeeping.prune()
    assert bench.database("EXISTS", *left) == len(left)

    def is_pruned() -> bool:
        bench.store.housekeeping.prune()
        return bench.database("EXISTS", *left) == 0

    wait_until(is_pruned, "they are gone", 5)


def test_a_queue_in_the_store_s_redis_tells_its_length_and_what_leaves_next(bench: Bench) -> None:
    house, queue = bench.store.housekeeping, f"queue-{bench.session}"
    assert (house.queue_length(queue), house.oldest_message(queue)) == (0, None)
    bench.database("LPUSH", queue, "first", "second")
    assert (house.queue_length(queue), house.oldest_message(queue)) == (2, b"first")
    bench.database("DEL", queue)


def test_lost_steps_are_not_published_where_the_queue_is_elsewhere(bench: Bench) -> None:
    assert not bench.store.housekeeping.publish([bench.ref()], 1)


def test_a_worker_that_does_not_tell_what_it_misses_misses_nothing(bench: Bench) -> None:
    bench.store.registry.register("mute", {"slots": 1}, {})
    assert bench.store.registry.workers()["mute"]["missing"] == []
    bench.store.registry.unregister("mute")
