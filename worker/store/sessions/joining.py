"""The state of a session from the entries of its lists, as they are stored, and from what is parsed already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from ...errors import StateUnreadable
from ...state.agent_state import AgentState
from ...state.codec.join import Head, StateParts, join
from ...state.codec.split import item_json, step_json
from ...state.conversation.messages import DEFAULT, Message, Section, Span
from ...state.execution.steps import StepExecution
from ...state.parts.storage import PartList
from ..cache import CachedSession, as_read
from ..packing import unpack, unpack_step

_NO_SECTIONS: Final[Mapping[str, Section]] = MappingProxyType({})
_NO_LISTS: Final[Mapping[str, PartList]] = MappingProxyType({})


def join_tails(cached: CachedSession, head: Head, tails: Sequence[list[bytes]]) -> tuple[AgentState, int] | None:
    """Join the head and the replies to the reads of tails; None when what is cached is not the beginning."""
    old = cached.state
    if not _continues(old, head):
        return None
    sections = dict(zip(old.store.sections, tails, strict=False))
    lists = dict(zip(old.part_lists, tails[len(sections) :], strict=False))
    steps = tails[-1] if old.execution is not None else ()
    return join_entries(StateParts(head, sections, steps, lists=lists), cached.size, old)


def _continues(old: AgentState, head: Head) -> bool:
    """Whether every list of `old` is the beginning of what the head describes."""
    new = head.state
    if (old.execution is None) != (new.execution is None):
        return False
    if old.execution is not None and new.execution is not None and not old.execution.is_written_like(new.execution):
        return False
    lists = {name: items.generation for name, items in old.part_lists.items()}
    if lists != {name: items.generation for name, items in new.part_lists.items()}:
        return False
    generations = {name: section.generation for name, section in old.store.sections.items()}
    return generations == {name: section.generation for name, section in new.store.sections.items()}


def join_usual(head: Head, size: int, execution_id: str, lists: Sequence[list[bytes]]) -> tuple[AgentState, int] | None:
    """Join the head and the replies to the reads of the usual lists.

    None for a session with other lists than most have: one section, never replaced, and this execution's steps.
    """
    messages, steps = lists
    generations = {name: section.generation for name, section in head.state.store.sections.items()}
    execution = head.state.execution
    if generations not in ({}, {DEFAULT: 0}) or execution is None or execution.execution_id != execution_id:
        return None
    if head.lists:
        return None
    return join_entries(StateParts(head, {DEFAULT: messages} if generations else {}, steps), as_read(size))


def join_entries(entries: StateParts, size: int, old: AgentState | None = None) -> tuple[AgentState, int] | None:
    """Join a state from entries as they are stored, behind what is parsed already.

    Args:
        entries: The head, and in each list the entries behind what `old` has.
        size: Of the head, or of `old`, as `CachedSession` counts it.
        old: The beginning of what the head describes. None: the entries are all there are.
    Returns:
        The state and its size; None where a step is packed over messages that are not of the state.
    """
    head, sections, steps, lists = entries
    added = {name: [unpack(item_json(entry), name) for entry in found] for name, found in sections.items()}
    items = {name: [unpack(entry, f"part {name}") for entry in found] for name, found in lists.items()}
    before = old.store.sections if old is not None else _NO_SECTIONS
    messages: dict[str, Sequence[bytes | Message]] = {
        name: (*before[name].messages, *new) if name in before else new for name, new in added.items()
    }
    generations = {name: section.generation for name, section in head.state.store.sections.items()}

    def said(span: Span) -> Sequence[bytes | Message]:
        is_kept = generations.get(span.section) == span.generation
        return messages[span.section][span.start : span.stop] if is_kept else ()

    parsed = old.execution.step_executions if old is not None and old.execution is not None else ()
    done: list[bytes] = []
    for place, entry in enumerate(steps, len(parsed)):
        if isinstance(entry, StepExecution):
            done.append(step_json(entry))
            continue
        item = unpack_step(entry, said, f"steps[{place}]")
        if item is None:
            return None
        done.append(item)
    size += as_read(sum(len(each) for new in (*added.values(), *items.values(), done) for each in new))
    kept = old.part_lists if old is not None else _NO_LISTS
    whole: dict[str, Sequence[bytes]] = {
        name: (*kept[name].items, *new) if name in kept else new for name, new in items.items()
    }
    return join(head, messages, (*parsed, *done), whole), size


def join_whole(entries: StateParts, size: int = 0) -> tuple[AgentState, int]:
    """Join a state from all its entries; see `join_entries`.

    Raises:
        StateUnreadable: One is damaged, or a step is packed over messages that are not of the state.
    """
    found = join_entries(entries, size)
    if found is None:
        raise StateUnreadable("steps", "the messages that they are packed over are not those of their section")
    return found
