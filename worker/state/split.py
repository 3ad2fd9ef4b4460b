"""The state in parts for a store: a head of bounded size, and lists that only grow.

The head holds everything but the messages of the sections and the steps that are done; of these only how many there
are. A step holds, in place of the messages it said, where they are in their section. So a commit writes the head and
what was added, and a worker that still holds the older part parses what is new.

    head_json(state), message_json(m) of each message, step_json(s) of each step  → join(head, sections, steps) == state

A section whose content was replaced has another `generation`, and then the steps are written anew (another
`steps_generation`, the messages inside the steps). `changes` says what to write after what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from ..errors import StateTooNew, StateUnreadable
from .agent_state import SCHEMA_VERSION, AgentState
from .execution import ExecutionState
from .frozen import FrozenMap, FrozenMapField
from .messages import Message, MessageStore, Section
from .steps import AgentStep, StepExecution
from .value import Count, Value

V = TypeVar("V", bound=Value)

_SPLIT_OFF: dict[str, Any] = {
    "context": {"store": {"sections": {"__all__": {"messages"}}}},
    "execution": {"step_executions": True},
}
_SPLIT_OFF_WITH_OUTPUT: dict[str, Any] = {
    **_SPLIT_OFF,
    "execution": {"step_executions": True, "current_step": {"output_messages"}},
}


class Head(Value):
    """The state without its lists, and how long these are.

    Attributes:
        state: With empty sections and without steps.
        lengths: Messages of each section.
        steps: Steps that are done.
    """

    state: AgentState
    lengths: FrozenMapField[Count] = FrozenMap[int]()
    steps: Count = 0


class StateParts(NamedTuple):
    """A state taken apart."""

    head: bytes
    sections: Mapping[str, Section]
    steps: tuple[StepExecution, ...]


@dataclass(frozen=True)
class ListChange:
    """What to write to one list.

    Attributes:
        generation: Of the list as it is now.
        start: The place of the first item in `items`; 0 replaces whatever the list held.
        items: What to append, as JSON.
    """

    generation: int
    start: int
    items: tuple[bytes, ...]

    @property
    def length(self) -> int:
        """Of the list afterwards."""
        return self.start + len(self.items)


@dataclass(frozen=True)
class StateChanges:
    """What to write so that a store that holds one state holds the next: only lists that change are named."""

    head: bytes
    sections: Mapping[str, ListChange]
    steps: ListChange | None


def split(state: AgentState) -> StateParts:
    return StateParts(head_json(state), state.store.sections, _steps(state.execution))


def head_json(state: AgentState) -> bytes:
    """The head. Its size does not grow with the conversation."""
    lengths = {name: len(section.messages) for name, section in state.store.sections.items()}
    head = Head.model_construct(state=state, lengths=lengths, steps=len(_steps(state.execution)))
    step = state.current_step
    split_off = _SPLIT_OFF_WITH_OUTPUT if step is not None and step.outputs else _SPLIT_OFF
    return Head.__pydantic_serializer__.to_json(head, exclude={"state": split_off}, exclude_defaults=True)


def message_json(message: Message) -> bytes:
    return message.to_json()


def step_json(execution: StepExecution) -> bytes:
    """A step, without the messages that its section holds."""
    exclude = {"step": {"output_messages"}} if execution.step.outputs else None
    return StepExecution.__pydantic_serializer__.to_json(execution, exclude=exclude, exclude_defaults=True)


def changes(before: AgentState | None, after: AgentState) -> StateChanges:
    """What a store that holds `before` (None: nothing) must write to hold `after`."""
    held: Mapping[str, Section] = before.store.sections if before is not None else {}
    sections = {name: _section_change(held.get(name), section) for name, section in after.store.sections.items()}
    return StateChanges(
        head_json(after),
        {name: change for name, change in sections.items() if change is not None},
        _steps_change(before.execution if before is not None else None, after.execution),
    )


def join(
    head: bytes | Head,
    sections: Mapping[str, Sequence[bytes | Message]],
    steps: Sequence[bytes | StepExecution] = (),
) -> AgentState:
    """The state from its parts. Items may be JSON or the values themselves, which are taken as they are.

    Raises:
        StateTooNew: A newer version of this package wrote it.
        StateUnreadable: A part is damaged, or the lists are not as long as the head says.
    """
    read = head if isinstance(head, Head) else read_head(head)
    store = _store(read, sections)
    _expect("steps", read.steps, len(steps))
    done = tuple(_step(item, f"steps[{place}]", store) for place, item in enumerate(steps))
    return _complete(read.state, store, done)


def read_head(head: bytes) -> Head:
    """The head alone, which says how long the lists are; `join` takes it as well.

    Raises:
        StateTooNew: A newer version of this package wrote it.
        StateUnreadable: It is damaged.
    """
    try:
        read = Head.from_json(head)
    except ValidationError as error:
        _refuse_newer(_version_in(head))
        raise StateUnreadable("head", _reason(error)) from None
    _refuse_newer(read.state.schema_version)
    if set(read.lengths) != set(read.state.store.sections):
        raise StateUnreadable("head", "the sections and their lengths do not fit together")
    return read


def _version_in(head: bytes) -> object:
    try:
        return from_json(head)["state"]["schema_version"]
    except (ValueError, KeyError, TypeError):
        return None


def _refuse_newer(version: object) -> None:
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise StateTooNew(version, SCHEMA_VERSION)


def _store(head: Head, sections: Mapping[str, Sequence[bytes | Message]]) -> MessageStore:
    read = head.state.store.sections
    return head.state.store.with_sections(
        {name: _section(name, part, head.lengths[name], sections.get(name, ())) for name, part in read.items()}
    )


def _section(name: str, section: Section, length: int, items: Sequence[bytes | Message]) -> Section:
    _expect(name, length, len(items))
    messages = tuple(_value(Message, item, f"{name}[{place}]") for place, item in enumerate(items))
    return section.with_messages_added(messages)


def _expect(part: str, said: int, found: int) -> None:
    if said != found:
        raise StateUnreadable(part, f"the head says {said} items, {found} were found")


def _step(item: bytes | StepExecution, part: str, store: MessageStore) -> StepExecution:
    execution = _value(StepExecution, item, part)
    if execution is item:
        return execution
    return execution.with_step(_with_output(execution.step, part, store))


def _with_output(step: AgentStep, part: str, store: MessageStore) -> AgentStep:
    if not step.outputs:
        return step
    messages: list[Message] = []
    for span in step.outputs:
        section = store.section(span.section)
        if section.generation != span.generation or len(section.messages) < span.stop or span.start > span.stop:
            raise StateUnreadable(part, f"its messages are not in section {span.section!r}")
        messages.extend(section.messages[span.start : span.stop])
    return step.with_outputs(tuple(messages), step.outputs)


def _complete(state: AgentState, store: MessageStore, steps: tuple[StepExecution, ...]) -> AgentState:
    execution = state.execution
    if execution is None:
        _expect("steps", 0, len(steps))
    else:
        current = execution.current_step
        read = _with_output(current, "current_step", store) if current else None
        execution = execution.with_steps_read(steps, read)
    return state.with_parts(state.context.with_store(store), execution)


def _value(kind: type[V], item: bytes | V, part: str) -> V:
    if isinstance(item, kind):
        return item
    try:
        return kind.from_json(item)  # pyright: ignore[reportArgumentType]
    except ValidationError as error:
        raise StateUnreadable(part, _reason(error)) from None


def _reason(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(step) for step in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


def _steps(execution: ExecutionState | None) -> tuple[StepExecution, ...]:
    return execution.step_executions if execution is not None else ()


def _section_change(before: Section | None, after: Section) -> ListChange | None:
    if before is after:
        return None
    same = before is not None and before.generation == after.generation
    start = len(before.messages) if before is not None and same else 0
    items = tuple(message_json(message) for message in after.messages[start:])
    return ListChange(after.generation, start, items) if items or not same else None


def _steps_change(before: ExecutionState | None, after: ExecutionState | None) -> ListChange | None:
    if after is None:
        return ListChange(0, 0, ()) if _steps(before) else None
    same = before is not None and before.is_written_like(after)
    start = len(_steps(before)) if same else 0
    items = tuple(step_json(step) for step in after.step_executions[start:])
    return ListChange(after.steps_generation, start, items) if items or not same else None
