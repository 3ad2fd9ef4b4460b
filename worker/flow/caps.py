"""Spend caps: how much may be spent on models within an hour, a day or a month."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from math import ceil
from typing import Any, Final, Literal, Self, get_args

from ..errors import InvalidInput
from ..moments import moment, unix_ms
from ..state.values.field_types import Amount, Count, FrozenMapField, Text, is_number
from ..state.values.frozen import FrozenMap
from ..state.values.value import Value, skip_when_reading
from .names import check_name
from .zones import read_zone

CapPeriod = Literal["hour", "day", "month"]
CapAction = Literal["wait", "stop"]
NANOS: Final = 1_000_000_000
"""Money is counted in billionths of a US dollar, so that no sum of small costs is rounded away."""
_FIELD: Final = "cap:"
_MOST_USD: Final = 1_000_000
_MOST_VALUES: Final = 1_000
_LARGEST_USD: Final = 1_000_000_000


class SpendCap(Value):
    """How much executions may spend on models in each hour, day or month, by the clock of a time zone.

    Each model call reserves what it may cost before it is made, and is settled by what it has cost. A call that would
    go beyond the cap does not begin. What is in flight is finished, so a cap can be passed by what the calls in flight
    cost more than they have reserved.

    Attributes:
        name: Of the cap; another one of this name takes its place.
        usd: US dollars in each period. 0 lets no paid call begin. None: only `values` are capped.
        per: A period begins with the full hour, at midnight, or with the month.
        zone: A name of the time zone database; UTC counts on a machine that does not know it.
        agent: Only executions of this agent. "": of all.
        label: Key of a label: each of its values has the amount for itself. A session without the label is not capped;
            a child without it has the label of the session at the root of its tree. "": all spend together.
        values: With a label: amounts of its values that have another one.
        then: "wait": the step is put off until the next period; "stop": the execution is stopped, as by its budget.
        by: Who has set it; "" while it is not set.
        since_ms: When it was set (Redis ms).
    """

    name: Text
    usd: Amount | None = None
    per: CapPeriod
    zone: Text = "UTC"
    agent: Text = ""
    label: Text = ""
    values: FrozenMapField[Amount] = FrozenMap[float]()
    then: CapAction = "wait"
    by: Text = ""
    since_ms: Count = 0

    @skip_when_reading
    def __init__(
        self,
        name: str,
        *,
        usd: float | None = None,
        per: CapPeriod,
        zone: str = "UTC",
        agent: str = "",
        label: str = "",
        values: Mapping[str, float] | None = None,
        then: CapAction = "wait",
    ) -> None:
        """Raises `InvalidInput`, which names the field, for a value that cannot be used."""
        check_name("SpendCap.name", name, "give the name of a cap, such as customers")
        amounts: dict[str, Any] = {"usd": usd, **{f"values[{key!r}]": each for key, each in (values or {}).items()}}
        for place, amount in amounts.items():
            _check_amount(place, amount)
        if usd is None and not values:
            raise InvalidInput("SpendCap.usd", None, "give an amount, or values of a label with theirs.")
        if values and not label:
            named = ", ".join(sorted(values))
            raise InvalidInput("SpendCap.values", named, "they are values of a label: give its key as label.")
        if values and len(values) > _MOST_VALUES:
            raise InvalidInput("SpendCap.values", len(values), f"give at most {_MOST_VALUES}.")
        for field, choice, kind in (("per", per, CapPeriod), ("then", then, CapAction)):
            if choice not in get_args(kind):
                raise InvalidInput(f"SpendCap.{field}", choice, f"give one of {', '.join(get_args(kind))}.")
        check_name("SpendCap.agent", agent, "give the name of an agent", may_be_empty=True)
        check_name("SpendCap.label", label, "give the key of a label", may_be_empty=True)
        read_zone(zone, "SpendCap.zone")
        given = FrozenMap[float].of(values or {})
        super().__init__(
            name=name, usd=usd, per=per, zone=zone, agent=agent, label=label, values=given, then=then
        )  # fmt: skip

    @property
    def field(self) -> str:
        """Its name among the stored values of flow."""
        return cap_field(self.name)

    @property
    def cause(self) -> str:
        """The value by which a step is put off that waits for it, as it is set now."""
        return f"{self.field}|{hashlib.sha256(self.to_json()).hexdigest()[:12]}"

    def set_by(self, by: str, since_ms: int) -> Self:
        """The cap as it is stored."""
        return self._with(by=by, since_ms=since_ms)

    def amount_for(self, value: str) -> float | None:
        """US dollars for a value of the label, "" without one; None: it is not capped."""
        return self.values.get(value, self.usd)

    def part_for(self, agent: str, labels: Mapping[str, str], now_ms: int) -> CapPart | None:
        """The part that an execution spends from now; None: it is not capped by this."""
        value = labels.get(self.label, "") if self.label else ""
        amount = self.amount_for(value)
        if self.agent not in ("", agent) or (self.label and not value) or amount is None:
            return None
        return self._part(value, amount, now_ms)

    def part_to_settle(self, agent: str, labels: Mapping[str, str], now_ms: int) -> CapPart:
        """The part from which an execution may have spent, also where it is not capped by this any more."""
        return self.part_for(agent, labels, now_ms) or self._part("", _MOST_USD, now_ms)

    def _part(self, value: str, amount: float, now_ms: int) -> CapPart:
        begins, ends = period_of(self.per, self.zone, now_ms)
        return CapPart(self, value, nanos(amount), window=self.window_of(begins), ends_ms=ends)

    def window_of(self, begins: str) -> str:
        """The name of a period in the keys, by how `period_of` names its beginning."""
        return f"{self.per}:{begins}"


@dataclass(frozen=True, slots=True)
class CapPart:
    """The amount of a cap that one session spends from, in one period.

    Attributes:
        value: Of the cap's label; "" without one.
        most: Billionths of a US dollar in the period.
        window: Name of the period.
        ends_ms: When it ends (Redis ms).
    """

    cap: SpendCap
    value: str
    most: int
    window: str
    ends_ms: int

    @property
    def words(self) -> str:
        """It for people: "customers", or "customers for customer=acme"."""
        return f"{self.cap.name} for {self.cap.label}={self.value}" if self.value else self.cap.name


@dataclass(frozen=True, slots=True)
class CapSpending:
    """The money that was spent of a cap in the present period.

    Attributes:
        value: Of the label; "" without one.
        usd: What is spent and reserved.
        most: The amount; None: not capped any more.
    """

    value: str
    usd: float
    most: float | None

    @property
    def share(self) -> float:
        """The share of the amount that is spent; 1 where the amount is 0, 0 where there is none."""
        return 0.0 if self.most is None else self.usd / self.most if self.most else 1.0


@dataclass(frozen=True, slots=True)
class CapStatus:
    """A cap as people see it.

    Attributes:
        spent: Of the present period, those who have spent most first, up to 100.
        ends_ms: When the period ends (Redis ms).
    """

    cap: SpendCap
    spent: tuple[CapSpending, ...]
    ends_ms: int


def period_of(per: CapPeriod, zone: str, now_ms: int) -> tuple[str, int]:
    """The name of the period of a time, by the clock of a zone, and when it ends (both times Unix ms).

    Of a zone that this machine does not know, the periods are those of UTC: the cap holds all the same.
    """
    local = moment(now_ms).astimezone(_zone_or_utc(zone))
    if per == "hour":  # also of a clock that is half an hour apart, and in an hour that comes twice
        past = timedelta(minutes=local.minute, seconds=local.second, microseconds=local.microsecond)
        begins = local.astimezone(UTC) - past
        return begins.strftime("%Y-%m-%dT%H:%MZ"), unix_ms(begins + timedelta(hours=1))
    day = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    following = day.date() + timedelta(days=1)
    if per == "month":
        day = day.replace(day=1)
        following = (day.date() + timedelta(days=32)).replace(day=1)
    ends = datetime(following.year, following.month, following.day, tzinfo=day.tzinfo)
    return day.strftime("%Y-%m-%d" if per == "day" else "%Y-%m"), unix_ms(ends)


def _zone_or_utc(zone: str) -> tzinfo:
    try:
        return read_zone(zone)
    except InvalidInput:
        return UTC


def nanos(usd: float) -> int:
    """US dollars in billionths, rounded up: what costs something never counts nothing.

    More than a billion dollars count as that: a driver may name any cost.
    """
    return ceil(min(usd, _LARGEST_USD) * NANOS)


def cap_field(name: str) -> str:
    """The name of a cap among the stored values of flow."""
    return f"{_FIELD}{name}"


def is_cap(put_off: str) -> bool:
    """Whether what puts a step off is a spend cap."""
    return put_off.startswith(_FIELD)


def _check_amount(place: str, amount: Any) -> None:
    if amount is not None and not (is_number(amount) and 0 <= amount <= _MOST_USD):
        raise InvalidInput(f"SpendCap.{place}", amount, f"give US dollars from 0 to {_MOST_USD}.")
