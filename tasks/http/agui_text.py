"""`WrittenText`: the text of a step in AG-UI's words, while it is written and until it is committed or void."""

from __future__ import annotations

from collections.abc import Sequence

from ag_ui import core

from ...worker.state.conversation.messages import Message
from ...worker.store.event_records import Event
from ...worker.store.live.values import LiveDelta
from ..client.stream_items import is_void
from . import agui_events


class WrittenText:
    """The message that is being written, if any, and its text that was sent."""

    def __init__(self) -> None:
        self._first: LiveDelta | None = None
        self._text = ""
        self._step: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether a message has begun and not ended."""
        return self._first is not None

    def write(self, delta: LiveDelta) -> list[core.BaseEvent]:
        """Translate a piece; another attempt or call than that of the pieces before begins another message."""
        events: list[core.BaseEvent] = []
        if self._first is None or _place(self._first) != _place(delta):
            events += self.close()
            if self._step != delta.step:
                self._step = delta.step
                events.append(agui_events.step_started(delta.step))
            self._first, self._text = delta, ""
            events.append(core.TextMessageStartEvent(message_id=_id(delta), role="assistant"))
        self._text += delta.text
        return [*events, core.TextMessageContentEvent(message_id=_id(delta), delta=delta.text)]

    def void(self, event: Event) -> list[core.BaseEvent]:
        """End the message that an event takes back; nothing where it is about another one."""
        return self.close() if self._first is not None and is_void(event, self._first) else []

    def close(self) -> list[core.BaseEvent]:
        """End the message that has begun; its step goes on."""
        if self._first is None:
            return []
        end = core.TextMessageEndEvent(message_id=_id(self._first))
        self._first = None
        return [end]

    def close_step(self) -> list[core.BaseEvent]:
        """End the message, and the step that it has begun."""
        events = self.close()
        if self._step is not None:
            events.append(agui_events.step_finished(self._step))
        self._step = None
        return events

    def adopted_by(self, messages: Sequence[Message]) -> str | None:
        """The id of the message that has begun, if the messages of its step have the same text; None otherwise."""
        is_same = self._first is not None and self._text == agui_events.text_of(messages)
        return _id(self._first) if is_same and self._first is not None else None

    def has_begun(self, step: int) -> bool:
        """Whether the beginning of this step was sent; forgets it."""
        has_begun, self._step = self._step == step, None
        return has_begun


def _place(delta: LiveDelta) -> tuple[int, str, int]:
    return delta.step, delta.attempt, delta.call


def _id(delta: LiveDelta) -> str:
    return f"live-{delta.execution_id}-{delta.step}-{delta.attempt[:8]}-{delta.call}"
