"""Events of AG-UI, made from what a session keeps. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ag_ui import core

from ...worker.moments import moment
from ...worker.state.agent_state import AgentState
from ...worker.state.conversation.messages import Message
from ...worker.state.execution.requests import RequestKind
from ...worker.state.execution.usage import InferenceUsage
from ...worker.state.values.ids import AgentStepId
from ...worker.store.event_records import Event, EventType
from ...worker.store.live.streams import LiveDelta
from ...worker.store.requests.records import FoundRequest
from ...worker.store.session_records import Result
from ..client.json_values import delta_value, event_value, result_value

ASKED: Final = (RequestKind.APPROVAL, RequestKind.QUESTION)
"""Kinds of requests that a person at a screen answers; a run ends with them."""

_EVENT_PREFIX: Final = "celery_agents."
_LARGEST_COUNT: Final = 2**53 - 1  # of the protocol's counts


def messages_by_step(state: AgentState, execution_id: str) -> dict[int, list[Message]]:
    """The messages that committed steps have put into the conversation, by their step from 1, the oldest first."""
    execution = state.execution
    if execution is not None and execution.execution_id == execution_id:
        return {each.step.number: list(each.step.output_messages) for each in execution.step_executions}
    # A later execution has begun: the conversation still has the messages, each with the id of its step.
    steps: dict[int, list[Message]] = {}
    for message in state.store.section().messages:
        step_id = str(message.metadata.get("step_id", ""))
        number = step_id.rpartition("-")[2]
        if number.isdigit() and step_id == AgentStepId.following(execution_id, number):
            steps.setdefault(int(number), []).append(message)
    return steps


def events_of_messages(
    messages: Sequence[Message], step: int, skipped: set[str], written: str | None = None
) -> Iterator[core.BaseEvent]:
    """The events by which a reader learns the messages of a step.

    Args:
        skipped: Ids of messages that the reader has.
        written: Id of the message whose text the reader has got while it was written: the first of the assistant's.
            None: it has got none, and the step is sent from its beginning.
    """
    if written is None:
        yield step_started(step)
    for message, message_id in _with_ids(messages):
        if message_id in skipped:
            continue
        if written is not None and message.role.value == "assistant":
            yield from _calls_of(message, written)
            written = None
        else:
            yield from _events_of(message, message_id)
    yield step_finished(step)


def step_started(step: int) -> core.BaseEvent:
    """The beginning of a step."""
    return core.StepStartedEvent(step_name=f"step {step}")


def step_finished(step: int) -> core.BaseEvent:
    """The end of a step, or of the part of it that a run shows."""
    return core.StepFinishedEvent(step_name=f"step {step}")


def snapshot(messages: Sequence[Message], without: Sequence[Message] = ()) -> core.MessagesSnapshotEvent:
    """The whole conversation; without the messages of a step that is sent on its own."""
    left_out = {message_id for _, message_id in _with_ids(without)}
    found = [(message, name) for message, name in _with_ids(messages) if name not in left_out]
    return core.MessagesSnapshotEvent(messages=[_message(each, name) for each, name in found])


def text_of(messages: Sequence[Message]) -> str:
    """The text that the assistant says in a step, as it is shown."""
    return next((message.content for message in messages if message.role.value == "assistant"), "")


def emitted(delta: LiveDelta) -> core.CustomEvent:
    """A piece that a tool emits while it runs."""
    return core.CustomEvent(name=f"{_EVENT_PREFIX}tool_emitted", value=delta_value(delta), timestamp=delta.at_ms)


def interrupt(found: FoundRequest, root: str) -> core.Interrupt:
    """A request as what a run waits for.

    Args:
        found: Read in full.
        root: The session of the run; the request of another one belongs to a subagent.
    """
    request = found.request
    assert request is not None
    expires = request.expires_at_ms
    return core.Interrupt(
        id=request.id,
        reason=request.kind.value,
        message=request.text or found.summary.call or None,
        tool_call_id=request.call_id,
        response_schema=_response_schema(found),
        expires_at=None if expires is None else moment(expires).isoformat(),
        subagent_run_id=None if request.session_id == root else request.session_id,
        metadata={
            "tool": request.tool,
            "args": request.to_dict()["args"],
            "options": request.to_dict()["options"],
            "digest": request.digest,
            "to": request.to,
            **_later(found),
        },
    )


def _later(found: FoundRequest) -> dict[str, Any]:
    """The messages behind a request, where there are any or its approval has to name the newest."""
    if not found.newest_message and not (found.request and found.request.needs_seen):
        return {}
    texts = [{"number": each.number, "text": each.text} for each in found.messages]
    return {"messages": texts, "newestMessage": found.newest_message}


def custom_event(event: Event) -> core.CustomEvent:
    """An event that AG-UI has no name for, in our own form."""
    value = json.loads(json.dumps(event_value(event), default=lambda other: other.isoformat()))
    return core.CustomEvent(name=f"{_EVENT_PREFIX}{event.type}", value=value, timestamp=event.at_ms)


def child_started(event: Event) -> core.SubagentStartedEvent:
    """A child session as a subagent."""
    return core.SubagentStartedEvent(
        subagent_run_id=str(event.data["session"]), name=str(event.data["agent"]), timestamp=event.at_ms
    )


def child_ended(event: Event) -> core.BaseEvent:
    """The end of a child session."""
    child, status = str(event.data["session"]), str(event.data.get("status", ""))
    if status == "completed":
        return core.SubagentFinishedEvent(subagent_run_id=child, timestamp=event.at_ms)
    reason = str(event.data.get("reason") or status)
    return core.SubagentErrorEvent(subagent_run_id=child, message=f"{status}: {reason}", code=reason)


def run_ended(thread_id: str, run_id: str, result: Result) -> core.BaseEvent:
    """The end of an execution as the end of a run."""
    usage = [_usage(result)]
    reason = None if result.stop_reason is None else result.stop_reason.value
    if str(result.status) == "failed":
        message = result.stop_message or (result.errors[-1] if result.errors else "The execution has failed.")
        return core.RunErrorEvent(message=message, code=reason, usage=usage)
    outcome: core.RunFinishedOutcome = core.RunFinishedSuccessOutcome()
    if reason == "user_requested":
        outcome = core.RunFinishedCancelledOutcome()
    value = json.loads(json.dumps(result_value(result), default=str))
    return core.RunFinishedEvent(thread_id=thread_id, run_id=run_id, result=value, outcome=outcome, usage=usage)


def run_undelivered(thread_id: str, run_id: str) -> core.BaseEvent:
    """The end of a run whose message was taken back before an execution had it."""
    return core.RunFinishedEvent(thread_id=thread_id, run_id=run_id, outcome=core.RunFinishedCancelledOutcome())


def open_children(events: Sequence[Event], execution_id: str) -> dict[str, Event]:
    """The children of an execution that have not ended by the last of these events, with the event of their start."""
    found: dict[str, Event] = {}
    for event in events:
        if event.execution_id == execution_id and event.type == EventType.CHILD_STARTED:
            found[str(event.data["session"])] = event
        elif event.type == EventType.CHILD_ENDED:
            found.pop(str(event.data["session"]), None)
    return found


def _with_ids(messages: Sequence[Message]) -> Iterator[tuple[Message, str]]:
    """Messages with ids that are the same at each reading: of their step, or of their place."""
    counts: dict[Any, int] = {}
    for place, message in enumerate(messages):
        step = message.metadata.get("step_id")
        if step is None:
            yield message, f"message-{place}"
            continue
        number = counts[step] = counts.get(step, -1) + 1
        yield message, f"{step}-{number}"


def _events_of(message: Message, message_id: str) -> Iterator[core.BaseEvent]:
    if message.role.value == "tool":
        yield core.ToolCallResultEvent(
            message_id=message_id, tool_call_id=message.tool_call_id or "", content=message.content, role="tool"
        )
        return
    if message.role.value != "assistant":
        return  # what a hook or a capability has said to the model
    if message.content:
        yield core.TextMessageStartEvent(message_id=message_id, role="assistant")
        yield core.TextMessageContentEvent(message_id=message_id, delta=message.content)
        yield core.TextMessageEndEvent(message_id=message_id)
    yield from _calls_of(message, message_id)


def _calls_of(message: Message, message_id: str) -> Iterator[core.BaseEvent]:
    for call in message.tool_calls:
        arguments = json.dumps(call.to_dict()["args"], ensure_ascii=False)
        yield core.ToolCallStartEvent(tool_call_id=call.id, tool_call_name=call.name, parent_message_id=message_id)
        yield core.ToolCallArgsEvent(tool_call_id=call.id, delta=arguments)
        yield core.ToolCallEndEvent(tool_call_id=call.id)


def _message(message: Message, message_id: str) -> Any:
    match message.role.value:
        case "tool":
            error = message.content if message.is_error else None
            call_id = message.tool_call_id or ""
            return core.ToolMessage(id=message_id, content=message.content, tool_call_id=call_id, error=error)
        case "assistant":
            return core.AssistantMessage(
                id=message_id, content=message.content or None, tool_calls=_calls(message) or None
            )
        case "system":
            return core.SystemMessage(id=message_id, content=message.content)
        case _:
            return core.UserMessage(id=message_id, content=message.content)


def _calls(message: Message) -> list[core.ToolCall]:
    return [
        core.ToolCall(
            id=call.id,
            function=core.FunctionCall(
                name=call.name, arguments=json.dumps(call.to_dict()["args"], ensure_ascii=False)
            ),
        )
        for call in message.tool_calls
    ]


def _response_schema(found: FoundRequest) -> dict[str, Any]:
    request = found.request
    assert request is not None
    asked = request.to_dict()["answer_schema"]
    if request.kind is RequestKind.QUESTION:
        return asked or {}
    fields: dict[str, Any] = {"approved": {"type": "boolean"}, "reason": {"type": "string"}}
    if request.edits_allowed:
        fields["editedArgs"] = asked or {"type": "object"}
    if request.needs_seen:
        fields["seen"] = {"type": "integer", "description": "The newestMessage that was shown; needed to approve."}
    return {"type": "object", "properties": fields, "required": ["approved"], "additionalProperties": False}


def _usage(result: Result) -> core.TokenUsage:
    used = InferenceUsage.from_dict(dict(result.usage))

    def count(tokens: int) -> int:
        return min(tokens, _LARGEST_COUNT)

    return core.TokenUsage(
        input_tokens=count(used.sent),
        output_tokens=count(used.received),
        total_tokens=count(used.sent + used.received),
        reasoning_tokens=count(used.reasoning),
        cached_input_tokens=count(used.cache_read),
        cache_write_input_tokens=count(used.cache_write),
    )
