"""The state at a committed step, from the present state, the lists, and the old values that saves have kept.

Each value is looked up by itself: the first that was kept at the step or later, else the present one. What follows from
the records of the steps was kept only where it differs; see `old_values`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from pydantic_core import from_json, to_json

from ...errors import NotKept
from ..agent_state import AgentState
from ..codec.join import Head, StateParts
from ..conversation.messages import Extent, Message, Span
from ..execution.execution import ExecutionState
from ..execution.steps import StepExecution
from ..execution.usage import InferenceUsage
from ..parts.storage import StoredParts
from ..values.frozen import FrozenMap
from .old_values import (
    CONTEXT_FIELDS,
    EXECUTION_FIELDS,
    STATE_FIELDS,
    Position,
    committed_fields,
    cost_before,
    usage_before,
)

_OF_EXECUTION: Final = ".x"


@dataclass(frozen=True, slots=True)
class Entry:
    """An old value: the last step at which it held, and the value as `old_values` gives it."""

    until: Position
    value: bytes


class OldValues:
    """The old values of a session by name, and what is not kept any more."""

    def __init__(
        self,
        entries: Mapping[str, Sequence[Entry]],
        dropped: Mapping[str, Position],
        texts: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        """
        Args:
            entries: Of each name, in any order.
            dropped: For a name, the last step of the newest value that was dropped to stay within the bound.
            texts: JSON of prompts, of lists of tools and of choices of messages, by their digests.
        """
        self.texts = texts
        self._entries = {name: sorted(each, key=lambda entry: entry.until) for name, each in entries.items()}
        self._dropped = dropped

    def first(self, name: str, at: Position) -> Entry | None:
        """The value at a step, if it has changed since.

        Raises:
            NotKept: It was dropped.
        """
        if at <= self._dropped.get(name, (-1, 0)):
            raise NotKept(name, at.step)
        return next((each for each in self._entries.get(name, ()) if each.until >= at), None)

    def exact(self, name: str, at: Position) -> Entry | None:
        """The value that was kept for just this step; see `first`."""
        found = self.first(name, at)
        return found if found is not None and found.until == at else None

    def names(self, kind: str) -> set[str]:
        """The ends of the known names that begin with `<kind>/`."""
        known = {*self._entries, *self._dropped}
        return {name.removeprefix(f"{kind}/") for name in known if name.startswith(f"{kind}/")}

    def executions(self) -> dict[str, Position]:
        """The last steps of the executions that others followed, by id."""
        found: dict[str, Position] = {}
        for name in ("execution", "committed"):
            for entry in self._entries.get(name, ()):
                found[from_json(entry.value)["execution_id"]] = entry.until
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPast:
    """The stored data of which the state at a step is made.

    Attributes:
        head: The present state without its lists, and how long these are.
        position: The last committed step of the present state.
        is_committed: The present state is as that step has committed it.
        old: The old values.
        records: The committed steps of the execution that is asked for, as entries; all that there are.
        record: Reads the record of a step of it, from 1.
        asked: What the last step has asked the model, as JSON; empty where it is not known.
        messages: Reads the first messages of a section, as entries, at the generation that it has now.
        items: Reads the first items of a list of a part, as entries, at the generation that it has now.
        unpack: The JSON of an entry of these.
    """

    head: Head
    position: Position
    is_committed: bool
    old: OldValues
    records: Sequence[bytes]
    record: Callable[[int], StepExecution]
    asked: bytes
    messages: Callable[[str, int], Sequence[bytes]]
    items: Callable[[str, int], Sequence[bytes]]
    unpack: Callable[[bytes], bytes]

    def section(self, name: str, extent: Extent, at: Position) -> Sequence[bytes]:
        """The first messages of a section as it was at a step, as entries.

        Raises:
            NotKept: It was replaced since, and its messages are not kept.
        """
        generation, length = extent
        present = self.head.state.store.sections.get(name)
        if present is not None and present.generation == generation:
            return self.messages(name, length)
        kept = f"messages/{name}/{generation}"
        found = self.old.first(kept, at)
        if found is None:
            raise NotKept(kept, at.step)
        return [Message.from_dict(each).to_json() for each in from_json(found.value)[:length]]

    def execution(self, at: Position) -> ExecutionState:
        """The execution of a step as it was last: the present one, or as it was when another one followed it.

        Raises:
            NotKept: It is not kept.
        """
        present = self.head.state.execution
        if present is not None and at.execution == self.position.execution:
            return present
        return ExecutionState.from_json(self.last_entry(at)[1].value)

    def last_entry(self, at: Position) -> tuple[str, Entry]:
        """The old value of the execution of a step, which another one has followed, and its name."""
        for name in ("committed", "execution"):
            found = self.old.first(name, at)
            if found is not None and found.until.execution == at.execution:
                return name, found
        raise NotKept("execution", at.step)


def past_parts(stored: StoredPast, at: Position) -> StateParts:
    """The parts of the state exactly as a step has committed it.

    Raises:
        NotKept: A value of that time is not kept any more.
        StateUnreadable: A part of what is stored is damaged.
    """
    return _Reading(stored, at).parts()


class _Reading:
    """One reading of the state at a step."""

    def __init__(self, stored: StoredPast, at: Position) -> None:
        self._stored, self._old, self._at = stored, stored.old, at
        self._present = stored.head.state
        self._sections: dict[str, Sequence[bytes]] = {}
        self._lists: dict[str, Sequence[bytes]] = {}

    def parts(self) -> StateParts:
        """Look up every value; of the records only those are parsed that a value follows from."""
        data = self._fields()
        lengths, lists = self._read_sections(), self._read_lists()
        data["context"]["store"]["sections"] = {name: {"generation": extent[0]} for name, extent in lengths.items()}
        data["execution"] = self._execution()
        values = self._mapping("part", _values(self._present.parts))
        data["parts"] = _parts(values, {name: g for name, g in lists.items() if not _is_own(name)})
        own = {name.removesuffix(_OF_EXECUTION): g for name, g in lists.items() if _is_own(name)}
        data["execution"]["parts"] = _parts(data["execution"]["parts"], own)
        head = Head(
            state=AgentState.from_dict(data),
            lengths=FrozenMap[int].of({name: extent[1] for name, extent in lengths.items()}),
            steps=self._at.step,
            lists=FrozenMap[int].of({name: len(items) for name, items in self._lists.items()}),
        )
        return StateParts(head, self._sections, self._steps(), lists=self._lists)

    def _fields(self) -> dict[str, Any]:
        """The fields of the state and of its context."""
        data = self._present.to_dict()
        for name in STATE_FIELDS:
            data[name] = self._value(name, data[name])
        context = data["context"]
        for name in CONTEXT_FIELDS:
            context[name] = self._value(name, context[name])
        context["metadata"] = self._mapping("metadata", context["metadata"])
        updated = self._old.exact("updated_at", self._at)
        if updated is not None:
            data["updated_at"] = from_json(updated.value)
        elif not self._is_present:
            data["updated_at"] = _as_json(self._stored.record(self._at.step).completed_at)
        return data

    @property
    def _is_present(self) -> bool:
        """Whether the present state is what is asked for."""
        return self._stored.is_committed and self._at == self._stored.position

    def _value(self, name: str, present: Any) -> Any:
        found = self._old.first(name, self._at)
        return present if found is None else from_json(found.value)

    def _mapping(self, kind: str, present: Mapping[str, Any], *, in_execution: bool = False) -> dict[str, Any]:
        """The values of one kind; those of an execution only up to its last step."""
        values: dict[str, Any] = dict(present)
        for name in self._old.names(kind):
            found = self._old.first(f"{kind}/{name}", self._at)
            if found is None or (in_execution and found.until.execution != self._at.execution):
                continue
            if found.value:
                values[name] = from_json(found.value)
            else:
                values.pop(name, None)
        return values

    # --- the execution ----------------------------------------------------------------------------------------

    def _execution(self) -> dict[str, Any]:
        """The execution without its steps and its lists."""
        known, (last, is_committed) = self._stored.execution(self._at), self._known_at()
        data = known.to_dict()
        if not is_committed or last != self._at:
            data |= self._execution_fields(known, last)
        data["parts"] = self._mapping("xpart", _values(known.parts), in_execution=True)
        return data

    def _execution_fields(self, known: ExecutionState, last: Position) -> dict[str, Any]:
        """The fields of the execution that differ, or may differ, from those at its last known step."""
        last_record = self._stored.record(self._at.step)
        usual = {name: _as_json(value) for name, value in committed_fields(self._at.step, last_record).items()}
        found = {name: self._old.exact(f"execution.{name}", self._at) for name in usual}
        others = set(EXECUTION_FIELDS) - set(usual) - {"usage", "cost"}
        found |= {name: self._within(f"execution.{name}") for name in others}
        return {
            **usual,
            **{name: from_json(entry.value) for name, entry in found.items() if entry is not None},
            "usage": _as_json(self._back(known.usage, last, "usage", InferenceUsage.from_dict, usage_before)),
            "cost": self._back(known.cost, last, "cost", _same, cost_before),
        }

    def _known_at(self) -> tuple[Position, bool]:
        """The step at which the execution was last, and whether it is as that step has committed it."""
        if self._at.execution == self._stored.position.execution:
            return self._stored.position, self._stored.is_committed
        name, entry = self._stored.last_entry(self._at)
        return entry.until, name == "committed"

    def _within(self, name: str) -> Entry | None:
        """An old value of this execution."""
        found = self._old.first(name, self._at)
        return found if found is not None and found.until.execution == self._at.execution else None

    def _back(
        self,
        value: Any,
        last: Position,
        name: str,
        read: Callable[[Any], Any],
        before: Callable[[Any, StepExecution], Any],
    ) -> Any:
        """Take the steps behind this one out of a sum."""
        found = self._within(f"execution.{name}")
        if found is not None:
            value, last = read(from_json(found.value)), found.until
        for number in range(last.step, self._at.step, -1):
            value = before(value, self._stored.record(number))
        return value

    def _steps(self) -> Sequence[bytes | StepExecution]:
        """The records, with the places of their messages where these have moved since."""
        outputs = self._within("outputs")
        if outputs is None:
            return self._stored.records[: self._at.step]
        spans = [tuple(Span(*span) for span in each) for each in from_json(outputs.value)]
        records = [self._stored.record(number) for number in range(1, self._at.step + 1)]
        return [
            each.with_step(each.step.with_outputs(each.step.output_messages, place)) if place else each
            for each, place in zip(records, spans, strict=False)
        ]

    # --- lists ------------------------------------------------------------------------------------------------

    def _read_sections(self) -> dict[str, Extent]:
        """The sections of that time: reads their messages, and gives generation and length of each."""
        extents = {name: extent for name in self._section_names() if (extent := self._extent(name)) is not None}
        for name, extent in extents.items():
            self._sections[name] = self._stored.section(name, extent, self._at)
        return extents

    def _section_names(self) -> list[str]:
        return list(dict.fromkeys((*self._present.store.sections, *sorted(self._old.names("section")))))

    def _extent(self, name: str) -> Extent | None:
        """Generation and length of a section; None: there was none."""
        found = self._old.exact(f"section/{name}", self._at)
        if found is not None:
            return Extent(*from_json(found.value)) if found.value else None
        if self._at.step < len(self._stored.records):
            return self._stored.record(self._at.step + 1).step.inputs.get(name)
        if self._at.execution != self._stored.position.execution:  # all that there were are kept at its end
            return None
        section = self._present.store.sections.get(name)
        return None if section is None else Extent(section.generation, self._stored.head.lengths[name])

    def _read_lists(self) -> dict[str, int]:
        """The lists of parts of that time: reads their items, and gives the generation of each."""
        present = self._present.part_lists
        generations: dict[str, int] = {}
        for name in dict.fromkeys((*present, *sorted(self._old.names("list")))):
            found = self._old.first(f"list/{name}", self._at)
            if (found is None and name not in present) or (found is not None and not found.value):
                continue
            count = self._stored.head.lists.get(name, 0)
            generation, length = from_json(found.value) if found is not None else (present[name].generation, count)
            generations[name] = generation
            self._lists[name] = self._items(name, generation, length)
        return generations

    def _items(self, name: str, generation: int, length: int) -> Sequence[bytes]:
        kept = f"items/{name}/{generation}"
        found = self._old.first(kept, self._at)
        if found is not None and (not _is_own(name) or found.until.execution == self._at.execution):
            return tuple(each.encode() for each in from_json(found.value)[:length])
        present = self._present.part_lists.get(name)
        if present is None or present.generation != generation:
            raise NotKept(kept, self._at.step)
        return self._stored.items(name, length)


def _parts(values: Mapping[str, Any], lists: Mapping[str, int]) -> dict[str, Any] | None:
    """Parts as JSON, with empty lists; None without any."""
    if not values and not lists:
        return None
    return {"values": values, "lists": {name: {"generation": generation} for name, generation in lists.items()}}


def _values(parts: StoredParts | None) -> dict[str, Any]:
    return {} if parts is None else dict(parts.to_dict()["values"])


def _is_own(name: str) -> bool:
    return name.endswith(_OF_EXECUTION)


def _as_json(value: Any) -> Any:
    return from_json(to_json(value))


def _same(value: Any) -> Any:
    return value
