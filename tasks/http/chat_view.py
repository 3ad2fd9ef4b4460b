"""The part of a session that a token with the scope `chat` sees: its conversation as text, and what is asked of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ...worker.state.conversation.messages import Message, Role
from ...worker.state.execution.requests import RequestKind
from ...worker.store.event_records import EXECUTION_ENDS, Event, EventType
from ...worker.store.live.streams import LiveDelta
from ..client.json_values import event_value
from .access import Access

_SHOWN_ROLES: Final = (Role.USER, Role.ASSISTANT)
_REQUEST_EVENTS: Final[tuple[EventType, ...]] = (
    EventType.REQUEST_OPENED,
    EventType.REQUEST_ANSWERED,
    EventType.REQUEST_EXPIRED,
    EventType.REQUEST_CANCELLED,
)
_END_FIELDS: Final = ("status", "finish_reason")
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(map(str, EXECUTION_ENDS), _END_FIELDS),
    EventType.EXECUTION_SUBMITTED: ("operation",),
    EventType.MESSAGE_RECEIVED: ("operation", "queued"),
    EventType.MESSAGE_JOINED: ("operation", "started"),
    EventType.MESSAGE_UNDELIVERED: ("operation", "reason"),
    EventType.STEP_COMMITTED: ("text", "finish_reason"),
    EventType.ATTEMPT_VOIDED: ("attempt", "call", "keeps_answer"),
}
"""Data of events that a chat gets; of all others it gets that they have happened."""


def chat_header(value: Mapping[str, Any]) -> dict[str, Any]:
    """A session without its content and labels, and without what names other people, tools and causes."""
    return {**value, "problem": None, "reason": "", "labels": {}}


def chat_messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """The messages of the user and of the agent, as text: no prompts, no tool calls and none of their results."""
    return [
        {"role": message.role, "content": message.content}
        for message in messages
        if message.role in _SHOWN_ROLES and message.content.strip()
    ]


def chat_event(event: Event, access: Access) -> dict[str, Any]:
    """An event as JSON, with the data that a chat may have."""
    value = event_value(event)
    if event.type in _REQUEST_EVENTS:
        # Only the event of an opened request says to whom it is; the others name it by its id.
        is_own = event.type == EventType.REQUEST_OPENED and access.may_answer(
            RequestKind(event.data["kind"]), event.data.get("to")
        )
        return {**value, "data": dict(event.data) if is_own else {}}
    shown = _FIELDS.get(event.type, ())
    return {**value, "data": {name: each for name, each in event.data.items() if name in shown}}


def is_chat_text(delta: LiveDelta) -> bool:
    """Whether a piece of live text is of the agent's answer: not of its thinking, and not of a tool."""
    return delta.call > 0 and delta.part == "text"
