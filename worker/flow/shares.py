"""Fair shares: whose step begins next while more wait than there are slots.

Each value of a label, such as each customer, has a share of the slots by its weight, counted in the time for which its
steps have slots. Within a share, the steps of interactive sessions go before others more often than not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, get_args

from ..errors import InvalidInput
from ..state.values.field_types import Amount, Count, FrozenMapField, Text, is_number
from ..state.values.frozen import FrozenMap
from ..state.values.value import Value, skip_when_reading
from .names import check_name

Priority = Literal["interactive", "normal", "bulk"]
PRIORITIES: Final = get_args(Priority)
FIELD: Final = "shares:"
"""The name of the fair shares among the stored values of flow."""
_MOST_WEIGHTS: Final = 1_000
_WEIGHTS: Final = (0.01, 1_000.0)


class FairShares(Value):
    """How the slots of the fleet are shared among the values of a label while more steps wait than there are slots.

    A value gets slot time in proportion to its weight, whatever the number and the length of its steps. What it does
    not use goes to the others, and is no credit for later.

    Attributes:
        label: Key of the label, such as `customer`. Sessions without it have one share together.
        weights: Of values that have another one than 1; "" is that of sessions without the label.
        by: Who has set it; "" while it is not set.
        since_ms: When it was set (Redis ms).
    """

    label: Text
    weights: FrozenMapField[Amount] = FrozenMap[float]()
    by: Text = ""
    since_ms: Count = 0

    @skip_when_reading
    def __init__(self, label: str, *, weights: Mapping[str, float] | None = None) -> None:
        """Raises `InvalidInput`, which names the field, for a value that cannot be used."""
        check_name("FairShares.label", label, "give the key of a label, such as customer")
        given: Mapping[str, Any] = weights or {}
        if len(given) > _MOST_WEIGHTS:
            raise InvalidInput("FairShares.weights", len(given), f"give at most {_MOST_WEIGHTS}.")
        least, most = _WEIGHTS
        for value, weight in given.items():
            place = f"FairShares.weights[{value!r}]"
            check_name(place, value, "name a value of the label", may_be_empty=True)
            if not is_number(weight) or not least <= weight <= most:
                raise InvalidInput(place, weight, f"give a number from {least:g} to {most:g}; pause what is to wait.")
        super().__init__(label=label, weights=FrozenMap[float].of({key: float(each) for key, each in given.items()}))

    @property
    def field(self) -> str:
        """Its name among the stored values of flow."""
        return FIELD

    def set_by(self, by: str, since_ms: int) -> Self:
        """The shares as they are stored."""
        return self._with(by=by, since_ms=since_ms)

    def lane_for(self, labels: Mapping[str, str], priority: str = "normal") -> str:
        """The lane of a session with these labels."""
        return lane_of(labels.get(self.label, ""), priority)


@dataclass(frozen=True, slots=True)
class ShareStatus:
    """A share of which steps wait.

    Attributes:
        share: The value of the label; "" are the sessions without it.
        waiting: Steps that wait in the queues, by the priority of their sessions; those without any are left out.
    """

    share: str
    weight: float
    waiting: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SharesStatus:
    """The fair shares as people see them.

    Attributes:
        shares: None: none are set.
        waiting: The shares of which steps wait, those with most first, up to 100.
    """

    shares: FairShares | None
    waiting: tuple[ShareStatus, ...] = ()


def check_priority(priority: object) -> None:
    """Raise `InvalidInput` for what is no priority."""
    if priority not in PRIORITIES:
        raise InvalidInput("priority", priority, f"give one of {', '.join(PRIORITIES)}.")


def lane_of(share: str, priority: str = "normal") -> str:
    """The lane in which steps of a share wait, by the priority of their sessions; a queue has a list for each."""
    return f"{PRIORITIES.index(priority)}/{share}"


def share_of(lane: str) -> str:
    """The share of a lane."""
    return lane.partition("/")[2]


def moved_lane(lane: str, share: str) -> str:
    """The lane of the same priority in another share."""
    priority = lane.partition("/")[0]
    return f"{priority}/{share}" if priority else lane_of(share)
