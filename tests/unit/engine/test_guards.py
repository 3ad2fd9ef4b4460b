"""Guards of users, and the one for finish reasons: the closed set of answers, and what each does to a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.engine import Done, RetryLater
from celery_agents.worker.errors import ConfigurationError, InvalidInput
from celery_agents.worker.guards import (
    PROCEED,
    Delay,
    FinishReasonGuard,
    Guard,
    GuardPoint,
    GuardView,
    StopWith,
    Verdict,
)
from celery_agents.worker.state import (
    AgentState,
    ExecutionBudget,
    FinishReason,
    InferenceResponse,
    StopReason,
    StopSignal,
    ToolCall,
)
from celery_agents.worker.store import NotClaimedReason
from celery_agents.worker.tools import tool

from support.engine import Bench, fragile_tool

NewBench = Callable[..., Bench]
ASKED_ALWAYS = (GuardPoint.BEFORE_CALL, GuardPoint.BEFORE_NEXT)


@tool(effect="pure")
def look() -> str:
    """Look."""
    return "seen"


class Answering:
    """Answers one thing at one point from a step on, and remembers what it was asked."""

    def __init__(self, verdict: Callable[[], Any], point: GuardPoint, step: int = 0) -> None:
        self.verdict, self.point, self.step = verdict, point, step
        self.views: list[GuardView] = []

    def check(self, view: GuardView) -> Verdict:
        self.views.append(view)
        if view.point is self.point and view.execution.step_count >= self.step:
            return self.verdict()
        return PROCEED


def _stop(reason: StopReason = StopReason.STOP_REQUESTED, source: str = "mine") -> StopWith:
    return StopWith((StopSignal(reason=reason, message="enough", source=source),))


def guarded(*guards: Guard, **fields: Any) -> tuple[Agent, list[int]]:
    """An agent that calls a tool in two steps and then answers, and the steps its driver was asked for."""
    asked: list[int] = []

    def driver(state: AgentState) -> Any:
        asked.append(state.step_count + 1)
        return CallTool("look") if state.step_count < 2 else "done"

    return Agent("guarded", **{"driver": driver, "tools": [look], "guards": guards, **fields}), asked


@pytest.mark.parametrize(
    ("point", "step", "asked", "committed"),
    [
        (GuardPoint.BEFORE_CALL, 0, [], 0),
        (GuardPoint.BEFORE_CALL, 1, [1], 1),
        (GuardPoint.BEFORE_NEXT, 1, [1], 1),
        (GuardPoint.BEFORE_NEXT, 2, [1, 2], 2),
    ],
)
def test_a_stop_is_obeyed_at_both_points(
    new_bench: NewBench, point: GuardPoint, step: int, asked: list[int], committed: int
) -> None:
    agent, steps = guarded(Answering(_stop, point, step))
    record = new_bench(agent).ran()
    assert (record.status, record.stop_reason, record.stop_message) == ("stopped", "stop_requested", "enough")
    assert (steps, record.step_count) == (asked, committed)


def test_all_guards_are_asked_and_the_most_authoritative_signal_decides(new_bench: NewBench) -> None:
    weak = Answering(lambda: _stop(StopReason.UNKNOWN, "weak"), GuardPoint.BEFORE_NEXT)
    strong = Answering(lambda: _stop(StopReason.ERROR_FORBADE, "strong"), GuardPoint.BEFORE_NEXT)
    agent, _ = guarded(weak, strong, budget=ExecutionBudget(max_steps=1))
    bench = new_bench(agent)
    session_id = bench.submit()
    bench.run(session_id)
    signals = bench.execution(session_id).continuation.stop_signals
    assert [signal.source for signal in signals] == ["BudgetGuard", "weak", "strong"]
    assert bench.record(session_id).stop_reason == "error"


def test_a_guard_sees_the_step_that_was_done_and_redis_time(new_bench: NewBench) -> None:
    guard = Answering(lambda: PROCEED, GuardPoint.BEFORE_CALL)
    agent, _ = guarded(guard)
    bench = new_bench(agent)
    session_id = bench.submit()
    bench.step(session_id)
    before, after = guard.views
    assert (before.point, before.state.current_step, before.session_id) == (GuardPoint.BEFORE_CALL, None, session_id)
    assert after.state.current_step is not None
    assert after.state.current_step.number == 1
    assert abs((after.now - bench.clock.now).total_seconds()) < 0.01


def test_a_guard_may_put_the_first_call_off_without_counting_an_attempt(new_bench: NewBench) -> None:
    guard = Answering(lambda: Delay(30.0, "quota of this customer"), GuardPoint.BEFORE_CALL)
    agent, asked = guarded(guard)
    bench = new_bench(agent)
    session_id = bench.submit()
    for _ in range(10):  # more often than a step may be attempted
        (outcome,) = bench.run(session_id)
        assert isinstance(outcome, RetryLater)
        assert (outcome.seconds, outcome.reason) == (30.0, "quota of this customer")
        early = bench.step(session_id)
        assert getattr(early, "reason", None) is NotClaimedReason.NOT_YET
        bench.clock.go_on(30.1)
    assert asked == []
    guard.verdict = lambda: PROCEED
    bench.run(session_id)
    assert bench.record(session_id).status == "completed"


def test_a_delay_ends_with_the_budget(new_bench: NewBench) -> None:
    guard = Answering(lambda: Delay(3600.0), GuardPoint.BEFORE_CALL)
    agent, asked = guarded(guard, budget=ExecutionBudget(max_seconds=60))
    bench = new_bench(agent)
    session_id = bench.submit()
    (outcome,) = bench.run(session_id)
    assert isinstance(outcome, RetryLater)
    bench.clock.go_on(60.1)
    bench.run(session_id)
    assert (bench.record(session_id).stop_reason, asked) == ("time_limit", [])


def test_before_the_next_step_a_delay_means_to_proceed(new_bench: NewBench) -> None:
    agent, _ = guarded(Answering(lambda: Delay(30.0), GuardPoint.BEFORE_NEXT))
    assert new_bench(agent).ran().status == "completed"


def test_the_longest_delay_counts_and_a_stop_beats_every_delay(new_bench: NewBench) -> None:
    delays = [
        Answering(lambda: Delay(5.0), GuardPoint.BEFORE_CALL),
        Answering(lambda: Delay(9.0), GuardPoint.BEFORE_CALL),
    ]
    agent, _ = guarded(*delays)
    bench = new_bench(agent)
    outcome = bench.step(bench.submit())
    assert isinstance(outcome, RetryLater)
    assert outcome.seconds == 9.0
    agent, _ = guarded(*delays, Answering(_stop, GuardPoint.BEFORE_CALL))
    assert new_bench(agent).ran().status == "stopped"


def test_a_step_that_has_obtained_something_is_not_delayed(new_bench: NewBench) -> None:
    guard = Answering(lambda: Delay(30.0), GuardPoint.BEFORE_CALL, step=99)
    bench = new_bench(
        Agent(
            "fragile",
            driver=lambda s: "end" if s.step_count else CallTool("fragile"),
            tools=[fragile_tool()],
            guards=[guard],
        )
    )
    session_id = bench.submit()
    bench.worker_died(session_id)
    guard.step = 0
    assert isinstance(bench.step(session_id), Done)
    assert bench.execution(session_id).step_count == 1


@pytest.mark.parametrize("point", ASKED_ALWAYS)
def test_a_guard_that_raises_fails_the_execution_and_keeps_the_steps(new_bench: NewBench, point: GuardPoint) -> None:
    def broken() -> Verdict:
        raise RuntimeError("guard broke with password=hunter2hunter2")

    agent, _ = guarded(Answering(broken, point, step=1))
    bench = new_bench(agent)
    session_id = bench.submit()
    outcomes = bench.run(session_id)
    record = bench.record(session_id)
    assert (record.status, record.stop_reason, record.step_count) == ("failed", "error", 1)
    assert record.errors[-1] == "RuntimeError: guard broke with password=[redacted]"
    assert isinstance(outcomes[-1], Done)
    assert outcomes[-1].error == record.errors[-1]
    assert bench.events(session_id)[-1] == "execution_failed"


@pytest.mark.parametrize("point", ASKED_ALWAYS)
@pytest.mark.parametrize("answer", [None, True, "stop"])
def test_a_guard_that_answers_something_else_does_not_count_as_agreement(
    new_bench: NewBench, point: GuardPoint, answer: Any
) -> None:
    agent, _ = guarded(Answering(lambda: answer, point))
    record = new_bench(agent).ran()
    assert record.status == "failed"
    assert "guard Answering: answer Proceed(), StopWith(…) or Delay(…)" in record.errors[-1]


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_delay_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidInput, match=r"Delay\.seconds"):
        Delay(seconds)


@pytest.mark.parametrize("signals", [(), ("stop",), (None,)])
def test_a_stop_without_a_signal_is_refused(signals: Any) -> None:
    with pytest.raises(InvalidInput, match=r"StopWith\.signals"):
        StopWith(signals)


# --- finish reasons -----------------------------------------------------------------------------------------------


def _ending_with(reason: FinishReason, *, calls: bool) -> Callable[[AgentState], InferenceResponse]:
    def driver(state: AgentState) -> InferenceResponse:
        tool_calls = (ToolCall(id="c", name="look"),) if calls and not state.step_count else ()
        return InferenceResponse(content="half an ans", tool_calls=tool_calls, finish_reason=reason)

    return driver


def test_an_answer_that_ended_for_a_named_reason_stops_with_its_context(new_bench: NewBench) -> None:
    guard = FinishReasonGuard(["length", FinishReason.CONTENT_FILTER])
    bench = new_bench(Agent("cut", driver=_ending_with(FinishReason.LENGTH, calls=True), tools=[look], guards=[guard]))
    session_id = bench.submit()
    bench.run(session_id)
    record = bench.record(session_id)
    # By the table of reasons it is no forced stop, but the answer is cut short: nobody should take it for complete.
    assert (record.status, record.stop_reason, record.step_count) == ("stopped", "finish_reason", 1)
    (signal,) = bench.execution(session_id).continuation.stop_signals
    assert dict(signal.context) == {"finishReason": "length", "stopReasons": ("content_filter", "length")}
    assert signal.source == "FinishReasonGuard"


def test_other_finish_reasons_go_on(new_bench: NewBench) -> None:
    agent = Agent(
        "cut",
        driver=_ending_with(FinishReason.TOOL_CALLS, calls=True),
        tools=[look],
        guards=[FinishReasonGuard(["length"])],
    )
    record = new_bench(agent).ran()
    assert (record.stop_reason, record.step_count) == ("completed", 2)


def test_a_finish_reason_that_does_not_exist_is_refused() -> None:
    for reasons in (["lenght"], "length", [None]):
        with pytest.raises(ConfigurationError, match="content_filter"):
            FinishReasonGuard(reasons)  # type: ignore[arg-type]
