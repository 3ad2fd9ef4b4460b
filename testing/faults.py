"""Faults of a simulated run, and their choice by a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ..worker import crash_points

MESSAGE: Final = "message"
"""The point at which a worker receives a message."""

_CRASH_POINTS: Final = {**crash_points.POINTS, **crash_points.WAITING_POINTS, **crash_points.CHILD_POINTS}
_TRIPS: Final = ("before ", "after ")
_PAUSES_SECONDS: Final = (2.0, 8.0, 14.0, 30.0)


class FaultKind(StrEnum):
    """Kinds of faults."""

    KILL = "kill"
    """The worker dies, as after kill -9."""

    PAUSE = "pause"
    """The worker stops for a time, maybe past its lease, while other workers run; then it continues."""

    REFUSE = "refuse"
    """Redis does not receive the command."""

    LOSE_REPLY = "lose_reply"
    """Redis runs the command, and its reply is lost."""

    LOSE_MESSAGE = "lose_message"
    """The message is lost."""

    DOUBLE_MESSAGE = "double_message"
    """The message is delivered twice."""


def kinds_at(point: str) -> tuple[FaultKind, ...]:
    """List the kinds of faults that are possible at a point."""
    if point == MESSAGE:
        return (FaultKind.LOSE_MESSAGE, FaultKind.DOUBLE_MESSAGE)
    if point.startswith("before "):
        return (FaultKind.KILL, FaultKind.PAUSE, FaultKind.REFUSE)
    if point.startswith("after "):
        return (FaultKind.KILL, FaultKind.PAUSE, FaultKind.LOSE_REPLY)
    return (FaultKind.KILL, FaultKind.PAUSE)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: it strikes when any worker passes a point for the n-th time in a run.

    Attributes:
        point: `c0` to `c9`, `w0` to `w5` of a job that waits (see `crash_points`), `before …` or `after …` with the
            name of a round trip to the
            store, or `message`.
        nth: Counted from 1.
        seconds: Length of a pause; 0 for other kinds.
    """

    kind: FaultKind
    point: str
    nth: int = 1
    seconds: float = 0.0

    def __post_init__(self) -> None:
        known = self.point in _CRASH_POINTS or self.point == MESSAGE or self.point.startswith(_TRIPS)
        if not known or self.nth < 1:
            raise ValueError(
                f"Fault(point={self.point!r}, nth={self.nth}): a point is one of {', '.join(_CRASH_POINTS)}, "
                f"{MESSAGE!r}, 'before <round trip>' or 'after <round trip>', counted from 1"
            )
        if self.kind not in kinds_at(self.point):
            raise ValueError(f"{self.kind} cannot happen at {self.point!r}, only {', '.join(kinds_at(self.point))}")

    def __str__(self) -> str:
        long = f" for {self.seconds:g} s" if self.seconds else ""
        meaning = _CRASH_POINTS.get(self.point)
        return f"{self.kind}{long} at {self.point} #{self.nth}" + (f" ({meaning})" if meaning else "")


@dataclass(frozen=True)
class CrashPlan:
    """Faults of a run: the same for the same seed and the same agent.

    The first fault kills a worker at a crash point. Consecutive seeds take the crash points of the run in turn. Further
    faults are chosen at random among all points that the undisturbed run passes.

    Attributes:
        seed: From 0.
        most: Most faults of one run, from 1 to 4, so that no step fails as poison.
        exactly: Exactly these faults; the seed is not used.
    """

    seed: int = 0
    most: int = 3
    exactly: tuple[Fault, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.seed < 0 or not 1 <= self.most <= 4:
            raise ValueError(f"CrashPlan(seed={self.seed}, most={self.most}): give a seed from 0 and most from 1 to 4")

    @classmethod
    def of(cls, *faults: Fault) -> CrashPlan:
        """Plan exactly these faults: `CrashPlan.of(Fault(FaultKind.KILL, "c5"))`."""
        return cls(exactly=faults)

    def faults(self, passed: Sequence[str]) -> tuple[Fault, ...]:
        """Choose the faults for an agent whose undisturbed run passes these points in this order."""
        if self.exactly or not passed:
            return self.exactly
        places = _number_points(passed)
        rng = random.Random(self.seed)
        first = [place for place in places if place[0] in _CRASH_POINTS] or places
        chosen = {first[self.seed % len(first)]: FaultKind.KILL}
        for _ in range(rng.randrange(self.most)):
            place = rng.choice(places)
            chosen.setdefault(place, _choose_kind(rng, place[0]))
        return tuple(_make_fault(rng, kind, *place) for place, kind in chosen.items())


def _number_points(passed: Sequence[str]) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    places: list[tuple[str, int]] = []
    for point in passed:
        counts[point] = counts.get(point, 0) + 1
        places.append((point, counts[point]))
    return places


def _choose_kind(rng: random.Random, point: str) -> FaultKind:
    return rng.choice(kinds_at(point))


def _make_fault(rng: random.Random, kind: FaultKind, point: str, nth: int) -> Fault:
    seconds = rng.choice(_PAUSES_SECONDS) if kind is FaultKind.PAUSE else 0.0
    return Fault(kind=kind, point=point, nth=nth, seconds=seconds)
