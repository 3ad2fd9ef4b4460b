"""Nothing that the store keeps grows without a limit, and nothing of a session stays behind it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from celery_agents.worker.engine import operation_transition, retry_transition
from celery_agents.worker.errors import ActionRefused
from celery_agents.worker.store import EventType, NewEvent, NextState, Transition

from support.points import Points
from support.store import Bench, NewBench, an_operation
from support.wait import wait_until

pytestmark = pytest.mark.leaves_keys("sessions are left in the middle of an execution")


def test_the_inbox_is_limited_by_bytes(new_bench: NewBench) -> None:
    bench = new_bench(max_inbox_bytes=10_000)
    bench.submit()
    claimed = bench.claim()
    for number in range(3):
        assert bench.message("x" * 3_000, f"m{number}").outcome == "queued"
    with pytest.raises(ActionRefused, match="bytes of messages waiting"):
        bench.message("x" * 3_000, "m3")
    bench.commit(claimed)
    claimed = bench.claim(2)
    assert bench.message("x" * 3_000, "m3").outcome == "queued"
    bench.commit(claimed)
    said = [message.content for message in bench.store.sessions.load(bench.session).state.messages]
    assert said.count("x" * 3_000) == 4


def test_a_message_reads_nothing_of_what_waits(new_bench: NewBench) -> None:
    bench = new_bench()
    bench.submit()
    bench.claim()
    bench.message("x" * 100_000, "m1")
    bench.spy.sent.clear()
    bench.message("again", "m2")
    assert not any("LRANGE" in command for _, commands in bench.spy.sent for command in commands)


def test_a_message_whose_reply_was_lost_is_found_by_its_id(new_bench: NewBench) -> None:
    bench = new_bench()
    bench.submit()
    claimed = bench.claim()
    bench.message("first", "m1")
    bench.spy.lose(Points.ACT_PUSH)
    assert bench.message("second", "m2").outcome == "again"
    assert bench.message("first", "m1").outcome == "again"
    bench.commit(claimed)
    assert bench.message("second", "m2").outcome == "again"
    said = [message.content for message in bench.store.sessions.load(bench.session).state.messages]
    assert (said.count("first"), said.count("second")) == (2, 1)


def test_the_index_of_the_inbox_goes_with_its_entries(new_bench: NewBench) -> None:
    bench = new_bench()
    bench.submit()
    ctl = bench.store.context.keys(bench.session).ctl
    claimed = bench.claim()
    before = bench.database("HLEN", ctl)
    for number in range(5):
        bench.message("hello", f"m{number}")
    assert bench.database("HLEN", ctl) == before + 6
    bench.commit(claimed)
    assert bench.database("HLEN", ctl) == before


def test_a_session_that_is_too_large_takes_no_more(new_bench: NewBench) -> None:
    bench = new_bench(max_session_bytes=100_000)
    bench.submit()
    bench.message("x" * 80_000)
    with pytest.raises(ActionRefused, match="CELERY_AGENTS_MAX_SESSION_BYTES"):
        bench.message("x" * 80_000)


def test_a_quarantined_message_is_cut_where_it_is_stored(new_bench: NewBench) -> None:
    bench = new_bench()
    bench.store.housekeeping.quarantine("\ud800" + "x" * 3_000_000, "y" * 3_000_000)
    (entry,) = bench.store.housekeeping.list_dead()
    assert (len(entry["payload"]), len(entry["reason"])) == (2_005, 1_000)


def test_the_data_of_an_event_are_limited(new_bench: NewBench) -> None:
    bench = new_bench(max_event_bytes=2_000)
    bench.submit()
    claimed = bench.claim()
    data = {"status": "ok", "tools": ["a tool"] * 1_000, "number": 7}
    size = len(json.dumps(data, separators=(",", ":")))
    transition = with_event(NewEvent(EventType.STEP_COMMITTED, bench.execution, 1, data), claimed.loaded.state)
    bench.store.steps.commit(claimed.claim, claimed.loaded, transition, results={}, keep_claim=False)
    event = next(each for each in bench.store.sessions.events(bench.session) if each.type is EventType.STEP_COMMITTED)
    assert dict(event.data) == {"status": "ok", "number": 7, "left_out_bytes": size}


def with_event(event: NewEvent, state: Any) -> Transition:
    return lambda snapshot: NextState(state, events=(event,))


def test_a_session_keeps_the_steps_and_results_of_its_last_executions(new_bench: NewBench) -> None:
    bench = new_bench(executions_kept=2)
    bench.submit()
    ended: list[str] = []
    for number in range(4):
        bench.commit(bench.claim(), final=True)
        ended.append(bench.execution)
        bench.execution = bench.message("next", f"m{number}").execution_id
    kept = [*ended[-1:], bench.execution]
    fields = bench.snapshot()[0]
    assert [each for each in ended if f"e:{each}".encode() in fields] == ended[-1:]
    keys = bench.store.context.keys(bench.session)
    assert [each for each in ended if bench.database("EXISTS", keys.steps(each))] == [
        each for each in ended if each in kept
    ]


def test_a_session_keeps_the_receivers_of_its_last_messages(new_bench: NewBench) -> None:
    bench = new_bench(operations_kept=8)
    bench.submit(notify={"webhook": "https://example.com/first"})
    bench.commit(bench.claim(), final=True)
    for number in range(20):
        message = an_operation("more", f"m{number}")
        payload = {**message.payload, "notify": {"webhook": "https://example.com/x"}}
        bench.store.sessions.act(bench.session, replace(message, payload=payload), operation_transition)
    stored = json.loads(bench.database("HGET", bench.store.context.keys(bench.session).session, "notify"))
    assert list(stored) == ["m0", *(f"m{number}" for number in range(13, 20))], "m0 started what runs"
    assert bench.store.housekeeping.due_callbacks(limit=10, hold_ms=1_000) == []
    (entry,) = bench.store.housekeeping.list_dead()
    assert "its receiver is not kept any more" in entry["reason"]


def test_the_receiver_of_an_execution_that_runs_is_kept_however_many_messages_join(new_bench: NewBench) -> None:
    bench = new_bench(operations_kept=8)
    bench.submit(notify={"webhook": "https://example.com/first"})
    for number in range(20):
        message = an_operation("more", f"m{number}")
        payload = {**message.payload, "notify": {"webhook": "https://example.com/x"}}
        bench.store.sessions.act(bench.session, replace(message, payload=payload), operation_transition)
    bench.commit(bench.claim(), final=True)
    (callback,) = bench.store.housekeeping.due_callbacks(limit=10, hold_ms=1_000)
    assert callback.target == "https://example.com/first"


# --- nothing stays ------------------------------------------------------------------------------------------------


def lives(bench: Bench, *, of: str) -> dict[str, int]:
    names = [name.decode() for name in all_keys(bench) if of in name.decode()]
    return {name: bench.database("PTTL", name) for name in names}


def all_keys(bench: Bench) -> list[bytes]:
    keys = bench.store.context.keys(bench.session)
    wanted = [keys.session, keys.ctl, keys.inbox, keys.events, keys.section("messages", 0), keys.steps(bench.execution)]
    wanted += [keys.journal(bench.execution, step) for step in (1, 2)]
    return [name.encode() for name in wanted if bench.database("EXISTS", name)]


def test_a_journal_lives_no_longer_than_its_session(new_bench: NewBench) -> None:
    bench = new_bench(retention_seconds=60.0)
    bench.submit()
    claimed = bench.claim()
    bench.store.steps.record_answer(claimed.claim, b"an answer")
    bench.commit(claimed, final=True)
    found = lives(bench, of=bench.session)
    assert any(":j:" in name for name in found)
    assert all(0 < left <= 60_000 for left in found.values()), found


@pytest.mark.parametrize("head", [None, "newer", b"damaged"])
def test_a_parked_session_ends_with_the_retention(new_bench: NewBench, head: Any) -> None:
    bench = new_bench(retention_seconds=0.05)
    bench.submit()
    bench.commit(bench.claim())
    claimed = bench.claim(2)
    bench.store.steps.record_answer(claimed.claim, b"an answer")
    bench.message("it waits")
    if head == "newer":
        bench.become_newer()
    elif head is not None:
        bench.database("HSET", bench.store.context.keys(bench.session).session, "head", head)
    bench.store.steps.park(bench.ref(2), "nobody offers its agent")
    assert len(lives(bench, of=bench.session)) >= 7
    wait_until(lambda: bench.store.housekeeping.prune() > 0, "the retention is over")
    assert lives(bench, of=bench.session) == {}
    shard = bench.store.context.keys(bench.session).shard
    assert [bench.database("ZSCORE", key, bench.session) for key in (shard.sessions, shard.ending, shard.due)] == [
        None
    ] * 3


def test_a_parked_session_that_is_retried_stays(new_bench: NewBench) -> None:
    bench = new_bench(retention_seconds=0.05)
    bench.submit()
    bench.store.steps.park(bench.ref(), "nobody offers its agent")
    bench.store.sessions.retry(bench.session, retry_transition(None), by="ops")
    ending = bench.store.context.keys(bench.session).shard.ending
    wait_until(
        lambda: bench.store.housekeeping.prune() >= 0 and not bench.database("ZCARD", ending), "it was looked at"
    )
    assert bench.commit(bench.claim(), final=True).version == 2
    (event,) = [event for event in bench.store.sessions.events(bench.session) if event.type == "step_retried"]
    assert dict(event.data) == {"by": "ops", "parked": True}


def test_a_session_that_is_taken_up_while_it_is_pruned_stays(new_bench: NewBench) -> None:
    bench = new_bench(retention_seconds=0.05)
    bench.submit()
    bench.store.steps.park(bench.ref(), "nobody offers its agent")
    keys = bench.store.context.keys(bench.session)
    bench.database("ZADD", keys.shard.ending, 1, bench.session)
    bench.spy.before("prune.delete", lambda: bench.database("HSET", keys.ctl, "phase", "run"))
    bench.store.housekeeping.prune()
    assert bench.commit(bench.claim(), final=True).version == 2


def test_a_key_of_another_type_keeps_no_parked_session_from_ending(new_bench: NewBench) -> None:
    bench = new_bench(retention_seconds=0.05)
    bench.submit()
    bench.store.steps.park(bench.ref(), "nobody offers its agent")
    bench.database("SET", bench.store.context.keys("another").ctl, "no hash")
    for session in (bench.session, "another"):
        bench.database("ZADD", bench.store.context.keys(session).shard.ending, 1, session)
    assert bench.store.housekeeping.prune() == 2
    assert lives(bench, of=bench.session) == {}
