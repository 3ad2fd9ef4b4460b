"""Copies of a conversation: what a fork has otherwise than its source, and its execution under an id of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from ...errors import InvalidInput
from ..agent_state import AgentState
from ..conversation.messages import DEFAULT, Message, Role
from ..execution.steps import AgentStep
from ..execution.tool_calls import as_text
from ..values.frozen import freeze
from ..values.ids import AgentStepId, ExecutionId

_ADVICE = "give ReplaceMessage(number, content) or SetResult(call_id, value), or an object with the same fields."


@dataclass(frozen=True, slots=True)
class ReplaceMessage:
    """Another text for a message of the user or of the model; calls that it asks for stay.

    Attributes:
        number: Of the message in the conversation, from 1.
    """

    number: int
    content: str


@dataclass(frozen=True, slots=True)
class SetResult:
    """Another result for a tool call, as if the tool had returned it.

    Attributes:
        call_id: As in the message that asks for the call. Of several calls with one id, the newest one is meant.
        value: JSON.
    """

    call_id: str
    value: Any


Edit = ReplaceMessage | SetResult


def read_edits(given: object) -> tuple[Edit, ...]:
    """Read edits, or their fields.

    Raises:
        InvalidInput: One is none; the error names it.
    """
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise InvalidInput("edit", given, "give a list of edits.")
    return tuple(_read_edit(f"edit[{place}]", each) for place, each in enumerate(cast("Sequence[object]", given)))


def _read_edit(name: str, given: object) -> Edit:
    edit: Any = given
    if isinstance(given, Mapping):
        edit = _from_fields(cast("Mapping[str, Any]", given))
    if isinstance(edit, ReplaceMessage) and isinstance(edit.content, str) and type(edit.number) is int:  # pyright: ignore[reportUnnecessaryIsInstance]
        freeze(edit.content, f"{name}.content")
    elif isinstance(edit, SetResult) and isinstance(edit.call_id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        freeze(edit.value, f"{name}.value")
    else:
        raise InvalidInput(name, cast("Any", given), _ADVICE)
    return edit


def _from_fields(values: Mapping[str, Any]) -> Edit | None:
    if set(values) == {"number", "content"}:
        return ReplaceMessage(values["number"], values["content"])
    return SetResult(values["call_id"], values["value"]) if set(values) == {"call_id", "value"} else None


def edit_state(state: AgentState, edits: Sequence[Edit]) -> AgentState:
    """Return the state with these edits, one after the other.

    Raises:
        InvalidInput: It has no such message, or no such call with a result; or a text would be set for a result.
    """
    for place, each in enumerate(edits):
        name = f"edit[{place}]"
        state = _set_result(state, each, name) if isinstance(each, SetResult) else _replace(state, each, name)
    return state


def _replace(state: AgentState, edit: ReplaceMessage, name: str) -> AgentState:
    messages = state.context.store.section(DEFAULT).messages
    if not 1 <= edit.number <= len(messages):
        raise InvalidInput(f"{name}.number", edit.number, f"the conversation has the messages 1 to {len(messages)}.")
    message = messages[edit.number - 1]
    if message.role is Role.TOOL:
        advice = f"it is the result of a call: use SetResult(call_id={message.tool_call_id!r}, value=…)."
        raise InvalidInput(f"{name}.number", edit.number, advice)
    if not (edit.content.strip() or message.tool_calls):
        raise InvalidInput(f"{name}.content", edit.content, "say something.")
    return _with_message(state, edit.number - 1, message.with_content(edit.content))


def _set_result(state: AgentState, edit: SetResult, name: str) -> AgentState:
    messages = state.context.store.section(DEFAULT).messages
    places = [place for place, each in enumerate(messages) if each.tool_call_id == edit.call_id]
    if not places:
        advice = "no call of this id has a result there; `messages` and `state` show the ids of calls."
        raise InvalidInput(f"{name}.call_id", edit.call_id, advice)
    message, value = messages[places[-1]], freeze(edit.value)
    execution_id = message.metadata.get("tool_execution_id")

    def change(step: AgentStep) -> AgentStep:
        calls = step.tool_executions
        changed = tuple(each.with_result(value) if str(each.id) == execution_id else each for each in calls)
        return step if changed == calls else step.with_tool_executions(changed)

    return _with_message(_with_steps(state, change), places[-1], message.as_result(as_text(value)))


def _with_message(state: AgentState, place: int, message: Message) -> AgentState:
    """The state with another message at a place, also in the record of the step that wrote it."""
    messages = state.context.store.section(DEFAULT).messages
    return _with_messages(state, DEFAULT, (*messages[:place], message, *messages[place + 1 :]))


def _with_messages(state: AgentState, name: str, messages: tuple[Message, ...]) -> AgentState:
    """The state with other messages in a section, also in the records of the steps that wrote them."""
    store = state.context.store
    store = store.with_sections({**store.sections, name: store.section(name).with_stored(messages)})

    def change(step: AgentStep) -> AgentStep:
        parts = [store.section(span.section).messages[span.start : span.stop] for span in step.outputs]
        shown = tuple(each for part in parts for each in part)
        return step if not shown or shown == step.output_messages else step.with_outputs(shown, step.outputs)

    changed = _with_steps(state, change)
    return changed.with_context_and_execution(changed.context.with_store(store), changed.execution)


def _with_steps(state: AgentState, change: Callable[[AgentStep], AgentStep]) -> AgentState:
    execution = None if state.execution is None else state.execution.with_steps(change)
    return state.with_context_and_execution(state.context, execution)


def copy_execution(state: AgentState, execution_id: ExecutionId, now: datetime) -> AgentState:
    """Return the state with its execution under another id; steps and messages of it have ids and tags that fit."""
    assert state.execution is not None
    old = state.execution.execution_id

    def rename(step_id: str) -> AgentStepId:
        return AgentStepId(f"{execution_id}{step_id[len(old) :]}" if step_id.startswith(f"{old}-") else step_id)

    def tag(message: Message) -> Message:
        if message.metadata.get("execution_id") != old:
            return message
        step_id = rename(str(message.metadata.get("step_id", "")))
        return message.with_tags({"execution_id": str(execution_id), "step_id": str(step_id)})

    state = _with_steps(state, lambda step: step.with_id(rename(step.id)))
    for name, section in state.context.store.sections.items():
        state = _with_messages(state, name, tuple(map(tag, section.messages)))
    assert state.execution is not None
    return state.with_context_and_execution(state.context, state.execution.with_id(execution_id, now))
