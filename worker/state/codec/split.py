"""The state in parts for a store: a head of bounded size, and lists that only grow.

The head holds everything but the messages of the sections and the steps that are done; of these only how many there
are. A step holds, in place of the messages it said, where they are in their section. So a commit writes the head and
what was added, and a worker that still holds the older part parses what is new.

    head_json(state), message_json(m) of each message, step_json(s) of each step  → join(head, sections, steps) == state

A section whose content was replaced has another `generation`, and then the steps are written anew (another
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
from ..values.frozen import FrozenMap
from .join import Head

_SPLIT_OFF: dict[str, Any] = {
    "context": {"store": {"sections": {"__all__": {"messages"}}}},
    "execution": {"step_executions": True},
}
_SPLIT_OFF_WITH_OUTPUT: dict[str, Any] = {
    **_SPLIT_OFF,
    "execution": {"step_executions": True, "current_step": {"output_messages"}},
}


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

    state: AgentState
    sections: Mapping[str, ListChange]
    steps: ListChange | None

    @property
    def head(self) -> bytes:
        """The next state's, made when it is asked for."""
        return head_json(self.state)


def split(state: AgentState) -> StateParts:
    return StateParts(head_json(state), state.store.sections, _steps(state.execution))


def head_json(state: AgentState) -> bytes:
    """The head. Its size does not grow with the conversation."""
    lengths = FrozenMap[int].of({name: len(section.messages) for name, section in state.store.sections.items()})
    head = Head(state=state, lengths=lengths, steps=len(_steps(state.execution)))
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
        after,
        {name: change for name, change in sections.items() if change is not None},
        _steps_change(before.execution if before is not None else None, after.execution),
    )


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
