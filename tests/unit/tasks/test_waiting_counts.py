"""Sessions are counted by what they wait for, each once, and each as its own sentence says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from celery_agents.flow import Pause
from celery_agents.tasks.observability.waiting_counts import ReasonCount, WaitingCounts, WaitingFor, count_waiting
from celery_agents.tasks.observability.waiting_reasons import waiting_reason
from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.errors import DriverError
from celery_agents.worker.flow.caps import SpendCap
from celery_agents.worker.flow.concurrency import ConcurrencyLimit, LimitPart
from celery_agents.worker.flow.values import AT_PROVIDER
from celery_agents.worker.state import AgentState, Approve
from celery_agents.worker.store import Claimed, EventType, NewEvent
from celery_agents.worker.store.flow.holders import Holder
from celery_agents.worker.store.keys import FLEET
from celery_agents.worker.tools import Ask, tool

from support.engine import Bench
from support.trees import answering, asking, delegating, register

# What waiting_reason says of a session with this reason.
SAID = {
    WaitingFor.RUNNING: "runs on worker",
    WaitingFor.QUEUE: "waits for a worker to take its message",
    WaitingFor.PERSON: "waits for an approval",
    WaitingFor.CHILD: "waits for agent",
    WaitingFor.SERVICE: "the result of",
    WaitingFor.PROVIDER: "waits for the provider",
    WaitingFor.DELAY: "was delayed",
    WaitingFor.HELD: "suspended by ann",
    WaitingFor.PAUSED: "waits, next try in 5 s",
    WaitingFor.CONCURRENCY: "waits for its turn: the concurrency limit crm allows 1 at a time",
    WaitingFor.SPEND_CAP: "waits, next try in 900 s",
    WaitingFor.AT_PROVIDER: "step 1 is at the provider",
    WaitingFor.NO_WORKER: "no live worker offers agent",
    WaitingFor.PARKED: "it is parked",
}


@tool(effect="keyed", approval=Ask(to="team"))
def refund() -> str:
    """Pay money back."""
    return "paid"


@tool(effect="keyed", approval=Ask(to="clock", expires=timedelta(hours=1), on_expiry="approve"))
def later() -> str:
    """Wait for a time."""
    return "done"


@tool(effect="keyed", result="later")
def render() -> None:
    """Have a service do it."""


def follow(state: AgentState) -> Any:
    """Call the tool that the message names."""
    said = state.messages[0].content
    if said == "fail":
        raise DriverError("server_error", "it is away", transient=True)
    return [CallTool(said)] if said in ("refund", "render", "later") and not state.step_count else "done"


@pytest.fixture
def bench() -> Iterator[Bench]:
    worker = answering()
    lead = delegating("lead", *asking("ask_worker", "a"), tools=[worker.as_tool()])
    agent = Agent("agent", driver=follow, tools=(refund, render, later))
    made = Bench(
        agent, lead, worker, Agent("unknown", driver=follow), driver_attempts=1,
        token_secret="not-a-secret-but-long-enough",
    )  # fmt: skip
    register(made)
    names = {each.name: each.definition_hash for each in (agent, lead, worker)}
    facts = {"queues": [""], "agent_queues": {}, "group": "", "slots": 8, "running": 0, "draining": False}
    made.store.registry.register("worker", facts, names)
    yield made
    made.close()


def claim(bench: Bench, session: str) -> Claimed:
    ref = bench.due(session)
    assert ref is not None
    claimed = bench.store.steps.claim(ref, f"{session} at {bench.clock.now_ms()}", "worker", alone=True)
    assert isinstance(claimed, Claimed)
    return claimed


def asked(bench: Bench, message: str, agent: int = 0) -> str:
    session = bench.submit(message, agent=bench.agents[agent])
    bench.step(session)
    return session


def running(bench: Bench) -> str:
    session = bench.submit()
    claim(bench, session)
    return session


def pausing(bench: Bench) -> str:
    session = bench.submit()
    claimed = claim(bench, session)
    data = {"message": "it is away", "next_try_ms": bench.clock.now_ms() + 5_000}
    event = NewEvent(EventType.MODEL_CALL_FAILED, claimed.claim.ref.execution_id, 1, data)
    bench.store.steps.record_failure(claimed.claim, 1, b"{}", [event])
    return session


def held(bench: Bench) -> str:
    session = bench.submit()
    bench.store.sessions.suspend(session, reason="a look", by="ann")
    return session


def in_line(bench: Bench) -> str:
    """A session that waits for a holder of a concurrency limit."""
    flow, session, part = bench.store.flow, bench.submit(), LimitPart("crm")
    flow.set_value(ConcurrencyLimit("crm", total=0))
    claimed = claim(bench, session).claim
    limit = flow.view().concurrency["crm"]
    assert limit is not None
    flow.take_holder(Holder(claimed.id, session, (part,), (limit.since_ms,), claimed_ms=1), lease_ms=5_000)
    reason = "the concurrency limit crm allows 1 at a time, and 1 run"
    bench.store.steps.release(claimed, delay_ms=900_000, give_back=True, reason=reason, put_off=part.cause)
    return session


def without_money(bench: Bench) -> str:
    """A session that waits for money under a spend cap."""
    flow, session = bench.store.flow, bench.submit()
    flow.set_value(SpendCap("all", usd=20, per="day"))
    reason, cause = "the spend cap all allows 20 $ a day", flow.view().caps["all"].cause
    claimed = claim(bench, session).claim
    bench.store.steps.release(claimed, delay_ms=900_000, give_back=True, reason=reason, put_off=cause)
    return session


def put_off(bench: Bench, by: str, reason: str) -> str:
    session = bench.submit()
    held = claim(bench, session).claim
    line = ("ZADD", FLEET.rate(by).line, bench.clock.now_ms() + 5_000, session)
    cause = ("HSET", FLEET.flow, by, Pause("tool", "refund", reason="the bank is down").to_json())
    bench.store.context.database.pipeline("test", [cause if by.startswith("pause:") else line])
    bench.store.steps.release(held, delay_ms=5_000, give_back=True, reason=reason, put_off=by)
    return session


def parked(bench: Bench) -> str:
    session = bench.submit()
    ref = bench.due(session)
    assert ref is not None
    bench.store.steps.park(ref, "broken")
    return session


MAKE: dict[WaitingFor, Callable[[Bench], str]] = {
    WaitingFor.RUNNING: running,
    WaitingFor.QUEUE: lambda bench: bench.submit(),
    WaitingFor.PERSON: lambda bench: asked(bench, "refund"),
    WaitingFor.CHILD: lambda bench: asked(bench, "hello", agent=1),
    WaitingFor.SERVICE: lambda bench: asked(bench, "render"),
    WaitingFor.PROVIDER: pausing,
    WaitingFor.DELAY: lambda bench: asked(bench, "fail"),
    WaitingFor.HELD: held,
    WaitingFor.PAUSED: lambda bench: put_off(bench, "pause:tool:refund", "tool refund paused: the bank is down"),
    WaitingFor.CONCURRENCY: lambda bench: in_line(bench),
    WaitingFor.SPEND_CAP: lambda bench: without_money(bench),
    WaitingFor.AT_PROVIDER: lambda bench: put_off(bench, AT_PROVIDER, "at the provider of openai:x since 14:02"),
    WaitingFor.NO_WORKER: lambda bench: bench.submit(agent=bench.agents[3]),
    WaitingFor.PARKED: parked,
}


def counts(found: WaitingCounts) -> dict[str, int]:
    return {each.reason.value: each.count for each in found.reasons if each.count}


@pytest.mark.parametrize("reason", WaitingFor)
def test_a_session_is_counted_by_what_its_own_sentence_says(bench: Bench, reason: WaitingFor) -> None:
    session = MAKE[reason](bench)
    found = count_waiting(bench.store)
    expected = {reason.value: 1} | ({"queue": 1} if reason is WaitingFor.CHILD else {})
    assert counts(found) == expected
    assert SAID[reason] in waiting_reason(bench.store, bench.store.sessions.header(session))
    assert (found.total, found.counted, found.is_complete) == (sum(expected.values()), sum(expected.values()), True)


def test_all_together_each_reason_in_its_place_and_ended_ones_in_none(bench: Bench) -> None:
    for make in MAKE.values():
        make(bench)
    bench.run(bench.submit())
    found = count_waiting(bench.store)
    assert [each.reason for each in found.reasons] == list(WaitingFor)
    assert [each.count for each in found.reasons] == [1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], (
        "the child is in the queue, too"
    )
    assert found.total == 15
    assert counts(count_waiting(bench.store, "unknown")) == {"no_worker": 1}
    assert counts(count_waiting(bench.store, "nobody")) == {}
    assert count_waiting(bench.store, "nobody").total == 15


def test_what_a_limit_of_a_provider_holds_waits_for_the_provider_until_its_time_and_says_the_reason(
    bench: Bench,
) -> None:
    session = put_off(bench, "0123456789abcdef", "openai:gpt-5-mini allows 5 requests a minute; free at 10:42:13")
    assert counts(count_waiting(bench.store)) == {"provider": 1}
    reason = waiting_reason(bench.store, bench.store.sessions.header(session))
    assert reason.startswith("step 1 waits, next try in 5 s (")
    assert reason.endswith("): openai:gpt-5-mini allows 5 requests a minute; free at 10:42:13.")
    (delayed,) = bench.store.housekeeping.list_delayed()
    assert (delayed.put_off, delayed.delays) == ("0123456789abcdef", 0)
    bench.clock.go_on(6)
    assert counts(count_waiting(bench.store)) == {"queue": 1}
    assert bench.store.housekeeping.list_delayed() == []


def test_no_more_sessions_are_looked_at_than_is_said(bench: Bench) -> None:
    for _ in range(5):
        bench.submit()
    parked(bench)
    found = count_waiting(bench.store, most=3)
    assert (found.total, found.counted, found.is_complete, counts(found)) == (6, 3, False, {"queue": 3})


def test_a_lost_worker_leaves_its_step_in_the_queue(bench: Bench) -> None:
    session = running(bench)
    bench.clock.go_on(bench.settings.lease_seconds + 1)
    assert counts(count_waiting(bench.store)) == {"queue": 1}
    claim(bench, session)
    assert counts(count_waiting(bench.store)) == {"running": 1}


def test_who_waits_for_a_person_and_a_service_waits_for_the_person(bench: Bench) -> None:
    session = asked(bench, "refund")
    bench.answer(session, Approve(), by="ann")
    assert counts(count_waiting(bench.store)) == {"queue": 1}, "it was woken"
    asked(bench, "later")
    assert counts(count_waiting(bench.store)) == {"queue": 1, "delay": 1}, "a clock is no person"


def test_a_parked_session_that_was_retried_is_parked_no_more(bench: Bench) -> None:
    session = parked(bench)
    bench.retry(session)
    assert counts(count_waiting(bench.store)) == {"queue": 1}


def test_damaged_entries_are_left_out_and_hide_no_other(bench: Bench) -> None:
    bench.submit()
    damaged = bench.submit()
    context = bench.store.context
    keys = context.keys(damaged)
    context.database.pipeline("test", [("HSET", keys.ctl, "not_before", "soon")])
    context.database.pipeline(
        "test", [("ZADD", keys.shard.due, 1, "no such session"), ("ZADD", keys.shard.due, 1, b"\xff")]
    )
    context.database.pipeline("test", [("ZADD", keys.shard.requests, 1, "{"), ("ZADD", keys.shard.requests, 1, "[]")])
    found = count_waiting(bench.store)
    assert counts(found) == {"queue": 1}


def test_a_count_is_a_sentence() -> None:
    said = [ReasonCount(reason, count).sentence for reason in WaitingFor for count in (0, 1, 2)]
    assert said[:3] == ["0 run on a worker", "1 runs on a worker", "2 run on a worker"]
    assert len(set(said)) == 42


@pytest.mark.parametrize("field", ["delays", "not_before", "step", "claim", "phase", "hold"])
@pytest.mark.parametrize("value", ["x", b"\xff"])
def test_damaged_facts_of_one_session_hide_no_other_and_are_its_reason(
    bench: Bench, field: str, value: str | bytes
) -> None:
    first, damaged, last = parked(bench), bench.submit(), parked(bench)
    bench.store.context.database.pipeline("test", [("HSET", bench.store.context.keys(damaged).ctl, field, value)])
    reasons = [waiting_reason(bench.store, bench.store.sessions.header(each)) for each in (first, damaged, last)]
    assert reasons[0] == reasons[2] != reasons[1]
    assert count_waiting(bench.store).count(WaitingFor.PARKED) == 2
