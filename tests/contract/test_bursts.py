"""A message of a burst: it joins what has not begun and moves its start, is queued behind what has, and starts nothing."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest

from celery_agents.flow import Debounce
from celery_agents.worker.engine import FirstExecution, first_state, operation_transition
from celery_agents.worker.errors import SessionDeleted, SessionNotFound, StoreUnavailable
from celery_agents.worker.moments import moment
from celery_agents.worker.state import AgentState, ExecutionBudget, Message
from celery_agents.worker.store import NextState

from support.asking import ask, control, now_ms
from support.points import Points
from support.store import Bench, an_operation

pytestmark = pytest.mark.leaves_keys("sessions are left in the middle of an execution")

DEBOUNCE = Debounce("repo", quiet=timedelta(seconds=100), at_most=timedelta(seconds=150))


def submit_later(bench: Bench, seconds: int = 100) -> int:
    """Make a session that begins later; when it was made."""
    bench.session, bench.execution = uuid.uuid4().hex, uuid.uuid4().hex

    def transition(at_ms: int) -> NextState:
        now = moment(at_ms)
        first = FirstExecution(bench.execution, "op-first")
        return first_state(AgentState.fresh(now=now), Message.user("first"), first, now)

    made = now_ms(bench)
    start_ms = made + seconds * 1000
    bench.store.sessions.submit(bench.session, "agent", "f", transition, start_at_ms=start_ms)
    return made


def come(bench: Bench, text: str = "second", debounce: Debounce = DEBOUNCE, **options: Any) -> Any:
    operation = an_operation(text, options.pop("operation", f"op-{text}"), **options)
    return bench.store.sessions.act_in_burst(bench.session, operation, operation_transition, debounce)


def start_ms(bench: Bench) -> int:
    (not_before,) = control(bench, "not_before")
    assert bench.due() == int(not_before)
    return int(not_before)


def begin(bench: Bench) -> None:
    """Let its time have come."""
    keys = bench.store.context.keys(bench.session)
    bench.database("HSET", keys.ctl, "not_before", 1)
    bench.make_due()


def test_a_message_joins_what_has_not_begun_and_moves_its_start(bench: Bench) -> None:
    made = submit_later(bench, 10)
    found = come(bench)
    assert (found.outcome, found.placed, found.execution_id) == ("joined", "joins", bench.execution)
    assert made + 100_000 <= start_ms(bench) <= now_ms(bench) + 100_000
    assert bench.said == ["first", "second"]
    sooner = Debounce("repo", quiet=timedelta(seconds=5), at_most=timedelta(seconds=150))
    come(bench, "third", sooner)
    assert start_ms(bench) <= now_ms(bench) + 5_000
    assert bench.said == ["first", "second", "third"]


def test_it_begins_at_the_latest_so_long_after_the_first_message(bench: Bench) -> None:
    made = submit_later(bench)
    come(bench, debounce=Debounce("repo", quiet=timedelta(seconds=100), at_most=timedelta(seconds=100)))
    assert made + 100_000 <= start_ms(bench) <= now_ms(bench) + 100_000
    keys = bench.store.context.keys(bench.session)
    bench.database("HSET", keys.session, "created", now_ms(bench) - 140_000)
    come(bench, "third")
    assert start_ms(bench) <= now_ms(bench) + 10_000


def test_what_is_due_takes_it_and_stays_due(bench: Bench) -> None:
    submit_later(bench)
    begin(bench)
    assert come(bench).placed == "joins"
    assert (bench.due(), control(bench, "not_before")) == (1, ["1"])
    assert [each.content for each in bench.claim().loaded.state.messages] == ["first", "second"]


def test_a_hold_is_not_moved(bench: Bench) -> None:
    submit_later(bench)
    bench.store.sessions.suspend(bench.session, reason="a freeze")
    held = bench.due()
    assert come(bench).placed == "joins"
    assert bench.due() == held


def test_a_budget_that_comes_with_a_message_that_joins_is_that_of_the_first(bench: Bench) -> None:
    submit_later(bench)
    operation = an_operation("second", "op-second")
    operation = operation.taken(budget=ExecutionBudget(max_steps=3).to_dict())
    bench.store.sessions.act_in_burst(bench.session, operation, operation_transition, DEBOUNCE)
    begin(bench)
    execution = bench.claim().loaded.state.execution
    assert execution is not None
    assert execution.budget == ExecutionBudget.unlimited()


def test_it_is_queued_behind_what_has_begun(bench: Bench) -> None:
    submit_later(bench)
    begin(bench)
    claimed = bench.claim()
    assert come(bench).placed == "queued"
    assert come(bench, "third").placed == "queued"
    assert bench.queue == (["op-second", "op-third"], "")
    bench.commit(claimed, final=True)
    assert bench.said == ["first", "second"]


def test_a_worker_that_has_died_has_begun_where_it_has_left_something(bench: Bench) -> None:
    submit_later(bench)
    begin(bench)
    claimed = bench.claim()
    bench.end_lease(claimed.claim)
    assert come(bench).placed == "queued"


def test_it_is_queued_behind_what_waits(bench: Bench) -> None:
    submit_later(bench)
    begin(bench)
    ask(bench)
    assert come(bench).placed == "queued"


def test_nothing_is_written_where_it_has_ended_or_is_parked(bench: Bench) -> None:
    submit_later(bench)
    begin(bench)
    bench.store.steps.park(bench.ref(), "why")
    before = bench.snapshot()
    assert come(bench).outcome == "idle"
    assert bench.snapshot() == before
    bench.store.sessions.retry(bench.session, lambda _: pytest.fail("it has not ended"))
    bench.commit(bench.claim(), final=True)
    before = bench.snapshot()
    assert come(bench).outcome == "idle"
    assert bench.snapshot() == before
    assert come(bench, "first", operation="op-first").outcome == "again", "a resend is told where it went"


def test_who_is_not_there_is_said(bench: Bench) -> None:
    submit_later(bench)
    begin(bench)
    bench.commit(bench.claim(), final=True)
    bench.store.sessions.delete(bench.session)
    with pytest.raises(SessionDeleted):
        come(bench)
    bench.session = "nobody"
    with pytest.raises(SessionNotFound):
        come(bench)


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_lost_reply_says_the_same_and_adds_it_once(bench: Bench, is_begun: bool) -> None:
    submit_later(bench)
    if is_begun:
        begin(bench)
        bench.claim()
    bench.spy.lose(Points.ACT_PUSH if is_begun else Points.ACT_EXEC)
    found = come(bench)
    assert (found.outcome, found.placed) == ("again", "queued" if is_begun else "joins")
    waiting = bench.store.sessions.read_waiting(bench.session)
    assert [*bench.said, *(each.text for each in waiting.messages)] == ["first", "second"]


def test_a_burst_is_begun_by_one_and_found_by_all(bench: Bench) -> None:
    flow, other = bench.store.flow, bench.another().flow
    name = DEBOUNCE.burst_of(bench.session)
    assert flow.burst(name, "op") == ("", "")
    assert flow.begin_burst(name, "s1", instead_of="")
    assert not other.begin_burst(name, "s2", instead_of="")
    assert other.burst(name) == ("s1", "")
    assert other.begin_burst(name, "s2", instead_of="s1")
    assert flow.note_in_burst(name, "op", "s1", instead_of="")
    assert not other.note_in_burst(name, "op", "s2", instead_of="")
    assert flow.burst(name, "op") == ("s2", "s1")
    assert flow.burst(name, "another") == ("s2", "")
    key = bench.store.context.fleet.burst(name)
    bench.spy.before(Points.BURSTS_SET, lambda: bench.database("HSET", key, "session", "s3"))
    assert not flow.begin_burst(name, "s4", instead_of="s2")
    assert flow.burst(name)[0] == "s3"
    bench.spy.lose(Points.BURSTS_SET)
    with pytest.raises(StoreUnavailable):
        flow.begin_burst(name, "s5", instead_of="s3")
    assert flow.burst(name)[0] == "s5"
    assert 0 < bench.database("PTTL", key) <= 30 * 86_400_000
