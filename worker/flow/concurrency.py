"""Concurrency limits: how many steps or calls may run at a time, in all and for each value of a label."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, cast

from ..errors import ConfigurationError, InvalidInput
from ..state.values.field_types import Count, FrozenMapField, Text
from ..state.values.frozen import FrozenMap
from ..state.values.value import Value, skip_when_reading
from .names import check_name

_FIELD: Final = "concurrency:"
_UNDEFINED: Final = "undefined:"
_MOST_LABELS: Final = 4
_MOST: Final = 1_000_000


class ConcurrencyLimit(Value):
    """How many steps of the agents that name it, and calls of the tools that name it, run at a time in the whole fleet.

    A limit of 0 lets none begin until it is raised or removed: sessions wait, without an attempt.

    Attributes:
        name: As in `Agent(concurrency=…)` and `@tool(concurrency=…)`.
        total: Most at a time. None: no limit in all.
        per: Most at a time for each value of a label, by the label's key. A session without the label is limited by
            `total` alone; a child without it has the label of the session at the root of its tree.
        by: Who has set it; "" while it is not set.
        since_ms: When it was set (Redis ms).
    """

    name: Text
    total: Count | None = None
    per: FrozenMapField[Count] = FrozenMap[int]()
    by: Text = ""
    since_ms: Count = 0

    @skip_when_reading
    def __init__(self, name: str, *, total: int | None = None, per: Mapping[str, int] | None = None) -> None:
        """Raises `InvalidInput`, which names the field, for a value that is no limit or when there is none."""
        check_limit_name("ConcurrencyLimit.name", name)
        limits: dict[str, Any] = {"total": total, **{f"per[{key!r}]": most for key, most in (per or {}).items()}}
        for place, most in limits.items():
            if most is not None and (isinstance(most, bool) or not isinstance(most, int) or not 0 <= most <= _MOST):
                raise InvalidInput(f"ConcurrencyLimit.{place}", most, f"give a whole number from 0 to {_MOST}.")
        if total is None and not per:
            raise InvalidInput("ConcurrencyLimit", None, "set total, per or both.")
        if per and len(per) > _MOST_LABELS:
            raise InvalidInput("ConcurrencyLimit.per", sorted(per), f"name at most {_MOST_LABELS} labels.")
        for key in per or {}:
            check_name("ConcurrencyLimit.per", key, "give the key of a label")
        super().__init__(name=name, total=total, per=FrozenMap[int].of(per or {}))

    @property
    def field(self) -> str:
        """Its name among the stored values of flow."""
        return concurrency_field(self.name)

    def set_by(self, by: str, since_ms: int) -> Self:
        """The limit as it is stored."""
        return self._with(by=by, since_ms=since_ms)

    def most_of(self, part: LimitPart) -> int | None:
        """The most at a time in one of its parts; None: no limit."""
        return self.per.get(part.label) if part.label else self.total

    def parts_for(self, labels: Mapping[str, str]) -> Iterator[LimitPart]:
        """The parts that count a session with these labels: those of its labels, then the total, limited or not."""
        for key in sorted(self.per.keys() & labels.keys()):
            yield LimitPart(self.name, key, labels[key])
        yield LimitPart(self.name)


@dataclass(frozen=True, slots=True, order=True)
class LimitPart:
    """A part of a concurrency limit: all that it limits, or the sessions with one value of a label.

    Attributes:
        label: Key of the label; "": the total.
    """

    name: str
    label: str = ""
    value: str = ""

    @classmethod
    def parse(cls, text: str) -> LimitPart:
        """Read the text that `str` gives."""
        name, _, pair = text.partition("|")
        label, _, value = pair.partition("=")
        return cls(name, label, value)

    def __str__(self) -> str:
        return f"{self.name}|{self.label}={self.value}" if self.label else self.name

    @property
    def words(self) -> str:
        """It for people: "crm", or "crm for customer=acme"."""
        return f"{self.name} for {self.label}={self.value}" if self.label else self.name

    @property
    def cause(self) -> str:
        """The value by which a step is put off that waits for it."""
        return concurrency_field(str(self))


@dataclass(frozen=True, slots=True)
class PartStatus:
    """A part of a concurrency limit as people see it.

    Attributes:
        name: "" is the total; else the label with its value, such as `customer=acme`.
        held: Steps and calls that run.
        waiting: Sessions that wait.
    """

    name: str
    held: int
    waiting: int


@dataclass(frozen=True, slots=True)
class ConcurrencyStatus:
    """A concurrency limit as people see it.

    Attributes:
        parts: The total, where it is limited, and the values of labels for which somebody waits, up to 100.
    """

    limit: ConcurrencyLimit
    parts: tuple[PartStatus, ...] = ()


def concurrency_field(name: str) -> str:
    """The name of a limit among the stored values of flow; it also begins what its parts put off."""
    return _FIELD + name


def undefined_cause(name: str) -> str:
    """The value by which a step is put off whose limit nobody has defined."""
    return _UNDEFINED + name


def part_of(put_off: str) -> LimitPart | None:
    """The part by which a step was put off; None: by something else."""
    return LimitPart.parse(put_off.removeprefix(_FIELD)) if put_off.startswith(_FIELD) else None


def is_concurrency(put_off: str) -> bool:
    """Whether a concurrency limit puts a step off, or the want of one that its agent names."""
    return put_off.startswith((_FIELD, _UNDEFINED))


def limits_of_tool(tool: object) -> tuple[str, ...]:
    """The names of the concurrency limits of a tool; none where its kind knows none."""
    return getattr(tool, "concurrency", ())


def read_limit_names(place: str, given: object) -> tuple[str, ...]:
    """Read the names of limits as agents and tools give them: one, or several.

    Raises:
        ConfigurationError: They are no names, or one is given twice.
    """
    is_several = isinstance(given, Iterable) and not isinstance(given, str)
    names: tuple[Any, ...] = (
        (given,) if isinstance(given, str) else tuple(cast("Iterable[Any]", given)) if is_several else ()
    )
    try:
        for name in names:
            check_limit_name("name", name)
    except InvalidInput as error:
        raise ConfigurationError(f"{place}={given!r:.80}: {error}") from None
    if not isinstance(given, Iterable) or len(set(names)) < len(names):
        raise ConfigurationError(f"{place}={given!r:.80}: give the name of a limit, or a list of different ones")
    return names


def check_limit_name(place: str, name: object) -> None:
    """Check the name of a concurrency limit.

    Raises:
        InvalidInput: It is none.
    """
    check_name(place, name, "give the name of a limit, such as crm")
