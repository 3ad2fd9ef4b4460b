"""Applies a run to its session: the step with its answer and results, the signals, and the end of the execution.

These are functions of the run and the time alone: running a step again from the same journal gives the same session.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from ..guards import GuardPoint, GuardView, StopWith, ask_guards, budget_signals
from ..hooks import HookPoint
from ..redaction import describe_exception
from ..state import (
    AgentState,
    AgentStep,
    AgentStepId,
    ErrorInfo,
    ExecutionBudget,
    ExecutionState,
    ExecutionStatus,
    StopReason,
    StopSignal,
)
from .active_lease import Interruption
from .auxiliary_calls import charge
from .run import Run, moment


@dataclass(frozen=True, kw_only=True)
class AppliedStep:
    """A session with a step applied to it.

    Attributes:
        has_ended: Whether the execution has ended.
        has_answer: Whether the step has an answer, and so became part of the execution.
        failure: Why the execution failed beside the errors of its steps; None when it has not.
    """

    state: AgentState
    has_ended: bool
    has_answer: bool
    failure: ErrorInfo | None = None


def start_execution(state: AgentState, limits: ExecutionBudget, started_at: datetime) -> AgentState:
    """Put a pending execution in progress, its budget capped by the agent's limits; others stay as they are."""
    execution = state.execution
    assert execution is not None
    if execution.status is not ExecutionStatus.PENDING:
        return state
    capped = execution.with_budget(limits.capped_by(execution.budget))
    return state.with_context_and_execution(state.context, capped).with_execution_started(now=started_at)


def apply_step(run: Run, now: datetime) -> AppliedStep:
    """Put the answer and the results into the session, and decide whether the execution goes on."""
    state = _with_step(run, now)
    for signal in run.signals:
        state = state.with_stop_signal(signal, now=now)
    has_answer = run.response is not None
    state = run.run_state_hooks(HookPoint.AFTER_STEP, state) if has_answer else state
    state = charge(run, state)
    failure = run.failure
    if failure is None:
        state, failure = _ask_guards(run, state, now)
    if failure is not None:
        state, failure = _fail_execution(run, state, failure, now)
        return AppliedStep(state=state, has_ended=True, has_answer=has_answer, failure=failure)
    if not has_answer or state.should_stop():
        return AppliedStep(state=end_execution(run, state, now), has_ended=True, has_answer=has_answer)
    state = state.with_current_step_completed(claim=run.claim.id, now=now)
    return AppliedStep(state=state, has_ended=False, has_answer=True)


def end_execution(run: Run, state: AgentState, now: datetime) -> AgentState:
    """End the execution, and run the hooks before and after its end."""
    state = run.run_state_hooks(HookPoint.ON_STOP, state)
    ended = state.with_execution_completed(claim=run.claim.id, now=now)
    return charge(run, run.run_state_hooks(HookPoint.AFTER_EXECUTION, ended))


def new_signals(execution: ExecutionState, signals: Iterable[StopSignal]) -> list[StopSignal]:
    """Signals of guards without those the execution has, by reason and source: a guard repeats them at each step."""
    present = {(each.reason, each.source) for each in execution.continuation.stop_signals}
    return [signal for signal in signals if (signal.reason, signal.source) not in present]


def _with_step(run: Run, now: datetime) -> AgentState:
    if run.response is None:
        return run.state
    step = AgentStep.from_inference(
        run.response,
        [run.records[index].execution for index in sorted(run.records)],
        number=run.ref.step,
        inputs=run.seen_extents,
        step_id=AgentStepId.following(run.ref.execution_id, run.ref.step),
    )
    return run.state.with_current_step(step, started_at=moment(run.claim.now_ms), now=now)


def _fail_execution(run: Run, state: AgentState, error: ErrorInfo, now: datetime) -> tuple[AgentState, ErrorInfo]:
    stack = run.agent.hook_stack
    if stack.at(HookPoint.ON_ERROR):
        context = stack.run(run.hook_context(HookPoint.ON_ERROR, state, error=error))
        state, error = context.state, context.error or error
    state = run.run_state_hooks(HookPoint.ON_STOP, state)
    # The failed step is kept with what it has obtained; a retry goes on behind it.
    archived = state.with_current_step_completed(claim=run.claim.id, now=now)
    failed = archived.with_failure(error, now=now)
    return charge(run, run.run_state_hooks(HookPoint.AFTER_EXECUTION, failed)), error


def _ask_guards(run: Run, state: AgentState, now: datetime) -> tuple[AgentState, ErrorInfo | None]:
    """Ask the guards before the next step is published: no step is queued only to find its budget used up.

    A guard that raises here fails the execution; the step that was just done is kept.
    """
    execution = state.execution
    if execution is None or run.response is None:
        return state, None
    if run.lease.interruption is Interruption.LIMIT:  # other limits may have been reached together with the time's
        return _with_signals(state, execution, budget_signals(execution.budget, execution, now), now), None
    if state.should_stop():
        return state, None
    view = GuardView(
        point=GuardPoint.BEFORE_NEXT, state=state, session_id=run.ref.session_id, execution=execution, now=now
    )
    try:
        verdict = ask_guards(run.agent.all_guards, view)
    except Exception as error:  # noqa: BLE001 - a guard of the user's
        failure = describe_exception(error)
        signal = StopSignal(reason=StopReason.ERROR_FORBADE, message=failure.message, source="engine")
        return state.with_stop_signal(signal, now=now), failure
    return _with_signals(state, execution, verdict.signals if isinstance(verdict, StopWith) else (), now), None


def _with_signals(
    state: AgentState, execution: ExecutionState, signals: Iterable[StopSignal], now: datetime
) -> AgentState:
    for signal in new_signals(execution, signals):
        state = state.with_stop_signal(signal, now=now)
    return state
