"""Costs, as a store of each kind reads them: each execution once, and copied steps for the session they come from."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from celery_agents.worker.archive.rows import ExecutionCost
from celery_agents.worker.state import InferenceUsage
from celery_agents.worker.state.execution.execution import ExecutionState
from celery_agents.worker.state.values.field_types import utcnow
from celery_agents.worker.state.values.ids import ExecutionId
from celery_agents.worker.store import Claimed, NextState, Snapshot, Transition
from celery_agents.worker.store.database import Database
from celery_agents.worker.store.session_records import StoredSession
from celery_agents.worker.store.sessions.copying import go_on
from celery_agents.worker.store.sessions.spending import add_up
from celery_agents.worker.store.sessions.whole_sessions import Copy

from support.store import Bench, step_transition


def costs_of(bench: Bench, *sessions: str) -> list[ExecutionCost]:
    found, unread = bench.store.sessions.costs([bench.store.sessions.header(each) for each in sessions])
    assert unread == []
    return found


def test_each_execution_is_counted_once_and_one_that_cannot_be_read_is_named(database: Database) -> None:
    bench = Bench(database)
    names = [f"s{number}" for number in range(6)]
    for name in names:
        bench.session, bench.execution = name, f"e{name}"
        bench.submit()
        bench.commit(bench.claim())
        bench.commit(bench.claim(2), final=True)
    found = costs_of(bench, *names)
    assert [(each.session_id, each.execution_id, each.steps, each.is_priced) for each in found] == [
        (name, f"e{name}", 2, False) for name in names
    ]
    (total,) = add_up((each, "all") for each in found)
    assert (total.executions, total.steps, total.unpriced, total.cost) == (6, 12, 6, 0.0)
    keys = bench.store.context.keys("s3")
    bench.database("RPUSH", keys.steps("es3"), b"{")
    headers = [bench.store.sessions.header(each) for each in names]
    rest, unread = bench.store.sessions.costs(headers)
    assert (unread, [each.session_id for each in rest]) == (["s3"], [each for each in names if each != "s3"])
    bench.database("SET", bench.store.context.keys("s4").session, "somebody else's", "PX", 60_000)
    rest, unread = bench.store.sessions.costs(headers)
    assert (unread, [each.session_id for each in rest]) == (["s3", "s4"], ["s0", "s1", "s2", "s5"])


def test_steps_of_a_copy_count_for_the_session_that_they_come_from(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    bench.commit(bench.claim())
    source, session = bench.store.sessions.load(bench.session), bench.session
    time.sleep(0.002)
    bench.store.sessions.create("copy", replace(source, version=0))
    assert [each.steps for each in costs_of(bench, session)] == [1]
    assert costs_of(bench, "copy") == []
    bench.session = "copy"
    bench.commit(bench.claim(2), final=True)
    assert [each.steps for each in costs_of(bench, session, "copy")] == [1, 1]


def pay_beside(claimed: Claimed, cost: float, *, final: bool = False) -> Transition:
    """A step beside whose answer another one was paid for."""
    step = step_transition(claimed, final=final)

    def transition(fresh: Snapshot) -> NextState:
        made = step(fresh)
        return replace(made, state=made.state.with_usage(InferenceUsage(input=round(cost * 100)), cost))

    return transition


def commit_paid(bench: Bench, number: int, cost: float, *, final: bool = False) -> None:
    claimed = bench.claim(number)
    made = pay_beside(claimed, cost, final=final)
    bench.store.steps.commit(claimed.claim, claimed.loaded, made, results={}, keep_claim=False)


def paid_by(bench: Bench, session: str) -> tuple[int, int, float]:
    found = costs_of(bench, session)
    return sum(each.steps for each in found), sum(each.tokens for each in found), sum(each.cost for each in found)


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("kind", ["restored", "fork"])
def test_what_a_copy_pays_for_beside_its_steps_counts_for_it(database: Database, kind: str, before: int) -> None:
    """And what its source had paid for before it was copied counts for that alone."""
    bench = Bench(database)
    bench.submit()
    for number in range(1, before + 1):
        commit_paid(bench, number, 0.5)
    session, copy = bench.session, f"{bench.session}.{'c' * 32}"
    source = bench.store.sessions.load(session)
    if kind == "fork":
        bench.execution = "forked"
        made = Copy(change=lambda stored, parts: (stored, go_on(parts, ExecutionId("forked"), utcnow())))
        bench.store.sessions.fork(session, copy, made)
    else:
        bench.store.sessions.create(copy, replace(source, version=0))
    assert paid_by(bench, copy) == (0, 0, 0.0)
    bench.session = copy
    commit_paid(bench, before + 1, 0.25, final=True)
    assert paid_by(bench, session) == (before, 50 * before, 0.5 * before)
    assert paid_by(bench, copy) == (1, 25, 0.25)


def test_a_copy_of_an_execution_that_has_paid_and_done_no_step_counts_nothing_twice(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    source = bench.store.sessions.load(bench.session)
    paid = source.state.with_usage(InferenceUsage(input=7), 0.5)
    bench.store.sessions.create("copy", StoredSession(agent="agent", state=paid))
    assert paid_by(bench, "copy") == (0, 0, 0.0)


def test_what_was_spent_before_a_clear_is_counted(database: Database) -> None:
    """Steps of some size are stored over their messages, which go."""
    bench = Bench(database)
    bench.submit()
    for text in ("x", "y"):
        bench.commit(bench.claim(), text=text * 3_000)
        bench.commit(bench.claim(2), final=True, text=text * 3_000)
        if text == "x":
            bench.execution = bench.message("next").execution_id
    before = costs_of(bench, bench.session)
    stored = bench.store.sessions.load(bench.session)
    bench.store.sessions.save(bench.session, replace(stored, state=stored.state.without_conversation()))
    assert bench.store.sessions.load(bench.session).state.messages == ()
    counted = [(each.execution_id, each.steps, each.ended_ms) for each in costs_of(bench, bench.session)]
    assert counted == [(each.execution_id, each.steps, each.ended_ms) for each in before]
    assert [steps for _, steps, _ in counted] == [2, 2]


@pytest.mark.parametrize("children", ["told", "of an earlier version"])
def test_what_an_execution_was_charged_for_children_counts_for_these_alone(database: Database, children: str) -> None:
    """Wherever they are: they may have expired, have moved to the archive, or have ended without a result."""
    bench = Bench(database)
    bench.submit()
    for number in (1, 2):
        claimed = bench.claim()
        step = pay_beside(claimed, 0.5, final=True)

        def with_child(fresh: Snapshot, step: Transition = step) -> NextState:
            made = step(fresh)
            assert made.state.execution is not None
            charged = made.state.execution.with_child_charge(InferenceUsage(output=70), 0.125, 3)
            if children != "told":
                charged = ExecutionState.from_dict(
                    {**charged.to_dict(), "child_tokens": None, "child_cost": None, "child_steps": 0}
                )
            return replace(made, state=made.state.with_context_and_execution(made.state.context, charged))

        bench.store.steps.commit(claimed.claim, claimed.loaded, with_child, results={}, keep_claim=False)
        # An earlier version has told nothing of children: what is there of them is read, and here is none.
        tokens, cost = (50, 0.5) if children == "told" else (120, 0.625)
        assert paid_by(bench, bench.session) == (number, tokens * number, cost * number)
        if number == 1:
            bench.execution = bench.message("next").execution_id


@pytest.mark.parametrize("point", ["costs.steps", "steps.messages"])
def test_a_session_that_goes_while_its_costs_are_read_has_none(database: Database, point: str) -> None:
    """Its mark stays: it was counted without its steps, or named as one that cannot be read."""
    bench = Bench(database)
    bench.submit()
    bench.commit(bench.claim(), text="long " * 500)
    commit_paid(bench, 2, 0.5, final=True)
    headers = [bench.store.sessions.header(bench.session)]
    bench.spy.before(point, lambda: bench.store.sessions.delete(bench.session))
    assert bench.store.sessions.costs(headers) == ([], [])
