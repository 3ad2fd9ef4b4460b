"""The table of transitions, pair by pair, and what a change of status does to the times."""

from __future__ import annotations

import itertools

import pytest

from celery_agents.worker.errors import InvalidTransition
from celery_agents.worker.state import (
    TRANSITIONS,
    AgentState,
    ErrorInfo,
    ExecutionBudget,
    ExecutionState,
    ExecutionStatus,
    StopReason,
    StopSignal,
)

from support.states import NOON, at, failed, final_step, running, stored_and_loaded, tool_step

PENDING, IN_PROGRESS, WAITING, COMPLETED, STOPPED, FAILED = ExecutionStatus
PAIRS = tuple(itertools.product(ExecutionStatus, repeat=2))


def in_status(status: ExecutionStatus) -> ExecutionState:
    started = None if status is PENDING else NOON
    return ExecutionState(status=status, created_at=NOON, started_at=started)


def test_the_table_names_every_status() -> None:
    assert set(TRANSITIONS) == set(ExecutionStatus)
    assert [status.value for status in ExecutionStatus] == [
        "pending", "in_progress", "waiting", "completed", "stopped", "failed",
    ]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_every_pair_of_statuses(before: ExecutionStatus, after: ExecutionStatus) -> None:
    execution = in_status(before)
    if before is after:
        assert execution.with_status(after, at(1)) is execution
    elif before.may_become(after):
        assert execution.with_status(after, at(1)).status is after
    else:
        with pytest.raises(InvalidTransition) as caught:
            execution.with_status(after, at(1))
        assert (caught.value.before, caught.value.after) == (before, after)
        assert execution.execution_id in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after"),
    (
        (PENDING, WAITING),
        (PENDING, COMPLETED),
        (IN_PROGRESS, PENDING),
        (WAITING, COMPLETED),
        (WAITING, PENDING),
        (COMPLETED, IN_PROGRESS),
        (COMPLETED, FAILED),
        (COMPLETED, STOPPED),
        (STOPPED, FAILED),
        (STOPPED, COMPLETED),
        (FAILED, COMPLETED),
        (FAILED, WAITING),
    ),
)
def test_these_changes_are_never_allowed(before: ExecutionStatus, after: ExecutionStatus) -> None:
    assert not before.may_become(after)


@pytest.mark.parametrize("status", ExecutionStatus)
def test_the_terminal_statuses(status: ExecutionStatus) -> None:
    assert status.is_terminal() is (status in (COMPLETED, STOPPED, FAILED))


def test_every_terminal_status_is_reached_from_in_progress_and_none_is_a_dead_end_but_completed() -> None:
    assert {WAITING, COMPLETED, STOPPED, FAILED} == TRANSITIONS[IN_PROGRESS]
    assert [status for status in ExecutionStatus if not TRANSITIONS[status]] == [COMPLETED]


def test_times_follow_the_status() -> None:
    execution = in_status(PENDING).with_status(IN_PROGRESS, at(1))
    assert (execution.started_at, execution.completed_at) == (at(1), None)
    done = execution.with_status(COMPLETED, at(5))
    assert (done.started_at, done.completed_at) == (at(1), at(5))


def test_b9_waiting_for_a_person_does_not_count_as_elapsed() -> None:
    state = running().with_current_step(tool_step()).with_execution_waiting(now=at(10))
    execution = state.execution
    assert execution is not None
    assert execution.elapsed_seconds(at(500)) == 10
    assert execution.duration(at(500)) == 500
    resumed = stored_and_loaded(state).with_execution_resumed(now=at(500)).execution
    assert resumed is not None
    assert resumed.waited_seconds == 490
    assert resumed.waiting_since is None
    assert resumed.elapsed_seconds(at(503)) == 13


def test_b9_stopping_while_waiting_counts_the_wait_once() -> None:
    state = running().with_execution_waiting(now=at(10)).with_execution_status(STOPPED, now=at(100))
    assert state.execution.elapsed_seconds(at(999)) == 10  # type: ignore[union-attr]


def test_b9_elapsed_counts_from_the_persisted_start() -> None:
    again = stored_and_loaded(running())
    assert again.execution.elapsed_seconds(at(7.5)) == 7.5  # type: ignore[union-attr]
    assert again.execution.elapsed_seconds(at(-7.5)) == 0  # type: ignore[union-attr]


def stopped_and_retried() -> tuple[AgentState, AgentState]:
    state = running(budget=ExecutionBudget(max_steps=1, max_seconds=60))
    state = state.with_current_step(tool_step(failed()), now=at(1)).with_current_step_completed(now=at(2))
    state = state.with_stop_signal(StopSignal(reason=StopReason.STEPS_LIMIT_REACHED))
    state = state.with_failure(ErrorInfo(kind="timeout"), now=at(3))
    return state, state.for_retry(ExecutionBudget(max_steps=9, max_seconds=60), now=at(1000))


def test_a_retry_goes_on_with_the_same_execution_and_its_steps() -> None:
    before, after = stopped_and_retried()
    assert before.execution is not None
    assert after.execution is not None
    assert after.execution.execution_id == before.execution.execution_id
    assert after.status is IN_PROGRESS
    assert after.steps == before.steps
    assert after.step_count == before.step_count
    assert after.execution.retries == 1
    assert after.execution_count == before.execution_count
    assert after.execution.budget.max_steps == 9
    assert not after.should_stop()


def test_a_retry_clears_what_ended_the_execution() -> None:
    _, after = stopped_and_retried()
    assert after.execution is not None
    assert after.execution.errors == ()
    assert after.stop_signal is None
    assert after.execution.completed_at is None
    done = stored_and_loaded(after).with_current_step(final_step()).with_execution_completed()
    assert done.status is COMPLETED


def test_the_time_between_failure_and_retry_does_not_count() -> None:
    _, after = stopped_and_retried()
    assert after.execution.elapsed_seconds(at(1002)) == 5  # type: ignore[union-attr]


def test_a_retry_keeps_the_budget_unless_another_is_given() -> None:
    before, _ = stopped_and_retried()
    assert before.for_retry().execution.budget == before.execution.budget  # type: ignore[union-attr]


def test_a_retry_of_an_execution_that_never_started_starts_and_counts_it() -> None:
    state = AgentState.fresh(now=NOON).with_execution(now=NOON).with_failure(ErrorInfo(kind="no_agent"), now=at(1))
    assert state.execution_count == 0
    after = state.for_retry(now=at(50))
    assert after.execution_count == 1
    assert after.execution.started_at == at(50)  # type: ignore[union-attr]
    assert after.execution.elapsed_seconds(at(60)) == 10  # type: ignore[union-attr]


def test_a_retry_that_ends_at_once_does_not_see_the_former_signals() -> None:
    _, after = stopped_and_retried()
    assert after.with_stop_signal(StopSignal(reason=StopReason.COMPLETED)).stop_signal.reason is StopReason.COMPLETED  # type: ignore[union-attr]


@pytest.mark.parametrize("status", (None, PENDING, IN_PROGRESS, WAITING, COMPLETED))
def test_only_failed_and_stopped_executions_are_retried(status: ExecutionStatus | None) -> None:
    state = AgentState.fresh()
    if status is not None:
        state = state.with_context_and_execution(state.context, in_status(status))
    with pytest.raises(InvalidTransition):
        state.for_retry()


def test_another_budget_for_an_execution() -> None:
    execution = in_status(PENDING).with_limits(ExecutionBudget(max_steps=4), 0)
    assert execution.budget.max_steps == 4
    assert execution.status is PENDING
