"""The state in parts for a store: a head of bounded size, and lists that only grow.

The head holds everything but the messages of the sections, the items of parts that grow and the steps that are done;
of these only how many there are. A step holds, in place of the messages it said, where they are in their section. So a
commit writes the head and what was added, and a worker that still holds the older part parses what is new.

    head_json(state), message_json(m) of each message, step_json(s) of each step, the items of each list of a part
        → join(head, sections, steps, lists) == state

A section whose content was replaced has another `generation`, and then the steps are written again (another
`steps_generation`, the messages inside the steps). `changes` says what to write after what.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..agent_state import AgentState
from ..conversation.messages import Message, Section
from ..execution.execution import ExecutionState
from ..execution.steps import StepExecution
from ..parts.storage import PartList
from ..values.frozen import FrozenMap
from ..values.value import models
from .join import Head

_SPLIT_OFF: dict[str, Any] = {
    "context": {"store": {"sections": {"__all__": {"messages"}}}},
    "execution": {"step_executions": True},
}
_SPLIT_OFF_WITH_OUTPUT: dict[str, Any] = {
    **_SPLIT_OFF,
    "execution": {"step_executions": True, "current_step": {"output_messages"}},
}


_SPLIT_OFF_LISTS: dict[str, Any] = {"lists": {"__all__": {"items"}}}


class SplitState(NamedTuple):
    """A state taken apart."""

    head: bytes
    sections: Mapping[str, Section]
    steps: tuple[StepExecution, ...]
    lists: Mapping[str, PartList]


@dataclass(frozen=True)
class ListChange:
    """One write to a list.

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
        """The length of the list after the write."""
        return self.start + len(self.items)


_NOTHING: Mapping[str, Any] = FrozenMap[Any]()


@dataclass(frozen=True)
class StateChanges:
    """The writes that turn a stored state into the next one. Only lists that change are named.

    Attributes:
        lists: Of parts that grow, by the name of `AgentState.part_lists`.
        dropped_lists: Lists to delete before anything is appended, by name: the generation that is stored.
    """

    state: AgentState
    sections: Mapping[str, ListChange]
    steps: ListChange | None
    lists: Mapping[str, ListChange] = _NOTHING
    dropped_lists: Mapping[str, int] = _NOTHING

    @property
    def size(self) -> int:
        """Bytes of JSON to append."""
        written = (*self.sections.values(), *self.lists.values(), *((self.steps,) if self.steps is not None else ()))
        return sum(len(item) for change in written for item in change.items)


def split(state: AgentState) -> SplitState:
    """The head and the lists of a state."""
    return SplitState(
        head=head_json(state),
        sections=state.store.sections,
        steps=_steps(state.execution),
        lists=state.part_lists,
    )


def head_json(state: AgentState, *, packed: bool = False) -> bytes:
    """The head. Its size does not grow with the conversation.

    Args:
        packed: Entries of the lists may be packed: builds that cannot read these are to refuse the session.
    """
    lengths = FrozenMap[int].of({name: len(section.messages) for name, section in state.store.sections.items()})
    counts = FrozenMap[int].of({name: len(each.items) for name, each in state.part_lists.items()})
    return write_head(
        Head(state=state, lengths=lengths, steps=len(_steps(state.execution)), lists=counts), packed=packed
    )


def write_head(head: Head, *, packed: bool = False) -> bytes:
    """A head as it is stored; see `head_json`."""
    step = head.state.current_step
    split_off = _SPLIT_OFF_WITH_OUTPUT if step is not None and step.outputs else _SPLIT_OFF
    if head.lists:
        in_execution = {**split_off["execution"], "parts": _SPLIT_OFF_LISTS}
        split_off = {**split_off, "parts": _SPLIT_OFF_LISTS, "execution": in_execution}
    return models.write_json(head.with_packing() if packed else head, {"state": split_off})


def message_json(message: Message) -> bytes:
    """A message as its section stores it."""
    return message.to_json()


def step_json(execution: StepExecution) -> bytes:
    """A step, without the messages that its section holds."""
    exclude = {"step": {"output_messages"}} if execution.step.outputs else None
    return models.write_json(execution, exclude)


def item_json(item: bytes | Message | StepExecution) -> bytes:
    """An item of a list as it is stored."""
    if isinstance(item, bytes):
        return item
    return message_json(item) if isinstance(item, Message) else step_json(item)


def changes(before: AgentState | None, after: AgentState) -> StateChanges:
    """The writes that turn a store that holds `before` (None: nothing) into one that holds `after`."""
    old: Mapping[str, Section] = before.store.sections if before is not None else {}
    sections = {name: _section_change(old.get(name), section) for name, section in after.store.sections.items()}
    lists, dropped = _list_changes(before, after)
    return StateChanges(
        state=after,
        sections={name: change for name, change in sections.items() if change is not None},
        steps=_steps_change(before.execution if before is not None else None, after.execution),
        lists=lists,
        dropped_lists=dropped,
    )


def _list_changes(before: AgentState | None, after: AgentState) -> tuple[Mapping[str, ListChange], Mapping[str, int]]:
    """The writes to lists of parts, and the lists to delete: replaced ones, and those of an execution that is over."""
    old, new = before.part_lists if before is not None else _NOTHING, after.part_lists
    if not old and not new:
        return _NOTHING, _NOTHING
    gone = {name: items.generation for name, items in old.items() if not _continues(name, before, after)}
    found: dict[str, ListChange] = {}
    for name, each in new.items():
        start = len(old[name].items) if name in old and name not in gone else 0
        if len(each.items) > start or start == 0:
            found[name] = ListChange(each.generation, start, each.items[start:])
    return found, gone


def _continues(name: str, before: AgentState | None, after: AgentState) -> bool:
    """Tell whether a list continues: the same generation, and of the same execution where it belongs to one."""
    assert before is not None
    new = after.part_lists.get(name)
    same = new is not None and new.generation == before.part_lists[name].generation
    if not same or name in (after.parts.lists if after.parts is not None else ()):
        return same
    one, other = before.execution, after.execution
    return one is not None and other is not None and one.execution_id == other.execution_id


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
