"""An execution that expires: it is stopped where no model was asked for it in time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from celery_agents.flow import Pause
from celery_agents.worker.agent import Agent
from celery_agents.worker.engine import Done, RetryLater
from celery_agents.worker.guards import Delay, GuardView, Proceed, Verdict
from celery_agents.worker.state import AgentState, ExecutionBudget, ToolCall
from celery_agents.worker.tools import tool

from support.engine import Bench, WorkerDied

NewBench = Callable[..., Bench]


@tool(effect="pure")
def look() -> str:
    """Look."""
    return "seen"


class Asked:
    """A model that is asked twice; it takes a while, and may end its process at first."""

    def __init__(self, bench: Callable[[], Bench] | None = None, *, dies: bool = False) -> None:
        self.steps: list[int] = []
        self.bench = bench
        self.dies = dies

    def __call__(self, state: AgentState) -> Any:
        self.steps.append(state.step_count)
        if self.bench is not None:
            self.bench().clock.go_on(100)
        if self.dies:
            self.dies = False
            raise WorkerDied
        return "done" if state.step_count else [ToolCall(id="c", name="look", args={})]


def submit(bench: Bench, seconds: float, **options: Any) -> str:
    return bench.submit(expires_at=bench.clock.now + timedelta(seconds=seconds), **options)


def test_an_execution_that_has_not_begun_in_time_is_stopped_and_asks_no_model(new_bench: NewBench) -> None:
    model = Asked()
    bench = new_bench(Agent("a", driver=model, tools=[look]))
    session = submit(bench, 10)
    bench.clock.go_on(10)
    bench.run(session)
    record = bench.record(session)
    assert (record.status, record.stop_reason, model.steps) == ("stopped", "time_limit", [])
    signal = bench.execution(session).stop_signal
    assert signal is not None
    assert signal.message.startswith("it had not begun by 20")
    # Who retries it wants it all the same.
    bench.retry(session)
    bench.run(session)
    assert bench.record(session).status == "completed"


def test_what_has_begun_does_not_expire(new_bench: NewBench) -> None:
    made: list[Bench] = []
    model = Asked(lambda: made[0])
    made.append(new_bench(Agent("a", driver=model, tools=[look])))
    session = submit(made[0], 10)
    made[0].run(session)
    assert (made[0].record(session).status, model.steps) == ("completed", [0, 1])


def test_a_first_call_that_a_crash_cut_off_has_not_begun_it(new_bench: NewBench) -> None:
    model = Asked(dies=True)
    bench = new_bench(Agent("a", driver=model, tools=[look]))
    session = submit(bench, 5)
    bench.worker_died(session)
    bench.clock.go_on(5)
    bench.run(session)
    assert (bench.record(session).stop_reason, model.steps) == ("time_limit", [0])


def test_a_step_that_is_put_off_or_delayed_comes_back_when_it_expires(new_bench: NewBench) -> None:
    class Late:
        def check(self, view: GuardView) -> Verdict:
            return Delay(3600) if view.execution.step_count == 0 and not paused else Proceed()

    model, paused = Asked(), False
    bench = new_bench(Agent("a", driver=model, tools=[look], guards=[Late()]))
    session = submit(bench, 10)
    outcome = bench.step(session)
    assert isinstance(outcome, RetryLater)
    assert outcome.seconds == 10

    paused = True
    bench.store.flow.pause(Pause(kind="agent", name="a", reason="a freeze"))
    bench.gate.refresh()
    session = submit(bench, 20, budget=ExecutionBudget(max_seconds=3600))
    outcome = bench.step(session)
    assert isinstance(outcome, RetryLater)
    assert outcome.seconds == 20
    bench.clock.go_on(20)
    assert isinstance(bench.step(session), Done), "a pause does not hold an end up"
    assert (bench.record(session).stop_reason, model.steps) == ("time_limit", [])


@pytest.mark.parametrize("seconds", [5.0, 20.0])
def test_a_deadline_counts_beside_it(new_bench: NewBench, seconds: float) -> None:
    bench = new_bench(Agent("a", driver=Asked(), tools=[look]))
    bench.store.flow.pause(Pause(kind="agent", name="a", reason="a freeze"))
    bench.gate.refresh()
    deadline = bench.clock.now + timedelta(seconds=seconds)
    outcome = bench.step(submit(bench, 10, budget=ExecutionBudget(deadline=deadline)))
    assert isinstance(outcome, RetryLater)
    assert outcome.seconds == min(10, seconds)
