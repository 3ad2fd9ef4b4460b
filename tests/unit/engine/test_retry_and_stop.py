"""Retry continues where it ended, stop keeps what there is (P9 to P11, S8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.engine import Done, NothingToDo
from celery_agents.worker.errors import DriverError, InvalidTransition, ModelCallRefused
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.state import (
    AgentState,
    ExecutionBudget,
    ExecutionStatus,
    InferenceResponse,
    InferenceUsage,
    ToolCall,
    ToolOutcome,
)
from celery_agents.worker.store import NotClaimedReason
from celery_agents.worker.tools import tool

from support.engine import Bench, WorkerDied

NewBench = Callable[..., Bench]


@tool(effect="pure")
def look() -> str:
    """Look."""
    return "seen"


class Fragile:
    """Calls a tool in its first steps, answers after them, and fails at one step as long as `broken`."""

    def __init__(self, steps: int, breaks_at: int) -> None:
        self.steps, self.breaks_at, self.broken = steps, breaks_at, True
        self.asked: list[int] = []

    def __call__(self, state: AgentState) -> Any:
        number = state.step_count + 1
        self.asked.append(number)
        if self.broken and number == self.breaks_at:
            raise DriverError("authentication", "no key", transient=False, status=401)
        return CallTool("look") if number < self.steps else "done"


def test_retry_goes_on_at_the_step_that_failed(new_bench: NewBench) -> None:
    driver = Fragile(steps=4, breaks_at=3)
    bench = new_bench(Agent("a", driver=driver, tools=[look]))
    session_id = bench.submit()
    bench.run(session_id)
    failed = bench.record(session_id)
    assert (failed.status, failed.step_count, failed.errors) == ("failed", 2, ("no key",))
    steps = bench.state(session_id).steps
    driver.broken = False
    bench.clock.go_on(1000)
    applied = bench.retry(session_id)
    assert (applied.outcome, applied.execution_id) == ("started", failed.execution_id)
    ref = bench.due(session_id)
    assert ref is not None
    assert (ref.step, ref.task_id) == (3, f"{failed.execution_id}.3.r1")
    bench.run(session_id)
    record = bench.record(session_id)
    assert (record.status, record.step_count, record.errors, record.retries) == ("completed", 4, (), 1)
    assert driver.asked == [1, 2, 3, 3, 4]
    assert bench.state(session_id).steps[:2] == steps
    assert bench.state(session_id).execution_count == 1


@pytest.mark.parametrize("effect", ["keyed", "unsafe"])
def test_retry_keeps_the_journaled_answer_and_the_journaled_results(new_bench: NewBench, effect: str) -> None:
    """A step that failed with calls done: they are not made again, and the model is not asked again."""
    effects: list[str] = []
    asked: list[int] = []

    @tool(effect=effect)  # type: ignore[call-overload]
    def act(name: str) -> str:
        """Act, and kill the worker at the second."""
        if name == "deadly" and len(effects) < 7:
            effects.append("died")
            raise WorkerDied
        effects.append(name)
        return f"did {name}"

    def driver(state: AgentState) -> Any:
        asked.append(1)
        if state.step_count:
            return "done"
        return [CallTool("act", name="first"), CallTool("act", name="deadly")]

    bench = new_bench(Agent("a", driver=driver, tools=[act], max_parallel_tools=1))
    session_id = bench.submit()
    died = 0
    while bench.due(session_id) is not None:
        try:
            bench.step(session_id)
        except WorkerDied:
            died += 1
            bench.clock.go_on(7)
        if died > 8:
            pytest.fail("it never ended")
    assert effects.count("first") == 1
    if effect == "unsafe":  # begun once, and never again
        assert (died, bench.record(session_id).status, len(asked)) == (1, "completed", 2)
        return
    record = bench.record(session_id)
    assert (record.status, record.stop_reason, died, len(asked)) == ("failed", "retry_limit", 5, 1)
    # What was obtained is kept: the step was committed with its results, and a retry goes on with the next.
    assert record.step_count == 1
    first, deadly = bench.state(session_id).steps[0].tool_executions
    assert (first.outcome, deadly.outcome) == (ToolOutcome.OK, ToolOutcome.UNKNOWN)
    bench.retry(session_id)
    bench.run(session_id)
    assert bench.record(session_id).status == "completed"
    assert effects.count("first") == 1


def test_retry_with_a_larger_budget_goes_on_and_with_the_same_stops_again(new_bench: NewBench) -> None:
    driver = Fragile(steps=5, breaks_at=0)
    bench = new_bench(Agent("a", driver=driver, tools=[look]))
    session_id = bench.submit(budget=ExecutionBudget(max_steps=2))
    bench.run(session_id)
    assert bench.record(session_id).stop_reason == "steps_limit"
    bench.retry(session_id)
    bench.run(session_id)
    assert (bench.record(session_id).stop_reason, bench.record(session_id).step_count) == ("steps_limit", 2)
    assert driver.asked == [1, 2]
    bench.retry(session_id, ExecutionBudget(max_steps=10))
    bench.run(session_id)
    record = bench.record(session_id)
    assert (record.status, record.step_count, record.stop_reason) == ("completed", 5, "completed")
    assert driver.asked == [1, 2, 3, 4, 5]


def test_the_time_between_the_end_and_the_retry_does_not_count(new_bench: NewBench) -> None:
    driver = Fragile(steps=3, breaks_at=2)
    bench = new_bench(Agent("a", driver=driver, tools=[look]))
    session_id = bench.submit(budget=ExecutionBudget(max_seconds=60))
    bench.run(session_id)
    driver.broken = False
    bench.clock.go_on(100_000)
    bench.retry(session_id)
    bench.run(session_id)
    assert bench.record(session_id).status == "completed"


def test_what_has_completed_or_runs_cannot_be_retried(new_bench: NewBench) -> None:
    bench = new_bench(Agent("a", driver=lambda state: "done"))
    session_id = bench.submit()
    with pytest.raises(InvalidTransition):
        bench.retry(session_id)
    bench.run(session_id)
    before = bench.store.sessions.load(session_id)
    with pytest.raises(InvalidTransition):
        bench.retry(session_id)
    assert bench.store.sessions.load(session_id) == before


# --- stop ---------------------------------------------------------------------------------------------------------


def test_a_stop_before_the_first_step_ends_it_at_once_and_a_retry_begins_it(new_bench: NewBench) -> None:
    asked: list[int] = []

    def driver(state: AgentState) -> str:
        asked.append(1)
        return "done"

    bench = new_bench(Agent("a", driver=driver))
    session_id = bench.submit()
    ref = bench.due(session_id)
    assert ref is not None
    assert bench.stop(session_id).outcome == "changed"
    record = bench.record(session_id)
    assert (record.status, record.stop_reason, record.step_count, asked) == ("stopped", "user_requested", 0, [])
    assert bench.events(session_id)[-1] == "execution_stopped"
    late = bench.runner.run_step(ref)
    assert isinstance(late, NothingToDo)
    assert late.reason is NotClaimedReason.ENDED
    bench.retry(session_id)
    bench.run(session_id)
    assert bench.record(session_id).status == "completed"
    assert bench.state(session_id).execution_count == 1


@pytest.mark.parametrize("answer", ["call", "final"])
def test_a_stop_during_a_step_keeps_the_step_and_begins_nothing_new(new_bench: NewBench, answer: str) -> None:
    made: list[int] = []

    @tool(effect="unsafe")
    def act() -> str:
        """Act."""
        made.append(1)
        return "done"

    def driver(state: AgentState) -> Any:
        assert bench.stop(session_id).outcome == "queued"
        return CallTool("act") if answer == "call" else "the answer"

    bench = new_bench(Agent("a", driver=driver, tools=[act]))
    session_id = bench.submit()
    (outcome,) = bench.run(session_id)
    assert isinstance(outcome, Done)
    record = bench.record(session_id)
    assert (record.step_count, made) == (1, [])
    if answer == "final":  # it had its answer already: nothing is half done
        assert (record.status, record.final_response) == ("completed", "the answer")
    else:
        assert (record.status, record.stop_reason) == ("stopped", "user_requested")
        assert bench.state(session_id).steps[0].tool_executions[0].outcome is ToolOutcome.NOT_RUN
    assert bench.events(session_id)[-1] == f"execution_{record.status}"


def test_a_stop_between_two_batches_of_calls_keeps_the_results_of_the_first(new_bench: NewBench) -> None:
    @tool(effect="unsafe")
    def act(n: int) -> int:
        """Act."""
        if n == 1:
            bench.stop(session_id)
        return n

    bench = new_bench(
        Agent("a", driver=lambda state: [CallTool("act", n=n) for n in range(4)], tools=[act], max_parallel_tools=2)
    )
    session_id = bench.submit()
    bench.run(session_id)
    outcomes = [made.outcome.value for made in bench.state(session_id).steps[0].tool_executions]
    assert outcomes == ["ok", "ok", "not_run", "not_run"]
    assert bench.record(session_id).stop_reason == "user_requested"


def test_a_stop_between_two_steps_ends_it_without_another_step(new_bench: NewBench) -> None:
    driver = Fragile(steps=5, breaks_at=0)
    bench = new_bench(Agent("a", driver=driver, tools=[look]))
    session_id = bench.submit()
    bench.step(session_id)
    bench.stop(session_id)
    assert (bench.execution(session_id).status, bench.execution(session_id).step_count) == (ExecutionStatus.STOPPED, 1)
    assert bench.run(session_id) == []


def test_the_end_that_a_stop_makes_without_a_worker_is_told_with_what_was_spent(new_bench: NewBench) -> None:
    answer = InferenceResponse(
        tool_calls=(ToolCall(id="c", name="look"),), usage=InferenceUsage(input=70, output=7), cost=0.5
    )
    bench = new_bench(Agent("a", driver=lambda state: answer, tools=[look]))
    session_id = bench.submit()
    bench.step(session_id)
    bench.stop(session_id)
    end = bench.store.sessions.events(session_id)[-1]
    assert (end.type, end.step) == ("execution_stopped", 1)
    assert end.data == {
        "status": "stopped", "reason": "user_requested", "steps": 1, "tokens": 77, "cost": 0.5, "error": "",
    }  # fmt: skip


def test_a_stop_after_the_death_of_the_worker_keeps_what_it_had_journaled(new_bench: NewBench) -> None:
    @tool(effect="unsafe")
    def act(n: int) -> int:
        """Act, and die at the second."""
        if n == 1:
            raise WorkerDied
        return n

    asked: list[int] = []

    def driver(state: AgentState) -> Any:
        asked.append(1)
        return [CallTool("act", n=n) for n in range(3)]

    bench = new_bench(Agent("a", driver=driver, tools=[act], max_parallel_tools=1))
    session_id = bench.submit()
    bench.worker_died(session_id)
    assert bench.stop(session_id).outcome == "queued"
    bench.run(session_id)
    record = bench.record(session_id)
    assert (record.status, record.stop_reason, record.step_count, len(asked)) == ("stopped", "user_requested", 1, 1)
    outcomes = [made.outcome.value for made in bench.state(session_id).steps[0].tool_executions]
    assert outcomes == ["ok", "unknown", "not_run"]


def test_a_second_stop_changes_nothing(new_bench: NewBench) -> None:
    bench = new_bench(Agent("a", driver=lambda state: "done"))
    session_id = bench.submit()
    bench.stop(session_id)
    before = bench.store.sessions.load(session_id)
    assert bench.stop(session_id).outcome == "again"
    assert bench.store.sessions.load(session_id) == before


def test_a_step_whose_commit_sees_a_stop_says_that_it_has_ended(new_bench: NewBench) -> None:
    @tool(effect="keyed")
    def act() -> str:
        """Act; meanwhile somebody stops the execution."""
        assert bench.stop(session_id).outcome == "queued"
        return "done"

    bench = new_bench(Agent("a", driver=lambda _state: CallTool("act"), tools=[act]))
    session_id = bench.submit()
    (outcome,) = bench.run(session_id)
    assert isinstance(outcome, Done)
    assert (outcome.status, outcome.next) == (ExecutionStatus.STOPPED, None)
    assert outcome.summary.endswith("stopped")


def test_a_hook_at_the_end_of_a_stopped_execution_asks_no_model(new_bench: NewBench) -> None:
    """Also where the commit is the first that sees the stop."""
    refused: list[str] = []

    def ask(context: HookContext) -> HookContext:
        try:
            context.ask_model("why", "Why?")
        except ModelCallRefused as error:
            refused.append(str(error))
        return context

    def stop_and_look(state: AgentState) -> Any:
        bench.stop(session_id)
        return [CallTool("look")]

    bench = new_bench(Agent("a", driver=stop_and_look, tools=[look], hooks=[Hook(HookPoint.ON_STOP, ask)]))
    session_id = bench.submit()
    bench.step(session_id)
    assert bench.record(session_id).status == "stopped"
    assert refused == ["The model may not be asked: the execution is being ended."]
