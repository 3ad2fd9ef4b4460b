"""Applies a run to its session: the step with its answer and results, the signals, and the end of the execution.

These are functions of the run and the time alone: running a step again from the same journal gives the same session.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from ..guards import GuardPoint, GuardView, StopWith, ask_guards, budget_signals
from ..hooks import HookPoint
from ..moments import moment
from ..redaction import describe_exception
from ..requests.grants import Grant, with_grant
from ..state.agent_state import AgentState
from ..state.execution.answers import AnswerVerb, Remember
from ..state.execution.budget import ExecutionBudget
from ..state.execution.execution import ExecutionState
from ..state.execution.signals import StopReason, StopSignal
from ..state.execution.status import ExecutionStatus
from ..state.execution.steps import AgentStep
from ..state.execution.tool_calls import ToolExecution
from ..state.values.error_info import ErrorInfo
from ..state.values.ids import AgentStepId
from .charges import charge, charge_children
from .child_calls import merge_children
from .endings import error_of_end, signals_of_end
from .leases import Interruption
from .run import Run


@dataclass(frozen=True, kw_only=True)
class AppliedStep:
    """A session with a step applied to it.

    Attributes:
        has_ended: Whether the execution has ended.
        has_answer: Whether the step has an answer, and so became part of the execution.
        failure: Why the execution failed, besides the errors of its steps; None when it has not.
        going_on: The session if the execution continues; None where it must end.
    """

    state: AgentState
    has_ended: bool
    has_answer: bool
    failure: ErrorInfo | None = None
    going_on: AgentState | None = None


def without_provider_time(state: AgentState, waited_ms: int) -> AgentState:
    """Do not count the time for which a step has waited for a provider; a wait for anything else has saved that."""
    execution = state.execution
    if not waited_ms or execution is None or execution.status is ExecutionStatus.WAITING:
        return state
    return state.with_context_and_execution(state.context, execution.with_time_apart(waited_ms / 1000))


def start_execution(
    state: AgentState,
    limits: ExecutionBudget,
    started_at: datetime,
    *,
    resumed_at: datetime | None = None,
    default_steps: int = 0,
    budget: ExecutionBudget | None = None,
) -> AgentState:
    """Put a pending execution in progress, its budget capped by the agent's limits; others stay as they are.

    Args:
        default_steps: Most steps where neither the agent nor the message has a budget; 0: no limit.
        resumed_at: When an execution that waits continues. None: it stays as it is, too.
        budget: The budget that was set since the state was saved. None: none was.
    """
    execution = state.execution
    assert execution is not None
    if execution.status is ExecutionStatus.WAITING and resumed_at is not None:
        state = state.with_execution_resumed(now=resumed_at)
    elif execution.status is ExecutionStatus.PENDING:
        capped = execution.with_limits(limits, default_steps)
        state = state.with_context_and_execution(state.context, capped).with_execution_started(now=started_at)
    if budget is None or state.execution is None:
        return state
    return state.with_context_and_execution(state.context, state.execution.with_budget(budget))


def apply_step(run: Run, now: datetime) -> AppliedStep:
    """Put the answer and the results into the session, and decide whether the execution continues."""
    state = _with_step(run, now)
    for signal in run.ending.signals:
        state = state.with_stop_signal(signal, now=now)
    has_answer = run.obtained.response is not None
    state = run.change_by_hooks(HookPoint.AFTER_STEP, state) if has_answer else state
    state = charge(run, state)
    if state.execution is not None and state.execution.status.is_terminal():
        return _end_as_hook_decided(run, state, now)
    failure = run.ending.failure
    if run.journal.child_requests:
        state, problem = merge_children(run, state, now)
        failure = failure or problem
    if failure is None:
        state, failure = _ask_guards(run, state, now)
    if failure is not None:
        state, failure = _fail_execution(run, state, failure, now)
        return AppliedStep(state=state, has_ended=True, has_answer=has_answer, failure=failure)
    if not has_answer or state.should_stop() or run.ending.status is not None:
        forced = not has_answer or run.ending.status is not None or _is_stopped(state)
        going_on = None if forced else state.with_current_step_completed(claim=run.claim.id, now=now)
        ended = end_execution(run, state, now)
        return AppliedStep(state=ended, has_ended=True, has_answer=has_answer, going_on=going_on)
    state = state.with_current_step_completed(claim=run.claim.id, now=now)
    return AppliedStep(state=state, has_ended=False, has_answer=True)


def end_execution(run: Run, state: AgentState, now: datetime) -> AgentState:
    """End the execution, and run the hooks before and after its end."""
    state = run.change_by_hooks(HookPoint.ON_STOP, state)
    if run.ending.status is not None and state.status is ExecutionStatus.IN_PROGRESS:
        archived = state.with_current_step_completed(claim=run.claim.id, now=now)
        ended = archived.with_execution_status(run.ending.status, now=now)
    else:
        ended = state.with_execution_completed(claim=run.claim.id, now=now)
    return charge(run, run.change_by_hooks(HookPoint.AFTER_EXECUTION, ended))


def _is_stopped(state: AgentState) -> bool:
    """Whether a signal ends the execution, and not only a final answer."""
    return state.execution is not None and state.execution.continuation.should_stop()


def new_signals(execution: ExecutionState, signals: Iterable[StopSignal]) -> list[StopSignal]:
    """Signals of guards without those the execution has, by reason and source: a guard repeats them at each step."""
    present = {(each.reason, each.source) for each in execution.continuation.stop_signals}
    return [signal for signal in signals if (signal.reason, signal.source) not in present]


def _with_step(run: Run, now: datetime) -> AgentState:
    if run.obtained.response is None:
        return run.state
    journal = run.journal
    step = AgentStep.from_inference(
        run.obtained.response,
        [_add_resolutions(run, index) for index in sorted(run.obtained.records)],
        number=run.ref.step,
        inputs=run.seen_extents,
        step_id=AgentStepId.following(run.ref.execution_id, run.ref.step),
    )
    state = run.state.with_current_step(step, started_at=moment(run.claim.now_ms), now=now)
    if journal.child_requests:
        assert state.execution is not None
        state = state.with_context_and_execution(state.context, charge_children(run, state.execution, reserved=False))
    return _with_grants(run, state, now) if journal.answers else state


def _add_resolutions(run: Run, index: int) -> ToolExecution:
    """Return the record of a call with how its requests were resolved: the journal that says it ends with the commit.

    It has the id that the call has in the answer, by which results are matched with calls: a journal of a build that
    took equal ids as they were has others.
    """
    execution = run.obtained.records[index].execution
    if run.obtained.response is not None and index < len(run.obtained.response.tool_calls):
        execution = execution.with_call_id(run.obtained.response.tool_calls[index].id)
    resolutions = run.journal.resolutions(index) if run.journal.answers else ()
    return execution.with_resolutions(resolutions) if resolutions else execution


def _with_grants(run: Run, state: AgentState, now: datetime) -> AgentState:
    """Remember the approvals that are to count for later calls, too."""
    for request in run.journal.all_requests:
        answer = run.journal.answer_to(request)
        if answer is None or answer.verb is not AnswerVerb.APPROVE or answer.remember is Remember.CALL:
            continue
        grant = Grant(
            id=request.id, tool=request.tool, to=request.to, by=answer.by, note=answer.note, at_ms=answer.at_ms,
            lasts=answer.remember,
        )  # fmt: skip
        state = with_grant(state, grant, now)
    return state


def _end_as_hook_decided(run: Run, state: AgentState, now: datetime) -> AppliedStep:
    """End an execution that a hook after the step has ended; its status stays, and the hooks of the end run."""
    assert state.execution is not None
    for signal in signals_of_end(state.execution):
        state = state.with_stop_signal(signal, now=now)
    assert state.execution is not None
    state = state.with_context_and_execution(state.context, state.execution.with_last_claim(run.claim.id))
    error = error_of_end(state)
    stack = run.agent.hook_stack
    if error is not None and stack.at(HookPoint.ON_ERROR):
        state = stack.run(run.hook_context(HookPoint.ON_ERROR, state, error=error)).state
    return AppliedStep(state=end_execution(run, state, now), has_ended=True, has_answer=True, failure=error)


def _fail_execution(run: Run, state: AgentState, error: ErrorInfo, now: datetime) -> tuple[AgentState, ErrorInfo]:
    stack = run.agent.hook_stack
    if stack.at(HookPoint.ON_ERROR):
        context = stack.run(run.hook_context(HookPoint.ON_ERROR, state, error=error))
        state, error = context.state, context.error or error
    state = run.change_by_hooks(HookPoint.ON_STOP, state)
    # The failed step is kept with what it has obtained; a retry continues after it.
    archived = state.with_current_step_completed(claim=run.claim.id, now=now)
    failed = archived.with_failure(error, now=now)
    return charge(run, run.change_by_hooks(HookPoint.AFTER_EXECUTION, failed)), error


def _ask_guards(run: Run, state: AgentState, now: datetime) -> tuple[AgentState, ErrorInfo | None]:
    """Ask the guards before the next step is published: no step is queued only to find its budget used up.

    About a final answer only the guards are asked that judge answers. A guard that raises here fails the execution; the
    step that was just done is kept.
    """
    execution = state.execution
    if execution is None or run.obtained.response is None:
        return state, None
    if run.lease.interruption is Interruption.LIMIT:  # other limits may have been reached together with the time's
        return _with_signals(state, execution, budget_signals(execution.budget, execution, now), now), None
    if execution.continuation.should_stop():
        return state, None
    point = GuardPoint.BEFORE_END if state.should_stop() else GuardPoint.BEFORE_NEXT
    view = GuardView(
        point=point, state=state, session_id=run.ref.session_id, execution=execution, now=now, model=run.model
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
