"""Search every state that a model can reach, breadth first, so that the first violation found has a shortest trace.

A model is a set of rules over one immutable state. The search knows it as `Rules`; docs/model.md describes the
models that there are.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

S = TypeVar("S")
C = TypeVar("C")


@dataclass(frozen=True)
class Goal(Generic[S, C]):
    """What every state must be able to reach.

    Attributes:
        broken: The invariant that is broken when a state cannot.
        is_reached: Whether a state is there.
        is_used: Whether a move with this event may be relied on to get there.
    """

    broken: str
    is_reached: Callable[[S, C], bool]
    is_used: Callable[[str], bool]


@dataclass(frozen=True)
class Rules(Generic[S, C]):
    """A model.

    Attributes:
        initial: The first state.
        successors: Each next state, with the event and the actor that leads there.
        violations: The invariants that a state breaks.
        canonical: One of the states that differ only in which worker is which.
        goals: What every state must be able to reach.
        events: Each event in words.
        describe: A state in words.
        change_violations: The invariants that the way from one state to the next breaks.
    """

    initial: Callable[[C], S]
    successors: Callable[[S, C], Iterator[tuple[str, int, S]]]
    violations: Callable[[S, C], Iterator[str]]
    canonical: Callable[[S], S]
    goals: tuple[Goal[S, C], ...]
    events: Mapping[str, str]
    describe: Callable[[S], str]
    change_violations: Callable[[S, S], Iterator[str]] = lambda before, after: iter(())


@dataclass(frozen=True)
class Counterexample(Generic[S]):
    """A shortest way to a broken invariant."""

    broken: str
    steps: tuple[tuple[str, int, S], ...]
    text: str = field(repr=False)

    def __str__(self) -> str:
        return self.text


@dataclass
class Search(Generic[S, C]):
    """What one search saw."""

    config: C
    states: int = 0
    edges: int = 0
    seconds: float = 0.0
    events: set[str] = field(default_factory=set[str])
    counterexample: Counterexample[S] | None = None
    complete: bool = False

    def __str__(self) -> str:
        verdict = "broken" if self.counterexample else "holds" if self.complete else "not finished"
        return f"{verdict}: {self.states} states, {self.edges} moves, {self.seconds:.1f} s"


def search(rules: Rules[S, C], config: C, *, limit: int | None = None) -> Search[S, C]:
    """Visit every state that can be reached, or up to `limit` states; stop at the first broken invariant.

    The goals are looked at when nothing else is broken and everything was visited.
    """
    result = Search[S, C](config)
    started = time.perf_counter()
    canonical, violations = rules.canonical, rules.violations
    start = canonical(rules.initial(config))
    states, parents = [start], array("l", [-1])
    numbers = {start: 0}
    ways = [(array("l"), array("l")) for _ in rules.goals]
    used: dict[str, list[tuple[array[int], array[int]]]] = {}
    broken: tuple[str, list[S]] | None = None
    current = 0
    while current < len(states) and broken is None and (limit is None or len(states) < limit):
        state = states[current]
        for event, _, reached in rules.successors(state, config):
            if event not in used:
                used[event] = [way for way, goal in zip(ways, rules.goals, strict=True) if goal.is_used(event)]
            following = canonical(reached)
            number = numbers.get(following)
            if number is None:
                number = len(states)
                numbers[following] = number
                states.append(following)
                parents.append(current)
                name = next(violations(following, config), None)
                if name is not None:
                    broken = broken or (name, _way(states, parents, number))
            name = next(rules.change_violations(state, following), None)
            if name is not None:
                # Another way may have led to `following` first, and that one breaks nothing.
                broken = broken or (name, [*_way(states, parents, current), following])
            result.edges += 1
            for sources, targets in used[event]:
                sources.append(current)
                targets.append(number)
        current += 1
    result.events = set(used)
    result.complete = current == len(states)
    if broken is None and result.complete:
        hopeless = _unreachable_goal(rules, config, states, ways)
        broken = hopeless and (hopeless[0], _way(states, parents, hopeless[1]))
    result.states = len(states)
    if broken is not None:
        result.counterexample = _counterexample(rules, config, *broken)
    result.seconds = time.perf_counter() - started
    return result


def _unreachable_goal(
    rules: Rules[S, C], config: C, states: list[S], ways: list[tuple[array[int], array[int]]]
) -> tuple[str, int] | None:
    """The first goal that a state cannot reach, with that state's number."""
    for goal, (sources, targets) in zip(rules.goals, ways, strict=True):
        hopeful = bytearray(goal.is_reached(state, config) for state in states)
        changed = True
        while changed:
            changed = False
            # Most moves lead to a later number, so one pass from the end does nearly all.
            for source, target in zip(reversed(sources), reversed(targets), strict=True):
                if hopeful[target] and not hopeful[source]:
                    hopeful[source] = changed = True
        number = hopeful.find(0)
        if number >= 0:
            return goal.broken, number
    return None


def _way(states: list[S], parents: array[int], number: int) -> list[S]:
    way: list[S] = []
    while number > 0:
        way.append(states[number])
        number = parents[number]
    return way[::-1]


def _counterexample(rules: Rules[S, C], config: C, broken: str, way: list[S]) -> Counterexample[S]:
    """The way to a state, replayed with workers that keep their names."""
    state = rules.initial(config)
    steps: list[tuple[str, int, S]] = []
    lines = [f"{broken}, after {len(way)} moves:"]
    for number, wanted in enumerate(way, start=1):
        moves: Iterator[tuple[str, int, Any]] = rules.successors(state, config)
        event, who, state = next(move for move in moves if rules.canonical(move[2]) == wanted)
        steps.append((event, who, state))
        actor = f"worker {who}" if who else ""
        lines.append(f"{number:3} {actor:8} {rules.events.get(event, event)}")
        lines.append(f"             {rules.describe(state)}")
    return Counterexample(broken, tuple(steps), "\n".join(lines))
