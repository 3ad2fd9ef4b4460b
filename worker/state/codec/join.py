"""The state from the parts a store holds; `split` says what they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from ...errors import StateUnreadable
from ..agent_fields import PACKED_SCHEMA_VERSION, check_schema_version
from ..agent_state import AgentState
from ..conversation.messages import Message, MessageStore, Section
from ..execution.steps import AgentStep, StepExecution
from ..parts.storage import PartList
from ..values.field_types import Count, FrozenMapField
from ..values.frozen import FrozenMap
from ..values.value import Value

V = TypeVar("V", bound=Value)
_NO_LISTS: Mapping[str, Sequence[bytes]] = MappingProxyType({})


class Head(Value):
    """The state without its lists, and how long these are.

    Attributes:
        state: With empty sections and without steps.
        lengths: Messages of each section.
        steps: Steps that are done.
        lists: Items of each list of a part, by the name of `AgentState.part_lists`.
        packed: The schema version of the state, where entries of the lists may be packed; 0 where none is.
    """

    state: AgentState
    lengths: FrozenMapField[Count] = FrozenMap[int]()
    steps: Count = 0
    lists: FrozenMapField[Count] = FrozenMap[int]()
    packed: Count = 0

    def with_state_as_packed(self) -> Head:
        """The same with the state's own schema version, where that of the packed form is stored in its place."""
        return self._with(state=self.state.stored_as(self.packed))

    def with_state(self, state: AgentState) -> Head:
        """Another state around the same lists."""
        return self._with(state=state)

    def with_packing(self) -> Head:
        """The same for a store whose entries may be packed: builds that cannot read these are to refuse the session."""
        return self._with(state=self.state.stored_as(PACKED_SCHEMA_VERSION), packed=self.state.schema_version)


class StateParts(NamedTuple):
    """A state as a store holds it. Items are JSON or values for `join`; a store has its own form of entries, too.

    Attributes:
        sections: The messages of each section.
        steps: The steps that are done.
        lists: The items of each list of a part, by the name of `AgentState.part_lists`.
    """

    head: Head
    sections: Mapping[str, Sequence[bytes | Message]]
    steps: Sequence[bytes | StepExecution] = ()
    lists: Mapping[str, Sequence[bytes]] = _NO_LISTS

    def with_outline(self, outline: AgentState) -> StateParts:
        """The same lists with another state around them."""
        return self._replace(head=self.head.with_state(outline))

    def without_execution(self) -> StateParts:
        """The same without the execution, its steps and its lists."""
        outline = self.head.state.for_next_execution()
        lists = {name: self.lists[name] for name in outline.part_lists}
        counts = FrozenMap[int].of({name: len(each) for name, each in lists.items()})
        head = Head(state=outline, lengths=self.head.lengths, lists=counts)
        return StateParts(head, self.sections, lists=lists)

    def check_lengths(self) -> None:
        """Raise `StateUnreadable` where a list is not as long as the head says."""
        for name, length in self.head.lengths.items():
            _expect(name, length, len(self.sections.get(name, ())))
        _expect("steps", self.head.steps, len(self.steps))
        _check_part_lists(self.head, self.lists)


def join(
    head: bytes | Head,
    sections: Mapping[str, Sequence[bytes | Message]],
    steps: Sequence[bytes | StepExecution] = (),
    lists: Mapping[str, Sequence[bytes]] = _NO_LISTS,
) -> AgentState:
    """The state from its parts. Items may be JSON or the values themselves; steps get the messages that they lack.

    Raises:
        StateTooNew: A newer version of this package wrote it.
        StateUnreadable: A part is damaged, or the lists are not as long as the head says.
    """
    read = head if isinstance(head, Head) else read_head(head)
    StateParts(read, sections, steps, lists=lists).check_lengths()
    store = _store(read, sections)
    done = tuple(_step(item, f"steps[{place}]", store) for place, item in enumerate(steps))
    return _complete(read.state, store, done).with_part_lists(_part_lists(read, lists))


def join_outline(head: Head, lists: Mapping[str, Sequence[bytes]] = _NO_LISTS) -> AgentState:
    """The state without its messages and its steps.

    Raises:
        StateUnreadable: A list of a part is damaged, or not as long as the head says.
    """
    _check_part_lists(head, lists)
    return head.state.with_part_lists(_part_lists(head, lists))


def _check_part_lists(head: Head, lists: Mapping[str, Sequence[bytes]]) -> None:
    for name, length in head.lists.items():
        _expect(f"part {name}", length, len(lists.get(name, ())))


def read_head(head: bytes) -> Head:
    """The head alone, which says how long the lists are; `join` takes it as well.

    Raises:
        StateTooNew: A newer version of this package wrote it.
        StateUnreadable: It is damaged.
    """
    try:
        read = Head.from_json(head)
    except ValidationError as error:
        check_schema_version(_version_in(head), PACKED_SCHEMA_VERSION)
        raise StateUnreadable("head", _reason(error)) from None
    if read.state.schema_version >= PACKED_SCHEMA_VERSION:
        check_schema_version(read.state.schema_version, PACKED_SCHEMA_VERSION)
        read = read.with_state_as_packed()
    check_schema_version(read.state.schema_version)
    if set(read.lengths) != set(read.state.store.sections):
        raise StateUnreadable("head", "the sections and their lengths do not fit together")
    if read.lists.keys() != read.state.part_lists.keys():
        raise StateUnreadable("head", "the lists of parts and their lengths do not fit together")
    return read


def _part_lists(head: Head, lists: Mapping[str, Sequence[bytes]]) -> Mapping[str, PartList]:
    if not head.lists:
        return {}
    empty = head.state.part_lists
    return {name: _part_list(name, empty[name], lists.get(name, ())) for name in head.lists}


def _part_list(name: str, empty: PartList, items: Sequence[bytes]) -> PartList:
    for place, item in enumerate(items):
        _check_json(item, f"part {name}[{place}]")
    return empty.with_items(tuple(items))


def _check_json(item: bytes, part: str) -> None:
    try:
        from_json(item)
    except ValueError as error:
        raise StateUnreadable(part, str(error)) from None


def _version_in(head: bytes) -> object:
    try:
        return from_json(head)["state"]["schema_version"]
    except (ValueError, KeyError, TypeError):
        return None


def _store(head: Head, sections: Mapping[str, Sequence[bytes | Message]]) -> MessageStore:
    read = head.state.store
    return read.with_sections(
        {name: _section(name, part, sections.get(name, ())) for name, part in read.sections.items()}
    )


def _section(name: str, section: Section, items: Sequence[bytes | Message]) -> Section:
    messages = tuple(read_item(Message, item, f"{name}[{place}]") for place, item in enumerate(items))
    return section.with_messages_added(messages)


def _expect(part: str, said: int, found: int) -> None:
    if said != found:
        raise StateUnreadable(part, f"the head says {said} items, {found} were found")


def _step(item: bytes | StepExecution, part: str, store: MessageStore) -> StepExecution:
    execution = read_item(StepExecution, item, part)
    if execution is item and execution.step.output_messages:
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
    return state.with_context_and_execution(state.context.with_store(store), execution)


def read_item(kind: type[V], item: bytes | V, part: str) -> V:
    """An item of a list as a value.

    Raises:
        StateUnreadable: It is damaged; the error names it as `part`.
    """
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
