"""From a run to what is committed: pure functions of the state, the answer, the results and the inbox.

Running a step again from the same journal gives the same commit.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from ..errors import InvalidInput, StateUnreadable
from ..guards import GuardPoint, GuardView, StopWith, ask_guards, budget_signals
from ..hooks import HookContext, HookPoint
from ..redaction import describe_exception
from ..state import (
    AgentState,
    AgentStep,
    AgentStepId,
    ErrorInfo,
    ExecutionBudget,
    ExecutionState,
    ExecutionStatus,
    LLMConfig,
    Message,
    StopReason,
    StopSignal,
)
from ..store import InboxKind, NewEvent, NextState, Operation, Snapshot, Transition
from .auxiliary_calls import charge
from .interruptions import user_stop
from .leases import Interruption
from .run import Run, moment

_NAMESPACE = uuid.UUID("6f1cf1a0-6b5f-4f0e-9d0f-3f9f0f4a7a11")
_SHOWN_CHARS = 300


@dataclass(frozen=True)
class AppliedStep:
    """The session with this step done.

    Attributes:
        ended: Whether the execution has ended.
        committed: Whether the step itself became part of it.
        failure: Why the execution failed beside the errors of its steps; None when it has not.
    """

    state: AgentState
    ended: bool
    committed: bool
    failure: ErrorInfo | None = None


def started(run_state: AgentState, limits: ExecutionBudget, started_at: datetime) -> AgentState:
    """The execution in progress; at its first step the agent's limits cap what was asked for."""
    execution = run_state.execution
    assert execution is not None
    if execution.status is not ExecutionStatus.PENDING:
        return run_state
    capped = execution.with_budget(limits.capped_by(execution.budget))
    return run_state.with_context_and_execution(run_state.context, capped).with_execution_started(now=started_at)


def apply_step(run: Run, now: datetime) -> AppliedStep:
    """Put the answer and the results into the session, and decide whether the execution goes on."""
    state = _with_step(run, now)
    for signal in run.signals:
        state = state.with_stop_signal(signal, now=now)
    state = run.agent_state_hooks(HookPoint.AFTER_STEP, state) if run.response is not None else state
    state = charge(run, state)
    failure = run.failure
    if failure is None:
        state, failure = _guarded(run, state, now)
    committed = run.response is not None
    if failure is not None:
        state, failure = _failed(run, state, failure, now)
        return AppliedStep(state, ended=True, committed=committed, failure=failure)
    if run.response is None or state.should_stop():
        return AppliedStep(_ended(run, state, now), ended=True, committed=committed)
    return AppliedStep(state.with_current_step_completed(claim=run.claim.id, now=now), ended=False, committed=True)


def _ended(run: Run, state: AgentState, now: datetime) -> AgentState:
    """The hooks of the end around the end itself."""
    state = run.agent_state_hooks(HookPoint.ON_STOP, state)
    ended = state.with_execution_completed(claim=run.claim.id, now=now)
    return charge(run, run.agent_state_hooks(HookPoint.AFTER_EXECUTION, ended))


def _with_step(run: Run, now: datetime) -> AgentState:
    if run.response is None:
        return run.state
    step = AgentStep.from_inference(
        run.response,
        [run.records[index].execution for index in sorted(run.records)],
        number=run.ref.step,
        inputs=run.seen,
        step_id=AgentStepId.following(run.ref.execution_id, run.ref.step),
    )
    return run.state.with_current_step(step, started_at=moment(run.claim.now_ms), now=now)


def _failed(run: Run, state: AgentState, error: ErrorInfo, now: datetime) -> tuple[AgentState, ErrorInfo]:
    stack = run.agent.hook_stack
    if stack.at(HookPoint.ON_ERROR):
        context = HookContext(
            HookPoint.ON_ERROR,
            run.ref.session_id,
            run.ref.execution_id,
            run.ref.step,
            state,
            error=error,
            ask=run.ask_model,
        )
        shaped = stack.run(context)
        state, error = shaped.state, shaped.error or error
    state = run.agent_state_hooks(HookPoint.ON_STOP, state)
    archived = state.with_current_step_completed(claim=run.claim.id, now=now)
    failed = archived.with_failure(error, now=now)
    return charge(run, run.agent_state_hooks(HookPoint.AFTER_EXECUTION, failed)), error


def _guarded(run: Run, state: AgentState, now: datetime) -> tuple[AgentState, ErrorInfo | None]:
    """Before the next step is published, the guards are asked again: no step is queued only to find its budget used.

    A guard that raises here fails the execution; the step it was asked about is kept.
    """
    execution = state.execution
    if execution is None or run.response is None:
        return state, None
    if run.held.interruption is Interruption.LIMIT:  # other limits may have been reached together with the time's
        return _with_signals(state, execution, budget_signals(execution.budget, execution, now), now), None
    if state.should_stop():
        return state, None
    view = GuardView(GuardPoint.BEFORE_NEXT, state, run.ref.session_id, execution, now)
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


def new_signals(execution: ExecutionState, signals: Iterable[StopSignal]) -> list[StopSignal]:
    """Signals of guards, without those that stand by reason and source: overridden, they come again at each step."""
    standing = {(each.reason, each.source) for each in execution.continuation.stop_signals}
    return [signal for signal in signals if (signal.reason, signal.source) not in standing]


def step_transition(run: Run, advanced: AppliedStep) -> Transition:
    """What the commit makes of the step, with whatever arrived meanwhile."""

    def transition(snapshot: Snapshot) -> NextState:
        now = moment(snapshot.now_ms)
        state, ended = advanced.state, advanced.ended
        if snapshot.cancel is not None and not ended:
            stopped = state.with_stop_signal(user_stop(), now=now)
            state, ended = _ended(run.changed(forbidden=True), stopped, now), True
        events = [*_step_events(run, advanced)]
        after, joined = _with_inbox(state, snapshot, now, ended=ended, unseen=_unseen(run))
        if ended:
            events.append(_end_event(advanced.failure, state))
        events += joined
        failed = state.status is ExecutionStatus.FAILED
        return NextState(
            state=after,
            ended=state if after is not state and ended else None,
            events=tuple(events),
            operations=tuple(operation.id for operation in snapshot.inbox),
            keep_journal=ended and not advanced.committed,
            dead=advanced.failure.message if failed and advanced.failure and run.is_poison else None,
            definition=run.agent.stored_definition if run.ref.step == 1 else None,
            notify=_notified(snapshot),
        )

    return transition


def _notified(snapshot: Snapshot) -> dict[str, Any]:
    """Whom to tell of the executions that these operations start."""
    return {
        operation.id: operation.payload["notify"] for operation in snapshot.inbox if operation.payload.get("notify")
    }


def _unseen(run: Run) -> bool:
    """A message that was applied after the answer's snapshot; it must not stay without an answer."""
    return any(extent != run.stored.get(name) for name, extent in run.loaded.state.store.extents.items())


def stop_transition(snapshot: Snapshot) -> NextState:
    """End an execution that nobody runs and that has obtained nothing for its step."""
    now = moment(snapshot.now_ms)
    execution = snapshot.state.execution
    assert execution is not None
    state = snapshot.state.with_stop_signal(user_stop(), now=now).with_execution_completed(now=now)
    after, joined = _with_inbox(state, snapshot, now, ended=True, unseen=False)
    event = NewEvent(
        "execution_stopped",
        execution.execution_id,
        execution.step_count,
        {"status": "stopped", "reason": "user_requested"},
    )
    operations = tuple(operation.id for operation in snapshot.inbox)
    return NextState(
        after,
        ended=state if after is not state else None,
        events=(event, *joined),
        operations=operations,
        notify=_notified(snapshot),
    )


def operation_transition(snapshot: Snapshot) -> NextState:
    """Apply an operation to a session whose step nobody runs."""
    now = moment(snapshot.now_ms)
    execution = snapshot.state.execution
    ended = execution is None or execution.status.is_terminal()
    after, events = _with_inbox(snapshot.state, snapshot, now, ended=ended, unseen=False)
    operations = tuple(operation.id for operation in snapshot.inbox)
    return NextState(after, events=tuple(events), operations=operations, notify=_notified(snapshot))


def retry_transition(budget: ExecutionBudget | None) -> Transition:
    """Continue a failed or stopped execution where it ended.

    Raises (when called):
        InvalidTransition: It did not fail and was not stopped.
    """

    def transition(snapshot: Snapshot) -> NextState:
        state = snapshot.state.for_retry(budget, now=moment(snapshot.now_ms))
        execution = state.execution
        assert execution is not None
        event = NewEvent(
            "step_retried", execution.execution_id, execution.step_count + 1, {"retries": execution.retries}
        )
        return NextState(state, events=(event,))

    return transition


def first_state(
    state: AgentState,
    message: Message,
    execution_id: str,
    operation_id: str,
    budget: ExecutionBudget | None,
    now: datetime,
    notify: Mapping[str, Any] | None = None,
) -> NextState:
    """A new session with its first execution pending; `notify` says whom to tell of its end."""
    state = state.with_user_message(message, now=now).with_execution(
        execution_id, budget or ExecutionBudget.unlimited(), operation_id, now=now
    )
    event = NewEvent("execution_submitted", execution_id, 0, {"operation": operation_id})
    told = {operation_id: notify} if notify else {}
    return NextState(state, events=(event,), operations=(operation_id,), notify=told)


def _with_inbox(
    state: AgentState, snapshot: Snapshot, now: datetime, *, ended: bool, unseen: bool
) -> tuple[AgentState, list[NewEvent]]:
    """Apply what arrived. A message to an execution that has ended starts the next one."""
    events: list[NewEvent] = []
    starts: Operation | None = None
    for operation in snapshot.inbox:
        if ended and operation.kind is InboxKind.MESSAGE and starts is None:
            starts = operation
            state = _next_execution(state, operation, now)
        state = _applied(state, operation, now)
        execution = state.execution
        if execution is not None and operation.kind is InboxKind.MESSAGE:
            data = {"operation": operation.id, "started": starts is operation}
            events.append(NewEvent("message_joined", execution.execution_id, execution.step_count, data))
    if ended and unseen and starts is None:
        state = _next_execution(state, None, now)
    return state, events


def _next_execution(state: AgentState, operation: Operation | None, now: datetime) -> AgentState:
    name = operation.id if operation is not None else uuid.uuid4().hex
    execution_id = uuid.uuid5(_NAMESPACE, f"execution:{name}:{state.agent_id}").hex
    budget = ExecutionBudget.unlimited()
    if operation is not None and operation.payload.get("budget"):
        budget = ExecutionBudget.from_dict(dict(operation.payload["budget"]))
    return state.with_execution(execution_id, budget, operation.id if operation else None, now=now)


def _applied(state: AgentState, operation: Operation, now: datetime) -> AgentState:
    try:
        return _with_operation(state, operation, now)
    except (ValidationError, InvalidInput, KeyError, TypeError, ValueError) as error:  # it was valid when it was sent
        raise StateUnreadable("inbox", f"operation {operation.id} is damaged ({type(error).__name__})") from None


def _with_operation(state: AgentState, operation: Operation, now: datetime) -> AgentState:
    payload = operation.payload
    match operation.kind:
        case InboxKind.MESSAGE:
            return state.with_user_message(Message.from_dict(dict(payload["message"])), now=now)
        case InboxKind.METADATA:
            return state.with_metadata(payload["key"], payload["value"], now=now)
        case InboxKind.SYSTEM_PROMPT:
            return state.with_system_prompt(_text(payload["prompt"]), now=now)
        case InboxKind.MODEL:
            return state.with_llm_config(LLMConfig.from_dict(dict(payload["model"])), now=now)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(type(value))


def _step_events(run: Run, advanced: AppliedStep) -> Iterable[NewEvent]:
    if not advanced.committed or run.response is None:
        return
    usage = run.response.usage
    data: dict[str, Any] = {
        "tools": [
            {"name": record.execution.tool_call.name, "outcome": record.execution.outcome.value}
            for _, record in sorted(run.records.items())
        ],
        "tokens": usage.total,
        "finish_reason": run.response.finish_reason.value,
        "model": run.response.model,
        "text": run.response.content[:_SHOWN_CHARS],
    }
    yield NewEvent("step_committed", run.ref.execution_id, run.ref.step, data)


def _end_event(failure: ErrorInfo | None, state: AgentState) -> NewEvent:
    execution = state.execution
    assert execution is not None
    reason = execution.final_reason()
    data: dict[str, Any] = {
        "status": execution.status.value,
        "reason": reason.value if reason else None,
        "steps": execution.step_count,
        "tokens": execution.usage.total,
        "cost": execution.cost,
        "error": failure_text(failure, execution),
    }
    return NewEvent(f"execution_{execution.status.value}", execution.execution_id, execution.step_count, data)


def failure_text(failure: ErrorInfo | None, execution: ExecutionState) -> str:
    """Why an execution failed; "" when it has not."""
    if failure is not None:
        return failure.message
    last = execution.last_step
    errors = (*(last.all_errors if last is not None else ()), *execution.errors)
    return errors[-1].message if errors and execution.status is ExecutionStatus.FAILED else ""


def summary(run: Run, state: AgentState | None, next_step: int | None) -> str:
    """A step in a line: "3 tool calls · search_docs ×2, read_file · 412 tokens · next step 4"."""
    parts: list[str] = []
    names = [record.execution.tool_call.name for _, record in sorted(run.records.items())]
    if names:
        parts.append(f"{len(names)} tool call{'s' if len(names) != 1 else ''}")
        parts.append(", ".join(_counted(names)))
    if run.response is not None and run.response.usage.total:
        parts.append(f"{run.response.usage.total} tokens")
    if next_step is not None:
        parts.append(f"next step {next_step}")
    elif state is not None and state.execution is not None:
        parts.append(state.execution.status.value)
    return " · ".join(parts)


def _counted(names: Sequence[str]) -> list[str]:
    return [f"{name} ×{names.count(name)}" if names.count(name) > 1 else name for name in dict.fromkeys(names)]


__all__ = [
    "AppliedStep",
    "apply_step",
    "failure_text",
    "first_state",
    "new_signals",
    "operation_transition",
    "retry_transition",
    "started",
    "step_transition",
    "stop_transition",
    "summary",
]
