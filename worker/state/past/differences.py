"""Differences between two states, value by value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from pydantic_core import to_json

from ..agent_state import AgentState


class _Nothing:
    """Stands for a value that is not there; None is a value."""

    def __repr__(self) -> str:
        return "nothing"


NOTHING: Final = _Nothing()


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that two states have otherwise.

    Attributes:
        path: Names and places from the outside in, such as `("context", "metadata", "plan", 0)`.
        before, after: JSON values; `NOTHING` where a state has no such value.
    """

    path: tuple[str | int, ...]
    before: Any
    after: Any

    def to_dict(self) -> dict[str, Any]:
        """The difference as JSON: `before` and `after` are left out where there is nothing."""
        values = {"before": self.before, "after": self.after}
        return {"path": list(self.path), **{name: each for name, each in values.items() if each is not NOTHING}}


def find_differences(before: AgentState, after: AgentState) -> list[Difference]:
    """Compare two states; lists are compared place by place, since most of them only grow."""
    return list(_compare((), before.to_dict(), after.to_dict()))


def _compare(path: tuple[str | int, ...], before: object, after: object) -> Iterator[Difference]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        one, other = cast("Mapping[str, Any]", before), cast("Mapping[str, Any]", after)
        for name in dict.fromkeys((*one, *other)):
            yield from _compare((*path, name), one.get(name, NOTHING), other.get(name, NOTHING))
    elif isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)):
        items, others = cast("Sequence[Any]", before), cast("Sequence[Any]", after)
        for place in range(max(len(items), len(others))):
            at = items[place] if place < len(items) else NOTHING
            yield from _compare((*path, place), at, others[place] if place < len(others) else NOTHING)
    elif NOTHING in (before, after) or to_json(before) != to_json(after):  # 1 is not True
        yield Difference(path=path, before=cast("Any", before), after=cast("Any", after))
