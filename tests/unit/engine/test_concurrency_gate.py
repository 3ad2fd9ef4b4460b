"""Concurrency limits as a worker keeps them: who gets no holder is put off, and what holds gives back when it has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest

from celery_agents.flow import ConcurrencyLimit
from celery_agents.worker.agent import Agent
from celery_agents.worker.engine import Done, RetryLater, TakenOver
from celery_agents.worker.errors import ConfigurationError
from celery_agents.worker.flow.concurrency import LimitPart, concurrency_field, undefined_cause
from celery_agents.worker.flow.values import Pause
from celery_agents.worker.state import AgentState, ExecutionBudget, ToolCall
from celery_agents.worker.store import Claimed
from celery_agents.worker.store.flow.holders import Holder, NoneFree, Taken
from celery_agents.worker.tools import tool

from support.engine import Bench
from support.wait import wait_until

NewBench = Callable[..., Bench]


def set_limit(bench: Bench, name: str = "crm", total: int | None = 1, **per: int) -> None:
    bench.store.flow.set_value(ConcurrencyLimit(name, total=total, per=per))
    bench.gate.refresh()


def held(bench: Bench, name: str = "crm") -> int:
    ((count,),) = [bench.store.context.database.pipeline("test", [("ZCARD", f"ca:holders:{name}:held")])]
    return count


def in_line(bench: Bench, name: str = "crm") -> int:
    ((count,),) = [bench.store.context.database.pipeline("test", [("ZCARD", f"ca:holders:{name}:line")])]
    return count


def other(bench: Bench) -> Holder:
    limit = bench.store.flow.view().concurrency["crm"]
    return Holder(
        "another claim", "another", (LimitPart("crm"),), (0 if limit is None else limit.since_ms,), claimed_ms=1
    )


def take_elsewhere(bench: Bench) -> None:
    """Another worker takes the holder; afterwards none is free."""
    bench.store.flow.take_holder(other(bench), lease_ms=3_600_000)


def give_elsewhere(bench: Bench) -> None:
    bench.store.flow.give_holder(other(bench))


def put_off(outcome: object) -> RetryLater:
    assert isinstance(outcome, RetryLater), outcome
    return outcome


def test_without_a_limit_nothing_is_written(new_bench: NewBench) -> None:
    bench = new_bench(Agent("plain", driver=lambda state: "done"))
    assert bench.ran().status == "completed"
    assert not [key for key in bench.key_names() if key.startswith(("ca:flow", "ca:holders", "ca:lines"))]


def test_a_step_without_a_holder_is_put_off_counts_nothing_and_comes_when_it_is_called(new_bench: NewBench) -> None:
    asked: list[int] = []
    bench = new_bench(Agent("plain", driver=lambda state: asked.append(held(bench)) or "done", concurrency="crm"))
    set_limit(bench)
    take_elsewhere(bench)
    session = bench.submit()
    assert "crm allows 1 at a time, and 1 run" in put_off(bench.step(session)).reason
    assert (asked, bench.store.sessions.step_facts(session).delays) == ([], 0)
    give_elsewhere(bench)
    assert isinstance(bench.step(session), Done)
    assert (asked, held(bench)) == ([1], 0)


def test_a_holder_counts_for_the_lease_of_its_step(new_bench: NewBench) -> None:
    taken: list[bool] = []

    def driver(state: AgentState) -> str:
        for share in (0.0, 0.9, 0.2):
            bench.clock.go_on(bench.settings.lease_seconds * share)
            bench.store.flow.call_waiting()
            taken.append(isinstance(bench.store.flow.take_holder(other(bench), lease_ms=1), Taken))
        return "done"

    bench = new_bench(Agent("plain", driver=driver, concurrency="crm"))
    set_limit(bench)
    bench.step(bench.submit())
    assert taken == [False, False, True]


def test_a_limit_that_nobody_has_defined_says_what_to_do(new_bench: NewBench) -> None:
    bench = new_bench(Agent("plain", driver=lambda state: "done", concurrency=["crm"]))
    reason = put_off(bench.step(bench.submit())).reason
    assert "nobody has defined the concurrency limit crm: celery-agents concurrency set crm --total N" in reason


def test_a_limit_of_which_the_worker_has_not_heard_holds_all_the_same(new_bench: NewBench) -> None:
    bench = new_bench(Agent("plain", driver=lambda state: "done", concurrency="crm"))
    set_limit(bench, total=5)
    for known, change in (
        ("another limit", lambda: bench.store.flow.set_value(ConcurrencyLimit("crm", total=0))),
        ("none", lambda: bench.store.flow.remove_value(concurrency_field("crm"))),
        ("it was removed", lambda: bench.store.flow.set_value(ConcurrencyLimit("crm", total=0))),
    ):
        bench.clock.go_on(1)
        change()
        outcome = bench.step(bench.submit())
        assert isinstance(outcome, Done) == (known == "none"), known


def test_a_step_that_fails_or_is_stopped_gives_its_holder_back(new_bench: NewBench) -> None:
    def fail(state: AgentState) -> str:
        raise ValueError("no")

    bench = new_bench(Agent("plain", driver=fail, concurrency="crm"))
    set_limit(bench)
    assert bench.ran().status == "failed"
    assert held(bench) == 0


def test_a_step_that_is_stopped_takes_none(new_bench: NewBench) -> None:
    bench = new_bench(Agent("plain", driver=lambda state: "done", concurrency="crm"))
    set_limit(bench, total=0)
    session = bench.submit()
    put_off(bench.step(session))
    bench.stop(session)
    assert bench.record(session).status == "stopped"


@pytest.mark.parametrize("is_paused", [False, True])
def test_an_execution_whose_time_is_over_does_not_wait_on(new_bench: NewBench, is_paused: bool) -> None:
    budget = ExecutionBudget(max_seconds=60)
    bench = new_bench(Agent("plain", driver=lambda state: "done", concurrency="crm", budget=budget))
    if is_paused:
        bench.store.flow.pause(Pause("agent", "plain", reason="a freeze"))
    set_limit(bench, total=0)
    session = bench.submit()
    assert put_off(bench.step(session)).seconds == pytest.approx(60, abs=1)
    bench.clock.go_on(61)
    assert isinstance(bench.step(session), Done)
    record = bench.record(session)
    assert (record.status, record.stop_reason) == ("stopped", "time_limit")


def test_a_call_of_what_has_begun_waits_behind_the_time_at_which_it_would_have_expired(new_bench: NewBench) -> None:
    benches: list[Bench] = []
    benches.append(new_bench(paying(benches, [])))
    (bench,) = benches
    set_limit(bench, total=0)
    session = bench.submit(expires_at=bench.clock.now + timedelta(seconds=60))
    for _ in range(2):
        assert put_off(bench.step(session)).seconds > 60
        bench.clock.go_on(1000)


def paying(bench: list[Bench], seen: list[tuple[str, int]], **fields: Any) -> Agent:
    """An agent that pays twice and looks once; each call notes how many hold."""

    @tool(effect="keyed", concurrency="crm")
    def pay() -> str:
        """Pay."""
        seen.append(("pay", held(bench[0])))
        return "paid"

    @tool(effect="keyed")
    def look() -> str:
        """Look."""
        seen.append(("look", held(bench[0])))
        return "seen"

    def driver(state: AgentState) -> Any:
        if state.step_count:
            return "done"
        return [ToolCall(id=f"c{n}", name=name, args={}) for n, name in enumerate(("pay", "look", "pay"))]

    return Agent("payer", driver=driver, tools=[pay, look], max_parallel_tools=3, **fields)


def test_calls_of_one_limit_run_one_after_another_and_each_once(new_bench: NewBench) -> None:
    benches: list[Bench] = []
    seen: list[tuple[str, int]] = []
    benches.append(new_bench(paying(benches, seen)))
    set_limit(benches[0])
    assert benches[0].ran().status == "completed"
    assert sorted(name for name, _ in seen) == ["look", "pay", "pay"]
    assert {count for name, count in seen if name == "pay"} == {1}
    assert held(benches[0]) == 0


def test_a_call_without_a_holder_lets_the_others_run_first_and_its_step_is_put_off(new_bench: NewBench) -> None:
    benches: list[Bench] = []
    seen: list[tuple[str, int]] = []
    benches.append(new_bench(paying(benches, seen)))
    (bench,) = benches
    set_limit(bench)
    take_elsewhere(bench)
    session = bench.submit()
    put_off(bench.step(session))
    assert [name for name, _ in seen] == ["look"]
    give_elsewhere(bench)
    bench.run(session)
    assert bench.record(session).status == "completed"
    assert [name for name, _ in seen] == ["look", "pay", "pay"]


def test_a_pure_call_that_has_run_does_not_run_again_when_another_one_waits_for_a_holder(new_bench: NewBench) -> None:
    """Else two sessions with two such calls each could take the holder from each other for ever."""
    ran: list[int] = []

    @tool(effect="pure", concurrency="crm")
    def look(number: int) -> str:
        """Look."""
        ran.append(number)
        if number == 0:  # when it has ended, somebody else holds
            set_limit(bench, total=2)
            take_elsewhere(bench)
            set_limit(bench, total=1)
        return f"seen {number}"

    def driver(state: AgentState) -> Any:
        if state.step_count:
            return "done"
        return [ToolCall(id=f"c{n}", name="look", args={"number": n}) for n in range(2)]

    bench = new_bench(Agent("looker", driver=driver, tools=[look]))
    set_limit(bench)
    session = bench.submit()
    assert "crm allows 1 at a time, and 1 run" in put_off(bench.step(session)).reason
    give_elsewhere(bench)
    assert isinstance(bench.step(session), Done)
    assert ran == [0, 1]
    assert [each.value for each in bench.state(session).steps[0].tool_executions] == ["seen 0", "seen 1"]


def test_under_a_limit_of_its_agent_a_call_needs_no_holder_of_its_own(new_bench: NewBench) -> None:
    benches: list[Bench] = []
    seen: list[tuple[str, int]] = []
    benches.append(new_bench(paying(benches, seen, concurrency="crm")))
    set_limit(benches[0])
    assert benches[0].ran().status == "completed"
    assert {count for _, count in seen} == {1}


@pytest.mark.parametrize("heartbeat", ["leases and holders", "leases", "none"])
def test_the_heartbeat_keeps_a_holder_and_a_step_whose_holder_is_gone_begins_no_call(
    new_bench: NewBench, heartbeat: str
) -> None:
    """The heartbeat may come late behind a pause, and it renews the leases before it looks at the holders."""
    ran: list[str] = []

    @tool(effect="keyed")
    def first() -> str:
        """Take long."""
        bench.clock.go_on(bench.settings.lease_seconds / 2)
        bench.keeper.tick()
        bench.clock.go_on(bench.settings.lease_seconds / 2 + 1)
        bench.store.flow.call_waiting()
        ran.append(f"first, {held(bench)}")
        return "one"

    @tool(effect="keyed")
    def second() -> str:
        """Be paused for longer than the lease, in which another one takes the holder."""
        bench.clock.go_on(bench.settings.lease_seconds * 3)
        give_elsewhere(bench)  # a call, which drops no dead holder
        bench.store.context.database.pipeline("test", [("ZADD", "ca:lines", 0, "crm")])
        bench.store.context.database.pipeline("test", [("ZADD", "ca:holders:crm:line", 1, "nobody")])
        bench.store.flow.call_waiting()
        take_elsewhere(bench)
        if heartbeat == "leases and holders":
            bench.keeper.tick()
        elif heartbeat == "leases":
            with patch.object(bench.keeper, "keep_holders", lambda _: None):
                bench.keeper.tick()
        ran.append(f"second, {held(bench)}, {in_line(bench)} in the line")
        return "two"

    @tool(effect="keyed")
    def third() -> str:
        """Do not begin."""
        ran.append("third")
        return "three"

    def driver(state: AgentState) -> Any:
        if state.step_count:
            return "done"
        return [ToolCall(id=name, name=name, args={}) for name in ("first", "second", "third")]

    agent = Agent("slow", driver=driver, tools=[first, second, third], max_parallel_tools=1, concurrency="crm")
    bench = new_bench(agent, step_timeout_seconds=100_000.0, tool_timeout_seconds=10_000.0)
    set_limit(bench)
    session = bench.submit()
    assert "went to another step" in put_off(bench.step(session)).reason
    assert ran == ["first, 1", "second, 1, 0 in the line"]
    assert held(bench) == 1
    put_off(bench.step(session))
    give_elsewhere(bench)
    bench.run(session)
    assert bench.record(session).status == "completed"
    assert ran[2:] == ["third"]
    assert held(bench) == 0


def test_a_function_that_was_left_running_holds_until_it_returns(new_bench: NewBench) -> None:
    goes_on, runs = threading.Event(), threading.Event()

    @tool(effect="keyed", concurrency="crm", timeout=0.2)
    def endless() -> str:
        """Do not end in time."""
        runs.set()
        goes_on.wait(30)
        return "late"

    @tool(effect="keyed")
    def quick() -> str:
        """End."""
        runs.wait(30)
        bench.clock.go_on(60)
        return "quick"

    def driver(state: AgentState) -> Any:
        return "done" if state.step_count else [ToolCall(id=each, name=each, args={}) for each in ("endless", "quick")]

    bench = new_bench(Agent("late", driver=driver, tools=[endless, quick], max_parallel_tools=2))
    set_limit(bench)
    session = bench.submit()
    bench.run(session)
    assert bench.record(session).status == "completed"
    assert held(bench) == 1
    goes_on.set()
    wait_until(lambda: held(bench) == 0, "it gives back", 10)


def test_a_step_that_was_taken_over_begins_no_call_and_leaves_its_successor_in_the_line(new_bench: NewBench) -> None:
    ran: list[str] = []

    @tool(effect="keyed")
    def slow() -> str:
        """Be paused for longer than the lease, in which the step gets another claim, which finds no holder."""
        ref = bench.due(session)
        assert ref is not None
        bench.clock.go_on(bench.settings.lease_seconds + bench.settings.lease_grace_seconds + 0.1)
        claimed = bench.store.steps.claim(ref, "successor", "another worker", alone=True)
        assert isinstance(claimed, Claimed)
        mine = Holder("successor", session, other(bench).parts, other(bench).since_ms, claimed.claim.now_ms)
        take_elsewhere(bench)
        assert isinstance(bench.store.flow.take_holder(mine, lease_ms=60_000), NoneFree)
        give_elsewhere(bench)
        return "slept"

    @tool(effect="keyed", concurrency="crm")
    def pay() -> str:
        """Do not begin."""
        ran.append("pay")
        return "paid"

    def driver(state: AgentState) -> Any:
        return "done" if state.step_count else [ToolCall(id=each, name=each, args={}) for each in ("slow", "pay")]

    bench = new_bench(Agent("paused", driver=driver, tools=[slow, pay], max_parallel_tools=1))
    set_limit(bench)
    session = bench.submit()
    assert isinstance(bench.step(session), TakenOver)
    assert (ran, held(bench)) == ([], 0)
    assert bench.store.context.database.pipeline("test", [("ZCARD", "ca:holders:crm:line")]) == [1]


@pytest.mark.parametrize("wrong", ["", "a|b", 5, ["crm", "crm"], [""], None])
def test_what_names_no_limit_is_refused_where_it_is_written(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="agent 'plain': concurrency="):
        Agent("plain", driver=lambda state: "done", concurrency=wrong)
    with pytest.raises(ConfigurationError, match="tool pay: concurrency="):
        tool(name="pay", concurrency=wrong)(lambda: "paid")


@pytest.mark.parametrize(
    "stored",
    [
        "no JSON",
        "[]",
        "5",
        '{"total": "x"}',
        '{"name": "crm", "total": "x", "since_ms": 5}',
        '{"name": "crm", "per": 5}',
    ],
)
def test_a_limit_that_cannot_be_read_is_waited_for_as_one_that_nobody_has_defined(
    new_bench: NewBench, stored: str
) -> None:
    bench = new_bench(Agent("plain", driver=lambda state: "done", concurrency="crm"))
    bench.store.context.database.pipeline("test", [("HSET", "ca:flow", "concurrency:crm", stored)])
    session = bench.submit()
    assert "nobody has defined the concurrency limit crm" in put_off(bench.step(session)).reason
    assert bench.store.flow.call_waiting() == []
    set_limit(bench)
    bench.store.flow.bring_forward(undefined_cause("crm"))
    assert isinstance(bench.step(session), Done)
