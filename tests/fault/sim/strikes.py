"""Strikes: things that happen before or behind chosen round trips of one process, in every choice of one or two."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from celery_agents.worker.store.memory.database import MemoryDatabase

from support.store import SpyDatabase

Strike = tuple[int, bool, str]
"""The number of a round trip, from 0; whether behind it; the name of what happens."""


class Killed(BaseException):
    """The process is gone at this moment."""


class StrikingDatabase(SpyDatabase):
    """Does something before or behind the round trips with certain numbers."""

    def __init__(self, inner: MemoryDatabase) -> None:
        super().__init__(inner)
        self.strikes: dict[tuple[int, bool], Callable[[], object]] = {}

    def begin(self, strikes: Sequence[Strike], act: Callable[[str], object]) -> None:
        """Count from here, and let these things happen. While one of them does, nothing else strikes."""
        self.sent.clear()
        self.strikes = {(trip, behind): lambda name=name: self._act(act, name) for trip, behind, name in strikes}

    def _act(self, act: Callable[[str], object], name: str) -> None:
        strikes, self.strikes = self.strikes, {}
        try:
            act(name)
        finally:
            self.strikes = strikes

    def _note(self, point: str, commands: Any) -> None:
        super()._note(point, commands)
        self.strikes.get((len(self.sent) - 1, False), lambda: None)()

    def _heard(self, point: str, replies: Any) -> Any:
        self.strikes.get((len(self.sent) - 1, True), lambda: None)()
        return super()._heard(point, replies)


def choices(trips: int, acts: Sequence[str], every: int = 1) -> Iterator[Sequence[Strike]]:
    """Nothing; every choice of one thing at any of these round trips; and of two at different places.

    Args:
        every: Of the choices of two, give one in so many.
    """
    places = [(trip, behind, act) for trip in range(trips + 1) for behind in (False, True) for act in acts]
    pairs = (pair for pair in itertools.combinations(places, 2) if pair[0][:2] != pair[1][:2])
    return itertools.chain(((),), zip(places), itertools.islice(pairs, 0, None, every))


class Playable(Protocol):
    """A world in which a process is struck.

    Attributes:
        violations: What must not have happened.
    """

    violations: list[str]

    def play(self, strikes: Sequence[Strike]) -> int:
        """Let the process work while these things happen, and judge; how many round trips it has made."""
        ...


def explore_worlds(
    make: Callable[[], Playable], acts: Sequence[str], every: int = 1
) -> Iterator[tuple[Sequence[Strike], list[str]]]:
    """Play every choice of one thing at any round trip, and of two, and give the violations of each.

    Args:
        every: Of the choices of two, play one in so many.
    """
    for strikes in choices(make().play(()), acts, every):
        world = make()
        world.play(strikes)
        yield strikes, world.violations
