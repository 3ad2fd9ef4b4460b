"""Transitions: functions from the session as stored now to the session that a commit or an action saves.

The store calls a transition within a transaction, and calls it again when another one saved the session in between.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, assert_never

from pydantic import ValidationError

from ..errors import InvalidInput, StateUnreadable
from ..moments import moment
from ..requests.grants import without_grant
from ..state.agent_state import AgentState
from ..state.conversation.context import LLMConfig
from ..state.conversation.messages import Message
from ..state.execution.budget import ExecutionBudget
from ..state.execution.status import ExecutionStatus
from ..store.event_records import EventType, NewEvent
from ..store.records import InboxKind, NextState, Operation, Snapshot, Transition
from .applied_step import AppliedStep, end_execution
from .asked import describe_asked
from .delegating import hand_over
from .endings import user_stop_signal
from .run import Run
from .step_texts import capability_events, end_event, execution_event, step_event


def step_transition(run: Run, applied: AppliedStep) -> Transition:
    """The transition of a step's commit, which also takes in whatever arrived while the step ran."""

    asked = describe_asked(run)

    def transition(snapshot: Snapshot) -> NextState:
        now = moment(snapshot.now_ms)
        state, has_ended = applied.state, applied.has_ended
        if snapshot.is_child and applied.going_on is not None and _has_message(run, snapshot):
            # A child has one execution, so what came with its final step makes it continue.
            state, has_ended = applied.going_on, False
        if snapshot.cancel is not None and not has_ended:
            stopped = state.with_stop_signal(user_stop_signal(), now=now)
            # Nothing new begins, so that the hooks of the end ask no model.
            state, has_ended = end_execution(run.with_ending(is_stopping=True), stopped, now), True
        events: list[NewEvent] = []
        if run.obtained.response is not None:
            events.append(step_event(run, run.obtained.response))
        after, joined = apply_inbox(state, snapshot, now, has_ended=has_ended, has_unseen=_has_unseen_message(run))
        events += capability_events(run, state)
        if has_ended:
            events.append(end_event(run, applied.failure, state))
        has_failed = state.status is ExecutionStatus.FAILED
        next_state = NextState(
            state=after,
            ended=state if after is not state and has_ended else None,
            events=(*events, *joined),
            operations=operation_ids(snapshot),
            keep_journal=has_ended and not applied.has_answer,
            dead=applied.failure.message if has_failed and applied.failure and run.is_poison else None,
            definition=run.agent.stored_definition if run.ref.step == 1 else None,
            notify=notify_by_operation(snapshot),
            asked=asked,
        )
        return next_state if run.next_agent is None else hand_over(run, next_state, now)

    return transition


def _has_message(run: Run, snapshot: Snapshot) -> bool:
    """Whether the session holds or gets a message that the answer has not seen."""
    return _has_unseen_message(run) or any(each.kind is InboxKind.MESSAGE for each in snapshot.inbox)


def _has_unseen_message(run: Run) -> bool:
    """Whether a message was stored after the driver's request; it must not stay without an answer."""
    if not run.progress.is_reloaded:
        return False
    return any(extent != run.stored_extents.get(name) for name, extent in run.loaded.state.store.extents.items())


def stop_transition(snapshot: Snapshot) -> NextState:
    """End an execution that no worker runs and whose step has obtained nothing."""
    now = moment(snapshot.now_ms)
    execution = snapshot.state.execution
    assert execution is not None
    state = snapshot.state.with_stop_signal(user_stop_signal(), now=now).with_execution_completed(now=now)
    after, joined = apply_inbox(state, snapshot, now, has_ended=True, has_unseen=False)
    data = {"status": "stopped", "reason": "user_requested"}
    event = execution_event(EventType.EXECUTION_STOPPED, execution, data)
    return NextState(
        state=after,
        ended=state if after is not state else None,
        events=(event, *joined),
        operations=operation_ids(snapshot),
        notify=notify_by_operation(snapshot),
    )


def operation_transition(snapshot: Snapshot) -> NextState:
    """Apply an operation to a session whose step no worker runs.

    Raises (when called):
        InvalidInput: The session has no room for the metadata.
    """
    now = moment(snapshot.now_ms)
    for operation in snapshot.inbox:
        check_operation(snapshot.state, operation)
    execution = snapshot.state.execution
    has_ended = execution is None or execution.status.is_terminal()
    after, events = apply_inbox(snapshot.state, snapshot, now, has_ended=has_ended, has_unseen=False)
    return NextState(
        state=after,
        events=tuple(events),
        operations=operation_ids(snapshot),
        notify=notify_by_operation(snapshot),
        fingerprints={each.id: each.fingerprint for each in snapshot.inbox if each.fingerprint},
    )


def retry_transition(budget: ExecutionBudget | None, by: str | None = None) -> Transition:
    """The transition that continues a failed or stopped execution where it ended.

    Args:
        by: Who asked for it, for the event; None: unknown.

    Raises (when called):
        InvalidTransition: It did not fail and was not stopped.
    """

    def transition(snapshot: Snapshot) -> NextState:
        state = snapshot.state.for_retry(budget, now=moment(snapshot.now_ms))
        execution = state.execution
        assert execution is not None
        event = NewEvent(
            type=EventType.STEP_RETRIED,
            execution_id=execution.execution_id,
            step=execution.step_count + 1,
            data={"retries": execution.retries} | ({} if by is None else {"by": by}),
        )
        return NextState(state, events=(event,))

    return transition


@dataclass(frozen=True, slots=True)
class FirstExecution:
    """The execution that a submit starts.

    Attributes:
        operation_id: The id of the submit.
        budget: None: the agent's, else the default limit of steps.
        fingerprint: Digest of what was sent under the idempotency key of the submit; "" without a key.
        notify: Whom to notify of the execution's end. None: no receiver.
    """

    execution_id: str
    operation_id: str
    budget: ExecutionBudget | None = None
    fingerprint: str = ""
    notify: Mapping[str, Any] | None = None


def first_state(state: AgentState, message: Message, execution: FirstExecution, now: datetime) -> NextState:
    """A new session with its first execution pending."""
    operation_id = execution.operation_id
    state = state.with_user_message(message, now=now)
    state = state.with_execution(execution.execution_id, execution.budget, operation_id, now=now)
    data = {"operation": operation_id}
    event = NewEvent(type=EventType.EXECUTION_SUBMITTED, execution_id=execution.execution_id, step=0, data=data)
    notify = {operation_id: execution.notify} if execution.notify else {}
    return NextState(
        state,
        events=(event,),
        operations=(operation_id,),
        notify=notify,
        fingerprints={operation_id: execution.fingerprint} if execution.fingerprint else {},
    )


_KEY_CHARS: Final = 100
_NAMESPACE: Final = uuid.UUID("6f1cf1a0-6b5f-4f0e-9d0f-3f9f0f4a7a11")


def apply_inbox(
    state: AgentState, snapshot: Snapshot, now: datetime, *, has_ended: bool, has_unseen: bool
) -> tuple[AgentState, list[NewEvent]]:
    """Apply the operations of the inbox in order; a message to an execution that has ended starts the next one.

    A child has one execution: a message that comes with its end is kept in its conversation.

    Args:
        has_ended: The session's execution has ended.
        has_unseen: The session holds a message that the last answer has not seen; it must be answered, too.
    """
    has_ended = has_ended and not snapshot.is_child  # a child has one execution
    events: list[NewEvent] = []
    starter: Operation | None = None
    for operation in snapshot.inbox:
        if operation.kind is InboxKind.METADATA and not _has_room(state, operation):
            events += _refusal(state, operation)
            continue
        if has_ended and operation.kind is InboxKind.MESSAGE and starter is None:
            starter = operation
            state = _start_next_execution(state, operation, now)
        state = _apply_operation(state, operation, now)
        execution = state.execution
        if execution is not None and operation.kind is InboxKind.MESSAGE:
            data = {"operation": operation.id, "started": starter is operation}
            events.append(execution_event(EventType.MESSAGE_JOINED, execution, data))
    if has_ended and has_unseen and starter is None:
        state = _start_next_execution(state, None, now)
    return state, events


def check_operation(state: AgentState, operation: Operation) -> None:
    """Check an operation that its caller waits for.

    Raises:
        InvalidInput: The session has no room for the metadata; nothing was changed.
    """
    if operation.kind is InboxKind.METADATA:
        state.with_metadata(operation.payload["key"], operation.payload["value"])


def _has_room(state: AgentState, operation: Operation) -> bool:
    try:
        check_operation(state, operation)
    except InvalidInput as error:
        return error.field != "metadata"
    except (KeyError, TypeError, ValueError):
        pass  # damaged, which is said where it is applied
    return True


def _refusal(state: AgentState, operation: Operation) -> list[NewEvent]:
    """The event that tells of metadata that found no room: its caller has got an answer long ago."""
    data = {"operation": operation.id, "key": str(operation.payload["key"])[:_KEY_CHARS]}
    return [] if state.execution is None else [execution_event(EventType.METADATA_REFUSED, state.execution, data)]


def operation_ids(snapshot: Snapshot) -> tuple[str, ...]:
    """Ids of the operations in the inbox."""
    return tuple(operation.id for operation in snapshot.inbox)


def notify_by_operation(snapshot: Snapshot) -> dict[str, Any]:
    """The receivers to notify of the executions that operations in the inbox start, by operation id."""
    return {
        operation.id: operation.payload["notify"] for operation in snapshot.inbox if operation.payload.get("notify")
    }


def _start_next_execution(state: AgentState, operation: Operation | None, now: datetime) -> AgentState:
    name = operation.id if operation is not None else uuid.uuid4().hex
    execution_id = uuid.uuid5(_NAMESPACE, f"execution:{name}:{state.agent_id}").hex
    budget = None
    if operation is not None and operation.payload.get("budget") is not None:
        budget = ExecutionBudget.from_dict(dict(operation.payload["budget"]))
    return state.with_execution(execution_id, budget, operation.id if operation else None, now=now)


def _apply_operation(state: AgentState, operation: Operation, now: datetime) -> AgentState:
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
            return state.with_system_prompt(_check_text(payload["prompt"]), now=now)
        case InboxKind.MODEL:
            return state.with_llm_config(LLMConfig.from_dict(dict(payload["model"])), now=now)
        case InboxKind.REVOKE_GRANT:
            return without_grant(state, _check_text(payload["grant"]), now)
        case _ as never:
            assert_never(never)


def _check_text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(type(value))
