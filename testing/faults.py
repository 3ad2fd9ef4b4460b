"""What goes wrong in a simulated run, and the seeded choice of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ..worker import crash_points

MESSAGE: Final = "message"
"""The place where a worker is about to receive a message."""

_TRIPS: Final = ("before ", "after ")
_PAUSES_SECONDS: Final = (2.0, 8.0, 14.0, 30.0)


class FaultKind(StrEnum):
    """The faults there are."""

    KILL = "kill"
    """The worker is gone, as after kill -9."""

    PAUSE = "pause"
    """The worker stands still, past its lease when that is long enough; others go on; then it wakes up."""

    REFUSE = "refuse"
    """Redis does not get what is sent."""

    LOSE_REPLY = "lose_reply"
    """Redis does what is asked, and its reply is lost."""

    LOSE_MESSAGE = "lose_message"
    """The message is lost."""

    DOUBLE_MESSAGE = "double_message"
    """The message comes twice."""


def kinds_at(point: str) -> tuple[FaultKind, ...]:
    """What can go wrong at a place."""
    if point == MESSAGE:
        return (FaultKind.LOSE_MESSAGE, FaultKind.DOUBLE_MESSAGE)
    if point.startswith("before "):
        return (FaultKind.KILL, FaultKind.PAUSE, FaultKind.REFUSE)
    if point.startswith("after "):
        return (FaultKind.KILL, FaultKind.PAUSE, FaultKind.LOSE_REPLY)
    return (FaultKind.KILL, FaultKind.PAUSE)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: when a place is passed for the n-th time in a run, by whatever worker.

    Attributes:
        point: `c0` to `c9` (see `crash_points.POINTS`), `before …` or `after …` with the name of a round trip to the
            store, or `message`.
        nth: From 1.
        seconds: Length of a pause; 0 for other kinds.
    """

    kind: FaultKind
    point: str
    nth: int = 1
    seconds: float = 0.0

    def __post_init__(self) -> None:
        known = self.point in crash_points.POINTS or self.point == MESSAGE or self.point.startswith(_TRIPS)
        if not known or self.nth < 1:
            raise ValueError(
                f"Fault(point={self.point!r}, nth={self.nth}): a place is one of {', '.join(crash_points.POINTS)}, "
                f"{MESSAGE!r}, 'before <round trip>' or 'after <round trip>', counted from 1"
            )
        if self.kind not in kinds_at(self.point):
            raise ValueError(f"{self.kind} cannot happen at {self.point!r}, only {', '.join(kinds_at(self.point))}")

    def __str__(self) -> str:
        long = f" for {self.seconds:g} s" if self.seconds else ""
        meaning = crash_points.POINTS.get(self.point)
        return f"{self.kind}{long} at {self.point} #{self.nth}" + (f" ({meaning})" if meaning else "")


@dataclass(frozen=True)
class CrashPlan:
    """Which faults a run meets: the same for the same seed and the same agent.

    The first kills a worker at a crash point; over as many seeds as a run passes crash points, at each of them once.
    Further ones are chosen freely among all places that the undisturbed run passes.

    Attributes:
        seed: From 0.
        most: Faults of one run; from 1 to 4, so that no step is given up as poison.
        exactly: These faults and no others; the seed then counts for nothing.
    """

    seed: int = 0
    most: int = 3
    exactly: tuple[Fault, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.seed < 0 or not 1 <= self.most <= 4:
            raise ValueError(f"CrashPlan(seed={self.seed}, most={self.most}): give a seed from 0 and most from 1 to 4")

    @classmethod
    def of(cls, *faults: Fault) -> CrashPlan:
        """These faults: `CrashPlan.of(Fault(FaultKind.KILL, "c5"))`."""
        return cls(exactly=faults)

    def faults(self, passed: Sequence[str]) -> tuple[Fault, ...]:
        """The faults for a run that, undisturbed, passes these places in this order."""
        if self.exactly or not passed:
            return self.exactly
        places = _numbered(passed)
        rng = random.Random(self.seed)
        first = [place for place in places if place[0] in crash_points.POINTS] or places
        chosen = {first[self.seed % len(first)]: FaultKind.KILL}
        for _ in range(rng.randrange(self.most)):
            place = rng.choice(places)
            chosen.setdefault(place, _kind(rng, place[0]))
        return tuple(_fault(rng, kind, *place) for place, kind in chosen.items())


def _numbered(passed: Sequence[str]) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    places: list[tuple[str, int]] = []
    for point in passed:
        counts[point] = counts.get(point, 0) + 1
        places.append((point, counts[point]))
    return places


def _kind(rng: random.Random, point: str) -> FaultKind:
    return rng.choice(kinds_at(point))


def _fault(rng: random.Random, kind: FaultKind, point: str, nth: int) -> Fault:
    return Fault(kind, point, nth, rng.choice(_PAUSES_SECONDS) if kind is FaultKind.PAUSE else 0.0)
