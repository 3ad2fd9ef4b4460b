"""The lists of a session: what a save appends to them, and which keys live as long as the session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...state import AgentState, ListChange, StateChanges
from ..context import SessionScope
from ..database import Command


def append_commands(
    scope: SessionScope, state: AgentState, change: StateChanges, before: AgentState | None
) -> Iterator[Command]:
    """Append what a state has and the state before it has not; a list that begins anew replaces the old one."""
    keys = scope.keys
    for name, section in change.sections.items():
        if section.start == 0 and before is not None and name in before.store.sections:
            yield ("DEL", keys.section(name, before.store.section(name).generation))
        yield from _append(keys.section(name, section.generation), section)
    for name, generation in change.dropped_lists.items():
        yield ("DEL", keys.part(name, generation))
    for name, items in change.lists.items():
        yield from _append(keys.part(name, items.generation), items)
    if change.steps is not None and state.execution is not None:
        steps = keys.steps(state.execution.execution_id)
        if change.steps.start == 0 and before is not None:
            yield ("DEL", steps)
        yield from _append(steps, change.steps)


def _append(key: str, change: ListChange) -> Iterator[Command]:
    if change.items:
        yield ("RPUSH", key, *change.items)


def session_key_names(scope: SessionScope, state: AgentState, executions: Sequence[str]) -> list[str]:
    """Every key that lives as long as the session."""
    keys, sections = scope.keys, state.store.sections
    return [
        keys.session,
        keys.ctl,
        keys.inbox,
        keys.events,
        *(keys.section(name, section.generation) for name, section in sections.items()),
        *(keys.part(name, items.generation) for name, items in state.part_lists.items()),
        *(keys.steps(execution_id) for execution_id in executions),
    ]
