"""Whether an execution goes on, why it stopped, and as what it ends."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_agents.worker.state import (
    PRIORITIES,
    AgentState,
    ErrorInfo,
    ExecutionContinuation,
    ExecutionState,
    ExecutionStatus,
    StepExecution,
    StopReason,
    StopSignal,
    StopSignals,
)

from support.states import NOON, at, executed, failed, final_step, running, signals, stored_and_loaded, tool_step


def signal(reason: StopReason, message: str = "") -> StopSignal:
    return StopSignal(reason=reason, message=message)


STEPS = signal(StopReason.STEPS_LIMIT_REACHED, "20 of 20 steps")
USER = signal(StopReason.USER_REQUESTED)


def deciding(*, signalled: bool, continued: bool, calls: bool, archived: bool) -> AgentState:
    state = running().with_current_step(tool_step() if calls else final_step())
    state = state.with_current_step_completed() if archived else state
    state = state.with_stop_signal(STEPS) if signalled else state
    return state.with_execution_continued() if continued else state


@pytest.mark.parametrize("archived", (False, True))
@pytest.mark.parametrize(
    ("signalled", "continued", "calls", "stops"),
    (
        (True, False, False, True),
        (True, False, True, True),
        (True, True, False, False),
        (True, True, True, False),
        (False, True, False, False),
        (False, True, True, False),
        (False, False, True, False),
        (False, False, False, True),
    ),
)
def test_p1_should_stop(*, signalled: bool, continued: bool, calls: bool, archived: bool, stops: bool) -> None:
    state = deciding(signalled=signalled, continued=continued, calls=calls, archived=archived)
    assert state.should_stop() is stops
    assert stored_and_loaded(state).should_stop() is stops


def test_p1_without_execution_or_steps_it_stops() -> None:
    assert AgentState.fresh().should_stop()
    assert running().should_stop()


def test_s7_a_failed_tool_does_not_stop_the_execution() -> None:
    assert not running().with_current_step(tool_step(failed())).should_stop()


@given(st.lists(signals, max_size=5))
def test_p2_the_highest_signal_wins_whatever_the_order(given_signals: Sequence[StopSignal]) -> None:
    found = StopSignals(given_signals).highest()
    if not given_signals:
        assert found is None
        return
    assert found is not None
    best = min(PRIORITIES[each.reason] for each in given_signals)
    assert found is next(each for each in given_signals if PRIORITIES[each.reason] == best)


def test_p2_equal_ranks_go_to_the_first() -> None:
    first, second = signal(StopReason.USER_REQUESTED, "first"), signal(StopReason.USER_REQUESTED, "second")
    assert StopSignals((first, second)).highest() is first
    assert StopSignals().highest() is None
    assert StopSignals().first() is None
    assert StopSignals((USER, STEPS)).first() is USER


def test_p2_signals_are_added_and_never_merged() -> None:
    state = running().with_stop_signal(USER).with_stop_signal(USER).with_stop_signal(STEPS)
    assert state.execution.continuation.stop_signals == (USER, USER, STEPS)  # type: ignore[union-attr]


def test_p3_the_reasons_their_values_and_their_ranks() -> None:
    ranked = sorted(StopReason, key=lambda reason: reason.priority)
    assert [(reason.priority, reason.value) for reason in ranked if reason is not StopReason.COST_LIMIT_REACHED] == [
        (0, "error"),
        (1, "stop_requested"),
        (2, "steps_limit"),
        (3, "token_limit"),
        (4, "time_limit"),
        (5, "retry_limit"),
        (6, "finish_reason"),
        (7, "user_requested"),
        (7, "hold_expired"),
        (8, "completed"),
        (9, "unknown"),
    ]
    assert set(PRIORITIES) == set(StopReason)


def test_p3_a_cost_limit_ranks_with_tokens() -> None:
    assert StopReason.COST_LIMIT_REACHED.priority == StopReason.TOKEN_LIMIT_REACHED.priority


def test_p4_only_two_endings_are_natural() -> None:
    natural = {reason for reason in StopReason if not reason.was_force_stopped()}
    assert natural == {StopReason.COMPLETED, StopReason.FINISH_REASON_RECEIVED}


def test_p5_signals_survive_storing_with_context_and_source() -> None:
    given_signal = StopSignal(
        reason=StopReason.TOKEN_LIMIT_REACHED,
        message="1000 of 1000 tokens",
        context={"totalTokens": 1000, "maxTotalTokens": 1000, "by": {"input": 1}},  # type: ignore[arg-type]
        source="TokenLimit",
    )
    state = running().with_current_step(tool_step()).with_stop_signal(given_signal).with_current_step_completed()
    again = stored_and_loaded(state)
    assert again.execution.continuation.stop_signals == (given_signal,)  # type: ignore[union-attr]
    assert again.execution.step_executions[0].continuation.stop_signals == (given_signal,)  # type: ignore[union-attr]
    assert type(again.execution.continuation.stop_signals) is StopSignals  # type: ignore[union-attr]


def test_p6_a_stronger_signal_added_while_stopping_decides_reason_and_status() -> None:
    state = running().with_current_step(final_step()).with_stop_signal(signal(StopReason.COMPLETED))
    assert state.with_execution_completed().status is ExecutionStatus.COMPLETED
    state = state.with_stop_signal(signal(StopReason.STOP_REQUESTED)).with_execution_completed()
    assert state.status is ExecutionStatus.STOPPED
    assert state.last_stop_reason is StopReason.STOP_REQUESTED


def with_signals(archived: tuple[StopSignal, ...], live: tuple[StopSignal, ...]) -> ExecutionState:
    step = final_step()
    done = StepExecution(
        id=step.id,
        step=step,
        continuation=ExecutionContinuation(stop_signals=StopSignals(archived)),
        started_at=NOON,
        completed_at=NOON,
    )
    live_ones = ExecutionContinuation(stop_signals=StopSignals(live))
    return ExecutionState(step_executions=(done,), continuation=live_ones)


def test_p7_the_stronger_of_the_live_and_the_last_steps_signal_wins() -> None:
    assert with_signals((USER,), (STEPS,)).stop_signal is STEPS
    assert with_signals((STEPS,), (USER,)).stop_signal is STEPS
    assert with_signals((), ()).stop_signal is None


def test_p7_of_equal_ones_the_last_steps_wins() -> None:
    archived, live = signal(StopReason.USER_REQUESTED, "step"), signal(StopReason.USER_REQUESTED, "live")
    assert with_signals((archived,), (live,)).stop_signal is archived


def test_p8_a_request_to_continue_ends_with_its_step_and_signals_do_not() -> None:
    state = running().with_current_step(tool_step()).with_stop_signal(STEPS).with_execution_continued()
    assert not state.should_stop()
    state = state.with_current_step_completed()
    assert state.should_stop()
    assert not state.execution.step_executions[0].continuation.is_continuation_requested  # type: ignore[union-attr]
    assert not state.with_execution_continued().should_stop()


@pytest.mark.parametrize("started", (False, True))
def test_p9_stopped_before_the_first_step(started: bool) -> None:
    state = AgentState.fresh().with_user_message("hi").with_execution()
    state = state.with_execution_started() if started else state
    state = state.with_stop_signal(USER)
    assert state.should_stop()
    done = state.with_execution_completed()
    assert (done.status, done.step_count, done.last_stop_reason) == (
        ExecutionStatus.STOPPED, 0, StopReason.USER_REQUESTED,
    )  # fmt: skip


def test_p10_a_step_that_was_running_when_the_stop_came_is_kept() -> None:
    state = running().with_stop_signal(USER).with_current_step(tool_step())
    assert state.should_stop()
    done = state.with_current_step_completed().with_execution_completed()
    assert (done.status, done.step_count) == (ExecutionStatus.STOPPED, 1)


def test_p13_a_stop_from_inside_a_tool_keeps_the_step_its_tools_and_its_tokens() -> None:
    tools = executed(value="bought"), executed(outcome="not_run", index=1)  # type: ignore[arg-type]
    state = running().with_current_step(tool_step(*tools))
    state = state.with_stop_signal(signal(StopReason.STOP_REQUESTED)).with_execution_completed()
    assert state.status is ExecutionStatus.STOPPED
    assert state.usage.total == 15
    assert [execution.outcome for execution in state.steps[0].tool_executions] == ["ok", "not_run"]


def test_p14_a_failure_keeps_the_signals_and_shows_without_a_step() -> None:
    error = ErrorInfo(kind="timeout", message="the model did not answer")
    state = running().with_stop_signal(USER).with_failure(error, now=at(3))
    assert state.status is ExecutionStatus.FAILED
    assert state.errors == (error,)
    assert state.execution.continuation.stop_signals == (USER,)  # type: ignore[union-attr]
    assert state.execution.completed_at == at(3)  # type: ignore[union-attr]
    assert stored_and_loaded(state).errors == (error,)


def test_p14_a_failure_in_a_step_archives_it_with_the_error() -> None:
    error = ErrorInfo(kind="boom")
    state = running().with_current_step(tool_step()).with_failure(error)
    assert state.current_step is None
    assert state.steps[0].errors == (error,)
    assert state.errors == (error,)


def test_p15_a_failure_before_the_first_step_has_no_steps() -> None:
    state = running().with_failure(ErrorInfo(kind="hook"))
    assert (state.status, state.step_count, state.steps) == (ExecutionStatus.FAILED, 0, ())


def test_a_second_failure_is_added_to_the_first() -> None:
    state = running().with_failure(ErrorInfo(kind="one"), now=at(1)).with_failure(ErrorInfo(kind="two"), now=at(2))
    assert [error.kind for error in state.errors] == ["one", "two"]
    assert state.execution.completed_at == at(1)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("signal_given", "error", "tool_failed", "status"),
    (
        (None, False, False, ExecutionStatus.COMPLETED),
        (StopReason.FINISH_REASON_RECEIVED, False, False, ExecutionStatus.COMPLETED),
        (StopReason.COMPLETED, False, False, ExecutionStatus.COMPLETED),
        (StopReason.STEPS_LIMIT_REACHED, False, False, ExecutionStatus.STOPPED),
        (StopReason.UNKNOWN, False, False, ExecutionStatus.STOPPED),
        (StopReason.STEPS_LIMIT_REACHED, True, False, ExecutionStatus.FAILED),
        (StopReason.STEPS_LIMIT_REACHED, False, True, ExecutionStatus.STOPPED),
        (StopReason.COST_LIMIT_REACHED, False, True, ExecutionStatus.STOPPED),
        (StopReason.STOP_REQUESTED, False, True, ExecutionStatus.FAILED),
        (None, False, True, ExecutionStatus.FAILED),
        (None, True, False, ExecutionStatus.FAILED),
    ),
)
def test_failed_comes_before_stopped_and_stopped_before_completed(
    signal_given: StopReason | None, error: bool, tool_failed: bool, status: ExecutionStatus
) -> None:
    state = running().with_current_step(tool_step(failed()) if tool_failed else final_step())
    if signal_given is not None:
        state = state.with_stop_signal(signal(signal_given))
    if error:
        state = state.with_current_step_completed()
        state = state.with_context_and_execution(state.context, state.execution.with_error(ErrorInfo(kind="engine")))  # type: ignore[union-attr]
    assert state.with_execution_completed().status is status


@pytest.mark.parametrize("end", ("completed", "stopped", "failed"))
def test_ending_an_ended_execution_changes_nothing_of_it(end: str) -> None:
    state = running().with_execution_status(ExecutionStatus(end), now=at(1))
    assert state.with_execution_completed(now=at(9)).execution == state.execution


def test_the_reason_of_a_natural_ending_is_completed() -> None:
    state = running().with_current_step(final_step())
    assert state.last_stop_reason is None
    assert state.with_execution_completed().last_stop_reason is StopReason.COMPLETED


@pytest.mark.parametrize(("count", "continued"), tuple(itertools.product((0, 1, 2), (False, True))))
def test_a_continuation_explains_itself(count: int, continued: bool) -> None:
    given_signals = StopSignals((STEPS, USER)[:count])
    text = ExecutionContinuation(stop_signals=given_signals, is_continuation_requested=continued).explain()
    wanted = ("No Stop Signals", "Stop Signals: steps_limit: 20 of 20 steps")[min(count, 1)]
    wanted += " | user_requested" if count == 2 else ""
    assert text == f"{wanted}; Continuation Requested: {'Yes' if continued else 'No'}"
