"""Applies what arrives from outside a session's steps: operations of the inbox, and the queued message that is next.

A message to an execution that has ended starts the next one. Only one that has completed does that with messages that
came before its end; every other end leaves them to the queue, which is held, since nobody has said that they still
make sense.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, assert_never

from pydantic import ValidationError

from ..errors import InvalidInput, StateUnreadable
from ..requests.grants import without_grant
from ..state.agent_state import AgentState
from ..state.conversation.context import LLMConfig
from ..state.conversation.messages import Message
from ..state.execution.budget import ExecutionBudget
from ..state.execution.status import ExecutionStatus
from ..store.event_records import EventType, NewEvent
from ..store.records import InboxKind, MessageMode, MessageQueue, NextState, Operation, Snapshot
from .step_texts import execution_event

_KEY_CHARS: Final = 100
_NAMESPACE: Final = uuid.UUID("6f1cf1a0-6b5f-4f0e-9d0f-3f9f0f4a7a11")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """A session with what has arrived.

    Attributes:
        applied: The operations that are part of it now.
        undelivered: Messages of the inbox that are queued now.
        queue: The queue afterwards; None: as it was.
    """

    state: AgentState
    events: tuple[NewEvent, ...] = ()
    applied: tuple[Operation, ...] = ()
    undelivered: tuple[Operation, ...] = ()
    queue: MessageQueue | None = None

    def save(self, next_state: NextState) -> NextState:
        """The next state with the session as it is here."""
        return replace(
            next_state,
            state=self.state,
            events=(*next_state.events, *self.events),
            operations=tuple(each.id for each in self.applied),
            notify={each.id: each.payload["notify"] for each in self.applied if each.payload.get("notify")},
            queue=self.queue,
            undelivered=tuple(each.id for each in self.undelivered),
        )


def apply_to_running(state: AgentState, snapshot: Snapshot, now: datetime) -> Arrivals:
    """Apply the inbox to an execution that goes on.

    Raises:
        StateUnreadable: An operation is damaged.
    """
    return _apply(Arrivals(state=state), in_delivery_order(snapshot.inbox), now)


def apply_to_idle(snapshot: Snapshot, now: datetime) -> Arrivals:
    """Apply an operation to a session without an execution; a message starts one, in front of a queue that is held."""
    return _start(Arrivals(state=snapshot.state), snapshot.inbox, now)


def apply_at_end(state: AgentState, snapshot: Snapshot, now: datetime, *, has_unseen: bool = False) -> Arrivals:
    """Apply the inbox to a session whose execution ends here, and let the next one follow.

    A child has one execution: a message that comes with its end is kept in its conversation.

    Args:
        has_unseen: The session holds a message that the last answer has not seen; it must be answered, too.
    """
    if snapshot.is_child:
        return apply_to_running(state, snapshot, now)
    arrivals, queue, inbox = Arrivals(state=state), snapshot.queue, in_delivery_order(snapshot.inbox)
    if state.status is not ExecutionStatus.COMPLETED:
        held = tuple(each for each in inbox if _is_left_out(each))
        inbox = tuple(each for each in inbox if not _is_left_out(each))
        arrivals, queue = _hold_queue(arrivals, queue, held)
    arrivals = _start(arrivals, inbox, now)
    if not _has_started(arrivals, state):
        if has_unseen:
            arrivals = replace(arrivals, state=_start_next_execution(arrivals.state, None, now))
        elif queue.next is not None:
            arrivals, queue = _start(arrivals, (queue.next,), now), queue.without(queue.next.id)
    # The next stop holds what came after this one.
    queue = replace(queue, messages=tuple(each.taken(after_stop=False) for each in queue.messages))
    return replace(arrivals, queue=queue if queue != snapshot.queue else None)


def in_delivery_order(inbox: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """The inbox as it is delivered: messages that interrupt come first, all others in the order of their arrival."""
    return tuple(sorted(inbox, key=lambda each: each.mode is not MessageMode.INTERRUPT))


def _is_left_out(operation: Operation) -> bool:
    """Whether an end without an answer leaves an operation to the queue."""
    return operation.kind is InboxKind.MESSAGE and not operation.is_after_stop


def _has_started(arrivals: Arrivals, before: AgentState) -> bool:
    after, ended = arrivals.state.execution, before.execution
    return after is not None and (ended is None or after.execution_id != ended.execution_id)


def _hold_queue(arrivals: Arrivals, queue: MessageQueue, held: tuple[Operation, ...]) -> tuple[Arrivals, MessageQueue]:
    """Hold the queue, with messages of the inbox in front of it, unless all of it came after the stop."""
    execution, status = arrivals.state.execution, arrivals.state.status
    after = replace(queue, messages=(*held, *queue.messages))
    if execution is None or status is None or queue.held or all(each.is_after_stop for each in after.messages):
        return replace(arrivals, undelivered=held), after
    data = {"reason": status.value, "messages": len(after.messages)}
    event = execution_event(EventType.QUEUE_HELD, execution, data)
    held_queue = replace(after, held=status.value)
    return replace(arrivals, events=(*arrivals.events, event), undelivered=held), held_queue


def _start(arrivals: Arrivals, operations: tuple[Operation, ...], now: datetime) -> Arrivals:
    """Apply operations in order; the first message starts an execution, which the others join."""
    starter = next((each for each in operations if each.kind is InboxKind.MESSAGE), None)
    return _apply(arrivals, operations, now, starter)


def _apply(
    arrivals: Arrivals, operations: tuple[Operation, ...], now: datetime, starter: Operation | None = None
) -> Arrivals:
    """
    Args:
        starter: The message that starts an execution; None: none does.
    """
    state, events = arrivals.state, [*arrivals.events]
    for operation in operations:
        if operation.kind is InboxKind.METADATA and not _has_room(state, operation):
            events += _refusal(state, operation)
            continue
        if operation is starter:
            state = _start_next_execution(state, operation, now)
        state = _apply_operation(state, operation, now)
        execution = state.execution
        if execution is not None and operation.kind is InboxKind.MESSAGE:
            data = {"operation": operation.id, "started": starter is operation}
            events.append(execution_event(EventType.MESSAGE_JOINED, execution, data))
    return replace(arrivals, state=state, events=tuple(events), applied=(*arrivals.applied, *operations))


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
