"""Applies to a session what arrived in its inbox: messages, metadata, a system prompt, a model."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any, Final, assert_never

from pydantic import ValidationError

from ..errors import InvalidInput, StateUnreadable
from ..requests import without_grant
from ..state import AgentState, ExecutionBudget, LLMConfig, Message
from ..store import EventType, InboxKind, NewEvent, Operation, Snapshot
from .step_texts import execution_event

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
