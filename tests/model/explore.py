"""Search every interleaving of the model: `cd tests && python -m model.explore --help`.

Breadth first, so that the first violation found has a shortest trace. States that differ only in which worker is which
are one state.
"""

from __future__ import annotations

import argparse
import sys
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from .events import EVENTS
from .invariants import is_prefix, violations
from .protocol_model import successors
from .values import Config, Effect, State, canonical, finished, initial

_OUTCOMES = ("no call", "ok", "unknown", "not run")
_CLAIMS = ("nobody", "worker 1", "worker 2", "a dead claim")


@dataclass(frozen=True)
class Counterexample:
    """A shortest way to a broken invariant."""

    broken: str
    steps: tuple[tuple[str, int, State], ...]

    def __str__(self) -> str:
        lines = [f"{self.broken}, after {len(self.steps)} moves:"]
        for number, (event, who, state) in enumerate(self.steps, start=1):
            actor = f"worker {who}" if who else ""
            lines.append(f"{number:3} {actor:8} {EVENTS.get(event, event)}")
            lines.append(f"             {_describe(state)}")
        return "\n".join(lines)


@dataclass
class Search:
    """What one search saw."""

    config: Config
    states: int = 0
    edges: int = 0
    seconds: float = 0.0
    events: set[str] = field(default_factory=set[str])
    counterexample: Counterexample | None = None
    complete: bool = False

    def __str__(self) -> str:
        verdict = "broken" if self.counterexample else "holds" if self.complete else "not finished"
        return f"{verdict}: {self.states} states, {self.edges} moves, {self.seconds:.1f} s"


def explore(config: Config, *, limit: int | None = None) -> Search:
    """Visit every state that can be reached, or up to `limit` states; stop at the first broken invariant.

    Liveness is looked at when nothing else is broken and everything was visited: without another fault, and without a
    client doing anything, each state must be able to finish.
    """
    search = Search(config)
    started = time.perf_counter()
    start = canonical(initial(config))
    states, parents = [start], array("l", [-1])
    numbers = {start: 0}
    sources, targets = array("l"), array("l")
    events = search.events
    broken: tuple[str, int] | None = None
    current = 0
    while current < len(states) and broken is None and (limit is None or len(states) < limit):
        state = states[current]
        for event, _, reached in successors(state, config):
            events.add(event)
            following = canonical(reached)
            number = numbers.get(following)
            if number is None:
                number = len(states)
                numbers[following] = number
                states.append(following)
                parents.append(current)
                name = next(violations(following, config), None)
                if name is not None:
                    broken = broken or (name, number)
            if following.ghost is not state.ghost and not is_prefix(state, following):
                broken = broken or ("I1: the history seen before is not a prefix of this one", number)
            search.edges += 1
            if not event.startswith(("fault.", "user.", "stop.")) and not event.endswith("reply lost"):
                sources.append(current)
                targets.append(number)
        current += 1
    search.complete = current == len(states)
    if broken is None and search.complete:
        stuck = _stuck(states, sources, targets)
        if stuck is not None:
            broken = ("I2: from here nothing can finish any more", stuck)
    search.states = len(states)
    if broken is not None:
        search.counterexample = Counterexample(broken[0], _trace(states, parents, broken[1], config))
    search.seconds = time.perf_counter() - started
    return search


def _stuck(states: list[State], sources: array[int], targets: array[int]) -> int | None:
    """The first state from which no finished one can be reached."""
    hopeful = bytearray(finished(state) for state in states)
    changed = True
    while changed:
        changed = False
        # Most moves lead to a later number, so one pass from the end does nearly all.
        for source, target in zip(reversed(sources), reversed(targets), strict=True):
            if hopeful[target] and not hopeful[source]:
                hopeful[source] = changed = True
    number = hopeful.find(0)
    return None if number < 0 else number


def _trace(states: list[State], parents: array[int], number: int, config: Config) -> tuple[tuple[str, int, State], ...]:
    """The way to a state, replayed with workers that keep their names."""
    way: list[State] = []
    while number > 0:
        way.append(states[number])
        number = parents[number]
    state = initial(config)
    steps: list[tuple[str, int, State]] = []
    for wanted in reversed(way):
        event, who, state = next(move for move in successors(state, config) if canonical(move[2]) == wanted)
        steps.append((event, who, state))
    return tuple(steps)


def _describe(state: State) -> str:
    session = state.session
    words = ["over" if session.over else f"step {session.position + 1}" if session.position < 2 else "second execution"]
    if session.claim:
        words.append(f"claim: {_CLAIMS[session.claim]}{'' if session.lease else ' without lease'}")
    if session.cancel:
        words.append("cancel")
    if session.answer:
        words.append("answer journaled")
    if session.begun or session.ended:
        words.append(f"call {'ended' if session.ended else f'begun by {_CLAIMS[session.begun]}'}")
    if session.inbox:
        words.append(f"inbox: {session.inbox}")
    queued = [str(position + 1) for position, count in enumerate(state.queue) for _ in range(count)]
    words.append(f"queue: {' '.join(queued) or 'empty'}")
    if any(state.ghost.effects):
        words.append(f"effects: {state.ghost.effects[0]} {state.ghost.effects[1]}")
    if state.ghost.history:
        history = ", ".join(f"{position + 1} {_OUTCOMES[outcome]}" for position, outcome in state.ghost.history)
        words.append(f"history: {history}")
    return " · ".join(words)


def configurations(effects: tuple[Effect, ...] = tuple(Effect), *, faults: int = 1) -> Iterator[tuple[str, Config]]:
    """The configurations of a whole run, each with its name."""
    for effect in effects:
        for fused in (True, False):
            publish = "fused" if fused else "separate publish"
            for message, stop in ((False, False), (True, False), (False, True), (True, True)):
                clients = " + ".join(name for name, there in (("message", message), ("stop", stop)) if there)
                name = f"{effect}, {clients or 'alone'}, {publish}"
                yield name, Config(effect, message=message, stop=stop, fused=fused, faults=faults)
    yield "answer that cannot be parsed", Config(message=True, unusable=True, faults=faults)
    yield "budget of no step", Config(budget=0, message=True, faults=faults)
    yield "budget of one step", Config(budget=1, message=True, faults=faults)
    yield "unsafe, stop, a trusted clock", Config(Effect.UNSAFE, stop=True, clock=True, faults=faults)
    yield "a long step in front of it in the due index", Config(neighbour=True, faults=faults)


def main(arguments: list[str] | None = None) -> int:
    """Search, print, and say by the exit code whether everything holds."""
    options = _options(arguments)
    effects = (options.effect,) if options.effect else tuple(Effect)
    total = 0
    for name, config in configurations(effects, faults=options.faults):
        if options.one_client and config.message and config.stop:
            continue
        config = config._replace(
            crashes=options.crashes,
            pauses=options.pauses,
            replies=options.replies,
            messages=options.messages,
            clock=options.clock or config.clock,
        )
        search = explore(config, limit=options.limit)
        total += search.states
        print(f"{name}: {search}", flush=True)
        if search.counterexample:
            print(search.counterexample)
            return 1
    print(f"{total} states")
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m model.explore", description="Search every interleaving of the model."
    )
    parser.add_argument("--faults", type=int, default=1, help="faults of all kinds together (1)")
    parser.add_argument("--crashes", type=int, default=2, help="of them at most so many crashes (2)")
    parser.add_argument("--pauses", type=int, default=2, help="pauses longer than the lease (2)")
    parser.add_argument("--replies", type=int, default=1, help="lost replies (1)")
    parser.add_argument("--messages", type=int, default=1, help="lost or repeated messages (1)")
    parser.add_argument("--effect", type=Effect, choices=list(Effect), help="only this effect class")
    parser.add_argument("--one-client", action="store_true", help="not both a message and a stop")
    parser.add_argument("--clock", action="store_true", help="let workers trust their own clocks")
    parser.add_argument("--limit", type=int, help="most states of one configuration")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
