"""`AguiRun`: a run of AG-UI. It follows an execution until that ends, or until it asks a person."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ag_ui import core

from ...worker.state.agent_state import AgentState
from ...worker.state.conversation.messages import Message
from ...worker.store.event_records import EXECUTION_ENDS, Event, EventType
from ...worker.store.live.streams import LiveDelta, StreamPosition, entry_order
from ...worker.store.requests.records import FoundRequest
from ..client.async_client import AsyncAgentClient
from ..client.stream_items import StreamItem, is_void
from . import agui_events
from .event_hub import Gap

_LOOK_SECONDS: Final = 1.0
_JOINS: Final = (EventType.EXECUTION_SUBMITTED, EventType.MESSAGE_JOINED)
_STOPS: Final = (*EXECUTION_ENDS, EventType.EXECUTION_WAITING)
_OWN_NAMES: Final = frozenset({*EXECUTION_ENDS, EventType.EXECUTION_SUBMITTED, EventType.EXECUTION_STARTED})
"""Events for which AG-UI has events of its own."""

Sent = tuple[list[core.BaseEvent], str | None]
"""Events of AG-UI, and the cursor after which a reader may continue; None: as before."""


class WrittenText:
    """The text of a step while it is written: the message that has begun, if any, and its text that was sent."""

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
        """End the message that has begun; its step does not end."""
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


@dataclass(slots=True, kw_only=True)
class AguiRun:
    """A run, and how far its events have been sent.

    Attributes:
        read_line: Where it waits until it may read the whole session.
        show: Makes of a request what its reader may see of it.
        operation_id: Of the message that the run sends; "" when it sends none.
        execution_id: The execution that it follows; "" as long as its message waits behind a running step.
        after: Cursor after which it begins. None: at the first event.
        has_joined: Whether its message, if any, is part of the execution by then.
        looks_first: The execution's end, or its wait, may be stored already, and not come after that event.
        waits: The execution waits; open requests are looked for from time to time.
        with_history: Begin with the conversation: what the caller has seen is not known, or perhaps not committed.
        children: Subagents that have not ended by then, by their sessions.
    """

    client: AsyncAgentClient
    read_line: Callable[[], contextlib.AbstractAsyncContextManager[None]]
    show: Callable[[FoundRequest], Awaitable[FoundRequest]]
    thread_id: str
    run_id: str
    operation_id: str = ""
    execution_id: str = ""
    after: str | None = None
    has_joined: bool = False
    looks_first: bool = False
    waits: bool = False
    with_history: bool = False
    children: dict[str, Event] = field(default_factory=dict[str, Event])
    _seen: set[str] = field(default_factory=set[str])
    _last_step: tuple[str, int] = ("", 0)
    _written: WrittenText = field(default_factory=WrittenText)

    def begin_after(self, cursor: str, stored: Sequence[Event]) -> None:
        """Begin behind this cursor.

        Args:
            stored: All events of the session.
        """
        order = entry_order(StreamPosition.read(cursor).event)
        seen = [event for event in stored if entry_order(event.id) <= order]
        later = [event for event in stored[len(seen) :] if event.execution_id == self.execution_id]
        commits = [event for event in seen if event.type == EventType.STEP_COMMITTED]
        self._last_step = (commits[-1].execution_id, commits[-1].step) if commits else ("", 0)
        self.after = cursor
        self.children = agui_events.open_children(seen, self.execution_id)
        self.has_joined = not self.operation_id or any(self._is_join(event) for event in seen)
        self.looks_first = self.has_joined and not any(event.type in _STOPS for event in later)

    async def stream(self, items: AsyncGenerator[StreamItem | Gap | None]) -> AsyncGenerator[Sent]:
        """Translate the stream of the session into the events of the run.

        The last event is RUN_FINISHED or RUN_ERROR. Without it the stream was cut off; the same request with the header
        Last-Event-ID goes on.
        """
        version = core.PROTOCOL_VERSION
        yield [core.RunStartedEvent(thread_id=self.thread_id, run_id=self.run_id, protocol_version=version)], None
        if before := await self._make_history():
            yield before, None
        if self.looks_first and (end := await self._end()):
            yield end, None
            return
        async with contextlib.aclosing(_with_looks(items)) as found:
            async for item in found:
                sent = await self._translate_item(item)
                if sent[0]:
                    yield sent
                if sent[0] and isinstance(sent[0][-1], (core.RunFinishedEvent, core.RunErrorEvent)):
                    return

    async def _make_history(self) -> list[core.BaseEvent]:
        """The conversation, for a reader that may not have it, and the subagents that still work."""
        history = [await self._history()] if self.with_history else []
        return [*history, *(agui_events.child_started(event) for event in self.children.values())]

    async def _history(self) -> core.BaseEvent:
        """The conversation up to the last step that was sent; later steps are sent as events."""
        state = await self._read_state()
        found = self._conversation(state, self._last_step[1] if self._last_step[0] == self.execution_id else 0)
        self._seen = {message.id for message in found.messages}
        return found

    async def _read_state(self) -> AgentState:
        async with self.read_line():
            return (await self.client.show(self.thread_id)).state

    def _conversation(self, state: AgentState, last_step: int) -> core.MessagesSnapshotEvent:
        """The conversation without the steps of the execution after this one, and without what follows those."""
        by_step, now = agui_events.messages_by_step(state, self.execution_id), state.execution
        later = [message for step, messages in by_step.items() if step > last_step for message in messages]
        said = state.store.section().messages
        if later and (now is None or now.execution_id != self.execution_id):
            said = said[: said.index(later[-1])]
        return agui_events.snapshot(said, without=later)

    async def _translate_item(self, item: StreamItem | Gap | None) -> Sent:
        if item is None:
            return (await self._interruption() if self.waits else []), None
        if isinstance(item, Gap):
            self.has_joined, execution = bool(self.execution_id), (await self._read_state()).execution
            if execution is not None and execution.step_executions:
                self._last_step = (execution.execution_id, execution.step_executions[-1].step.number)
            return [await self._history(), *(await self._end() if self.has_joined else [])], None
        if item.delta is not None:
            return self._translate_delta(item.delta), None
        event = item.event
        if event is None:
            return [], None
        if event.type == EventType.STEP_COMMITTED:
            self._last_step = (event.execution_id, event.step)
        if not self._belongs(event):
            return self._end_undelivered(event), item.cursor
        self.waits = event.type == EventType.EXECUTION_WAITING or (
            self.waits and event.type != EventType.EXECUTION_RESUMED
        )
        sent = await self._translate(event)
        if event.type == EventType.EXECUTION_WAITING:
            sent += await self._interruption()
        return sent, item.cursor

    def _translate_delta(self, delta: LiveDelta) -> list[core.BaseEvent]:
        if not self.has_joined or delta.execution_id != self.execution_id:
            return []
        if not delta.call:
            return [agui_events.emitted(delta)]
        return self._written.write(delta) if delta.part == "text" else []

    async def _translate_step(self, event: Event) -> list[core.BaseEvent]:
        """Translate a committed step: parts that were not sent yet, and the conversation if the sent text differs."""
        state = await self._read_state()
        messages = agui_events.messages_by_step(state, self.execution_id).get(event.step, [])
        adopted, was_open = self._written.adopted_by(messages), self._written.is_open
        sent = self._written.close()
        if was_open and adopted is None:
            sent.append(self._conversation(state, event.step - 1))
        following = list(agui_events.events_of_messages(messages, event.step, self._seen, adopted))
        has_begun = self._written.has_begun(event.step)
        return [*sent, *(each for each in following if not (has_begun and isinstance(each, core.StepStartedEvent)))]

    def _belongs(self, event: Event) -> bool:
        """Whether the event is one of the run's: of its execution, once its message is part of that."""
        if not self.has_joined and self._is_join(event):
            self.has_joined, self.execution_id = True, event.execution_id
        return self.has_joined and event.execution_id == self.execution_id

    def _end_undelivered(self, event: Event) -> list[core.BaseEvent]:
        """The end of the run where its message was taken back; else nothing."""
        is_ours = self.operation_id and event.data.get("operation") == self.operation_id
        is_end = is_ours and event.type == EventType.MESSAGE_UNDELIVERED
        return [agui_events.run_undelivered(self.thread_id, self.run_id)] if is_end else []

    def _is_join(self, event: Event) -> bool:
        return event.type in _JOINS and event.data.get("operation") == self.operation_id

    async def _translate(self, event: Event) -> list[core.BaseEvent]:
        match event.type:
            case EventType.STEP_COMMITTED:
                return await self._translate_step(event)
            case EventType.ATTEMPT_VOIDED:
                return await self._translate_void(event)
            case EventType.CHILD_STARTED | EventType.CHILD_ENDED:
                return self._translate_child(event)
            case kind if kind in EXECUTION_ENDS:
                return await self._end()
            case kind:
                return [] if kind in _OWN_NAMES else [agui_events.custom_event(event)]

    def _translate_child(self, event: Event) -> list[core.BaseEvent]:
        if event.type == EventType.CHILD_STARTED:
            self.children[str(event.data["session"])] = event
            return [agui_events.child_started(event)]
        known = self.children.pop(str(event.data["session"]), None)
        return [] if known is None else [agui_events.child_ended(event)]

    async def _translate_void(self, event: Event) -> list[core.BaseEvent]:
        """Take back the message that an event voids: the conversation as it is stored does not have it."""
        ended = self._written.void(event)
        return [*ended, *([await self._history()] if ended else []), agui_events.custom_event(event)]

    async def _end(self) -> list[core.BaseEvent]:
        """The end of the run, when the execution has ended or asks a person; else nothing."""
        thread, execution = self.thread_id, self.execution_id
        result = await self.client.run(lambda client: client.store.sessions.outcome(thread, execution))
        if result is None:
            return await self._interruption()
        left = [
            core.SubagentErrorEvent(subagent_run_id=child, message="It was stopped with the run.", code="stopped")
            for child in self.children
        ]
        return [*await self._cut_text(), *left, agui_events.run_ended(thread, self.run_id, result)]

    async def _interruption(self) -> list[core.BaseEvent]:
        """The end of the run by open requests; nothing when no person is asked."""
        asked = await self._read_requests()
        if not asked:
            return []
        interrupts = [agui_events.interrupt(found, self.thread_id) for found in asked]
        suspended: list[core.BaseEvent] = [
            core.SubagentFinishedEvent(
                subagent_run_id=child,
                outcome=core.SubagentFinishedSuspendedOutcome(
                    interrupt_ids=[each.id for each in interrupts if each.subagent_run_id == child]
                ),
            )
            for child in self.children
        ]
        outcome = core.RunFinishedInterruptOutcome(interrupts=interrupts)
        end = core.RunFinishedEvent(thread_id=self.thread_id, run_id=self.run_id, outcome=outcome)
        return [*await self._cut_text(), *suspended, end]

    async def _cut_text(self) -> list[core.BaseEvent]:
        """End a text that is not committed when the run ends; it comes again with its commit, in the run after this."""
        was_open = self._written.is_open
        sent = self._written.close_step()
        return [*sent, await self._history()] if was_open else sent

    async def _read_requests(self) -> list[FoundRequest]:
        found = [each.summary for each in await self.list_requests()]
        read = [await self.client.request(each.session_id, each.id) for each in found]
        return [await self.show(each) for each in read if each.request is not None]

    async def list_requests(self) -> list[FoundRequest]:
        """List open requests of the session and of those below it that a person answers."""
        page = await self.client.requests(self.thread_id, limit=1000)
        return [each for each in page.requests if each.summary.kind in agui_events.ASKED]


async def _with_looks(events: AsyncIterator[Any]) -> AsyncGenerator[Any]:
    """Add None whenever no event has come for a second: that a subagent asks is no event of the session."""
    following: asyncio.Task[Any] | None = None
    try:
        while True:
            following = following or asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait({following}, timeout=_LOOK_SECONDS)
            if not done:
                yield None
                continue
            try:
                event = following.result()
            except StopAsyncIteration:
                return
            following = None
            yield event
    finally:
        if following is not None and not following.done():
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                await following


def _place(delta: LiveDelta) -> tuple[int, str, int]:
    return delta.step, delta.attempt, delta.call


def _id(delta: LiveDelta) -> str:
    return f"live-{delta.execution_id}-{delta.step}-{delta.attempt[:8]}-{delta.call}"
