"""What becomes of a step that its worker cannot run: it is parked, moved, left to another, or waits for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from celery_agents.flow import FairShares
from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool, ScriptedDriver
from celery_agents.worker.engine import Done, Moved, NothingToDo, Outcome, Parked, RetryLater
from celery_agents.worker.errors import StoreUnavailable
from celery_agents.worker.state import ExecutionBudget
from celery_agents.worker.store.keys import FLEET
from celery_agents.worker.tools import tool

from support.claimed_runs import claim_run
from support.engine import Bench

NewBench = Callable[..., Bench]


@tool(effect="pure")
def look() -> str:
    """Look."""
    return "seen"


def clerk(**options: Any) -> Agent:
    return Agent("clerk", driver=ScriptedDriver([CallTool("look"), "done"]), tools=[look], **options)


def write(bench: Bench, *command: Any) -> None:
    bench.store.context.database.pipeline("test", [command])


def run_step(bench: Bench, session: str, queue: str = "") -> Outcome:
    """Run the step that is due, which came from a queue."""
    ref = bench.due(session)
    assert ref is not None
    return bench.runner.run_step(replace(ref, queue=queue))


# --- queues ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of_agent", "came_from", "next_queue"),
    [("gpu", "", "gpu"), ("", "@a", "@a"), ("", "old", ""), ("gpu", "@a", "gpu")],
)
def test_the_next_step_goes_to_the_queue_of_the_agent_or_stays_in_the_group_of_its_worker(
    new_bench: NewBench, of_agent: str, came_from: str, next_queue: str
) -> None:
    bench = new_bench(clerk(queue=of_agent) if of_agent else clerk())
    outcome = run_step(bench, bench.submit(), came_from)
    assert isinstance(outcome, Done)
    assert outcome.next is not None
    assert outcome.next.queue == next_queue


@pytest.mark.parametrize(
    ("has_shares", "lane", "next_lane"),
    [(False, "", ""), (True, "", FairShares("customer").lane_for({})), (True, "urgent", "urgent")],
)
def test_a_session_from_before_the_shares_gets_its_lane_with_its_next_step(
    new_bench: NewBench, has_shares: bool, lane: str, next_lane: str
) -> None:
    bench = new_bench(clerk())
    if has_shares:
        bench.store.flow.set_value(FairShares("customer"))
        bench.gate.refresh()
    ref = bench.due(bench.submit())
    assert ref is not None
    outcome = bench.runner.run_step(replace(ref, lane=lane))
    assert isinstance(outcome, Done)
    assert outcome.next is not None
    assert outcome.next.lane == next_lane


# --- steps of other workers ------------------------------------------------------------------------------------------


def other_agent(bench: Bench) -> str:
    """A session of an agent that this worker does not offer."""
    return bench.submit(agent=Agent("painter", driver=ScriptedDriver(["x"])))


def register(bench: Bench, **facts: Any) -> None:
    bench.store.registry.register("peer", {"slots": 2, "queues": ["", "@b"], "group": "@b", **facts}, {"painter": "h"})


def test_a_step_of_an_agent_of_another_group_is_moved_to_its_queue(new_bench: NewBench) -> None:
    bench = new_bench(clerk())
    register(bench)
    session = other_agent(bench)
    outcome = run_step(bench, session)
    assert isinstance(outcome, Moved)
    assert outcome.queue == "@b"
    assert outcome.publish is not None
    assert (outcome.publish.session_id, outcome.publish.queue) == (session, "@b")


def test_a_step_whose_agent_a_draining_worker_offers_comes_back_soon(new_bench: NewBench) -> None:
    bench = new_bench(clerk())
    register(bench, draining=True)
    outcome = run_step(bench, other_agent(bench))
    assert isinstance(outcome, RetryLater)
    assert (outcome.seconds, outcome.reason) == (0.5, "this worker does not offer agent 'painter'")


def test_a_step_whose_agent_is_unknown_waits_for_a_worker_that_offers_it(new_bench: NewBench) -> None:
    bench = new_bench(clerk(), agent_grace_seconds=600.0)
    session = other_agent(bench)
    outcome = run_step(bench, session)
    assert isinstance(outcome, RetryLater)
    assert (outcome.seconds, outcome.reason) == (600.0, "no live worker offers agent 'painter'")
    assert bench.store.sessions.step_facts(session).attempts == 0


def test_a_stop_that_comes_while_a_worker_looks_at_a_step_of_an_unknown_agent_ends_the_execution(
    new_bench: NewBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop asks that worker for the end, and no other worker would come for a day."""
    bench = new_bench(clerk())
    session, steps = other_agent(bench), bench.store.steps
    wait_for_worker = steps.wait_for_worker

    def stop_before(*args: Any) -> None:
        assert bench.stop(session).outcome == "queued"
        wait_for_worker(*args)

    monkeypatch.setattr(steps, "wait_for_worker", stop_before)
    outcome = run_step(bench, session)
    assert isinstance(outcome, NothingToDo)
    assert outcome.reason == "ended"
    assert bench.store.sessions.header(session).status == "stopped"
    assert bench.due(session) is None


def test_a_queue_is_chosen_by_the_free_slots_of_its_workers(new_bench: NewBench) -> None:
    bench = new_bench(clerk())
    register(bench, running=2)
    free = {"slots": 100, "running": 2, "queues": ["@c"], "group": "@c"}
    bench.store.registry.register("free", free, {"painter": "h"})
    chosen = [run_step(bench, other_agent(bench)) for _ in range(60)]
    queues = [outcome.queue for outcome in chosen if isinstance(outcome, Moved)]
    assert queues.count("@c") > 40, "99 of 100 on average"
    assert len(queues) == 60


# --- states that cannot be read --------------------------------------------------------------------------------------


def change_head(bench: Bench, session: str, change: Callable[[bytes], bytes]) -> None:
    """Write the first part of a stored state in another form."""
    key = bench.store.context.keys(session).session
    (head,) = bench.store.context.database.pipeline("test", [("HGET", key, "head")])
    write(bench, "HSET", key, "head", change(head))


def test_a_state_that_cannot_be_read_is_parked_with_its_reason(new_bench: NewBench) -> None:
    bench = new_bench(clerk())
    session = bench.submit()
    ref = bench.due(session)
    assert ref is not None
    change_head(bench, session, lambda head: head[:-1])
    outcome = bench.runner.run_step(ref)
    assert isinstance(outcome, Parked)
    assert "head" in outcome.reason


@pytest.mark.parametrize(("peer_reads", "is_left"), [(99, True), (100, True), (98, False), (None, False)])
def test_a_state_of_a_newer_version_is_left_to_a_worker_that_reads_it(
    new_bench: NewBench, peer_reads: int | None, is_left: bool
) -> None:
    bench = new_bench(clerk())
    session = bench.submit()
    ref = bench.due(session)
    assert ref is not None
    change_head(bench, session, lambda head: head.replace(b'"schema_version":4', b'"schema_version":99'))
    if peer_reads is not None:
        register(bench, schema=peer_reads)
    outcome = bench.runner.run_step(ref)
    assert isinstance(outcome, NothingToDo if is_left else Parked), outcome


def test_a_session_whose_key_has_another_type_is_parked(new_bench: NewBench) -> None:
    bench = new_bench(clerk())
    session = bench.submit()
    ref = bench.due(session)
    assert ref is not None
    key = bench.store.context.keys(session).session
    for command in (("DEL", key), ("SET", key, "x")):
        write(bench, *command)
    assert isinstance(bench.runner.run_step(ref), Parked)


def test_no_session_is_parked_for_a_key_that_all_share(new_bench: NewBench) -> None:
    bench = new_bench(clerk())
    session = bench.submit()
    ref = bench.due(session)
    assert ref is not None
    for command in (("DEL", FLEET.workers), ("SET", FLEET.workers, "x")):
        write(bench, *command)
    key = bench.store.context.keys(session).session
    for command in (("DEL", key), ("SET", key, "x")):
        write(bench, *command)
    with pytest.raises(StoreUnavailable, match="not a hash; somebody else wrote to it"):
        bench.runner.run_step(ref)


# --- time --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("of_agent", "seconds"), [(70.0, 70.0), (None, 90.0)])
def test_a_step_has_the_time_of_its_agent_or_of_the_setting(
    new_bench: NewBench, of_agent: float | None, seconds: float
) -> None:
    bench = new_bench(clerk(step_timeout=of_agent), step_timeout_seconds=90.0)
    run, _ = claim_run(bench)
    assert bench.keeper.remaining(run.lease) == seconds


def test_the_time_of_a_budget_counts_from_the_beginning_of_its_execution(new_bench: NewBench) -> None:
    bench = new_bench(clerk())
    session = bench.submit(budget=ExecutionBudget(max_seconds=60.0))
    bench.step(session)
    bench.clock.go_on(20.0)
    run, _ = claim_run(bench, session)
    assert bench.keeper.time_left(run.lease) == pytest.approx(40.0)
