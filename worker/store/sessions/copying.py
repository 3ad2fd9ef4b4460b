"""A fork changes parts of its source whose items are entries; all else it takes as it stands."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pydantic_core import to_json

from ...errors import InvalidInput, StateUnreadable
from ...state.codec.join import StateParts, read_item
from ...state.codec.split import item_json
from ...state.conversation.messages import DEFAULT, Message, Role, Span
from ...state.execution.steps import StepExecution
from ...state.execution.tool_calls import as_text
from ...state.past.edits import Edit, ReplaceMessage, SetResult
from ...state.values.frozen import Json, freeze
from ...state.values.ids import ExecutionId
from ..packing import step_spans, unpack, unpack_step


def edit_entries(parts: StateParts, edits: Sequence[Edit]) -> StateParts:
    """Return the parts with these edits, one after the other: values in the place of the entries that they change.

    Raises:
        InvalidInput: The state has no such message, or no such call with a result; or a text would be set for a result.
        StateUnreadable: What is to be changed is damaged.
    """
    editing = _Editing(parts)
    for place, each in enumerate(edits):
        name = f"edit[{place}]"
        editing.set_result(each, name) if isinstance(each, SetResult) else editing.replace(each, name)
    return editing.parts() if edits else parts


class _Editing:
    """The conversation and the steps of a state while they are edited."""

    def __init__(self, parts: StateParts) -> None:
        self._parts = parts
        self._messages, self._steps = list(parts.sections.get(DEFAULT, ())), list(parts.steps)

    def parts(self) -> StateParts:
        """The parts as they are now."""
        return self._parts._replace(sections={**self._parts.sections, DEFAULT: self._messages}, steps=self._steps)

    def replace(self, edit: ReplaceMessage, name: str) -> None:
        """Give a message another text."""
        if not 1 <= edit.number <= len(self._messages):
            advice = f"the conversation has the messages 1 to {len(self._messages)}."
            raise InvalidInput(f"{name}.number", edit.number, advice)
        message = self._message(edit.number - 1)
        if message.role is Role.TOOL:
            advice = f"it is the result of a call: use SetResult(call_id={message.tool_call_id!r}, value=…)."
            raise InvalidInput(f"{name}.number", edit.number, advice)
        if not (edit.content.strip() or message.tool_calls):
            raise InvalidInput(f"{name}.content", edit.content, "say something.")
        self._write(edit.number - 1, message.with_content(edit.content))

    def set_result(self, edit: SetResult, name: str) -> None:
        """Give a call another result, in its message and in the record of its step."""
        place = self._find_result(edit.call_id)
        if place is None:
            advice = "no call of this id has a result there; `messages` and `state` show the ids of calls."
            raise InvalidInput(f"{name}.call_id", edit.call_id, advice)
        message, value = self._message(place), freeze(edit.value)
        self._write(place, message.as_result(as_text(value)))
        execution_id = message.metadata.get("tool_execution_id")
        for number, item in enumerate(self._steps):
            # A packed record of the call is parsed by now, since its message has changed.
            if isinstance(item, StepExecution) or to_json(execution_id) in unpack(item):
                self._steps[number] = _with_result(self._record(number), execution_id, value)

    def _find_result(self, call_id: str) -> int | None:
        """The place of the newest message with the result of a call; None: there is none."""
        quoted = to_json(call_id)  # what does not have it is not parsed
        for place in range(len(self._messages) - 1, -1, -1):
            if quoted in unpack(item_json(self._messages[place])) and self._message(place).tool_call_id == call_id:
                return place
        return None

    def _message(self, place: int) -> Message:
        item, part = self._messages[place], f"{DEFAULT}[{place}]"
        return read_item(Message, unpack(item, part) if isinstance(item, bytes) else item, part)

    def _write(self, place: int, message: Message) -> None:
        """Write another message; a record that is packed over it is no entry any more."""
        for number, item in enumerate(self._steps):
            spans = step_spans(item) if isinstance(item, bytes) else ()
            if any(span.section == DEFAULT and span.start <= place < span.stop for span in spans):
                self._steps[number] = self._record(number)
        self._messages[place] = message

    def _record(self, number: int) -> StepExecution:
        item, part = self._steps[number], f"steps[{number}]"
        if isinstance(item, bytes):
            item = unpack_step(item, self._said, part)
            if item is None:
                raise _packed_over_others(part)
        return read_item(StepExecution, item, part)

    def _said(self, span: Span) -> Sequence[bytes]:
        return [unpack(item_json(each)) for each in self._parts.sections[span.section][span.start : span.stop]]


def _with_result(record: StepExecution, execution_id: Json, value: Json) -> StepExecution:
    """The record of a step with another result of the call that was carried out under this id, if it is one of its."""
    calls = record.step.tool_executions
    if all(str(each.id) != execution_id for each in calls):
        return record
    changed = tuple(each.with_result(value) if str(each.id) == execution_id else each for each in calls)
    return record.with_step(record.step.with_tool_executions(changed))


def go_on(parts: StateParts, execution_id: ExecutionId, now: datetime) -> StateParts:
    """Return the parts with their execution under another id; the time since their last change does not count."""
    outline = parts.head.state
    assert outline.execution is not None
    idle = max(0.0, (now - outline.updated_at).total_seconds())
    return parts.with_outline(
        outline.with_context_and_execution(outline.context, outline.execution.as_fork(execution_id, idle=idle))
    )


def check_entries(parts: StateParts) -> None:
    """Raise `StateUnreadable` where entries are missing, or a step is packed over messages that are not there."""
    parts.check_lengths()
    extents = {
        name: (each.generation, parts.head.lengths[name]) for name, each in parts.head.state.store.sections.items()
    }
    for place, entry in enumerate(parts.steps):
        for span in step_spans(entry) if isinstance(entry, bytes) else ():
            generation, length = extents.get(span.section, (-1, 0))
            if span.generation != generation or span.stop > length:
                raise _packed_over_others(f"steps[{place}]")


def _packed_over_others(part: str) -> StateUnreadable:
    return StateUnreadable(part, "the messages that it is packed over are not those of its section")
