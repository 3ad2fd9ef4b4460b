"""Reading and changing the parts of the state that capabilities own."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Self

from .agent_context import AgentWithContext
from .agent_fields import schema_version_of
from .execution.execution import ExecutionState
from .parts.state_part import PartScope, check_part_name
from .parts.storage import NO_PARTS, AnyPart, Part, PartList, StoredParts
from .values.field_types import utcnow
from .values.frozen import FrozenMap

_NO_LISTS: Mapping[str, PartList] = FrozenMap[PartList]()


class AgentWithParts(AgentWithContext):
    """The parts of `AgentState`. Those of scope execution stand in the execution and end with it."""

    def part(self, kind: type[Part]) -> Part:
        """The part of this kind, or its default where the state holds none.

        Raises:
            StateUnreadable: The value stored under its name does not fit the class.
        """
        found = self._stored_parts(kind.scope).part(kind)
        return kind() if found is None else found

    def has_part(self, kind: type[AnyPart]) -> bool:
        """Whether the state holds a part of this kind."""
        return check_part_name(kind) in self._stored_parts(kind.scope)

    def with_part(self, part: AnyPart, *, now: datetime | None = None) -> Self:
        """The part in place of the former one of its kind; of a list, only items that are new are written.

        A part of scope execution begins the next execution where there is none.
        """
        return self._with_stored_parts(type(part), self._stored_parts(part.scope).with_part(part), now)

    def without_part(self, kind: type[AnyPart], *, now: datetime | None = None) -> Self:
        """The part removed, so that its default is read; unchanged where the state holds none."""
        if not self.has_part(kind):
            return self
        return self._with_stored_parts(kind, self._stored_parts(kind.scope).without(kind.part_name), now)

    @property
    def part_lists(self) -> Mapping[str, PartList]:
        """Every list of every capability by the name it is stored under: an execution's list is `<name>.x`."""
        parts, execution = self.parts, self.execution
        if parts is None and (execution is None or execution.parts is None):
            return _NO_LISTS
        lists: dict[str, PartList] = dict(parts.lists) if parts is not None else {}
        if execution is not None and execution.parts is not None:
            lists.update({f"{name}{_OF_EXECUTION}": each for name, each in execution.parts.lists.items()})
        return lists

    def with_part_lists(self, lists: Mapping[str, PartList]) -> Self:
        """The state with exactly these lists, named as by `part_lists`, as a store reads them back."""
        if not lists:
            return self
        execution, parts = self.execution, self.parts
        if parts is not None:
            parts = parts.with_lists({n: each for n, each in lists.items() if not n.endswith(_OF_EXECUTION)})
        if execution is not None and execution.parts is not None:
            own = {n.removesuffix(_OF_EXECUTION): each for n, each in lists.items() if n.endswith(_OF_EXECUTION)}
            execution = execution.with_parts(execution.parts.with_lists(own))
        return self._with(parts=parts, execution=execution)

    def _stored_parts(self, scope: PartScope) -> StoredParts:
        if scope is PartScope.SESSION:
            return self.parts or NO_PARTS
        return (self.execution.parts if self.execution is not None else None) or NO_PARTS

    def _with_stored_parts(self, kind: type[AnyPart], parts: StoredParts, now: datetime | None) -> Self:
        changed: dict[str, Any] = {}
        stored = parts if parts.values or parts.lists else None
        moment = now or utcnow()
        if kind.scope is PartScope.SESSION:
            changed["parts"] = stored
        else:
            execution = self.execution or ExecutionState(number=self.execution_count + 1, created_at=moment)
            changed["execution"] = execution.with_parts(stored)
        after = self._change(moment, **changed)
        return after._with(schema_version=schema_version_of(after.parts, after.execution))


_OF_EXECUTION = ".x"
