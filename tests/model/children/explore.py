"""Search every interleaving of the model of children: `cd tests && python -m model.children.explore --help`."""

from __future__ import annotations

import sys
from typing import Final

from ..command_line import Explorer
from ..search import Goal, Rules
from .events import EVENTS
from .invariants import has_ended, violations
from .values import Config, Moves, Session, State, canonical, initial
from .world import moves_of_queue, moves_of_stop, moves_of_sweep, moves_of_time, moves_of_worker

_CLAIMS = ("nobody", "worker 1", "worker 2", "a dead claim")
_PHASES = ("run", "wait", "end")
_REPLIES = ("open", "ended", "closed")
_DUE = ("not due", "due now", "due at the expiry")


def successors(state: State, config: Config) -> Moves:
    """Every next state, with the event that leads there and who did it (0: not a worker)."""
    for index in (0, 1):
        yield from moves_of_worker(state, config, index)
    yield from moves_of_time(state, config)
    yield from moves_of_sweep(state, config)
    yield from moves_of_queue(state)
    if config.stop:
        yield from moves_of_stop(state, config)


def _happens_by_itself(event: str) -> bool:
    return not event.startswith(("fault.", "stop.")) and not event.endswith("reply lost")


def _happens_soon(event: str) -> bool:
    return _happens_by_itself(event) and not event.startswith("time.")


def _describe(state: State) -> str:
    words = [f"parent: step {state.parent.position + 1}, {_in_words(state.parent)}"]
    for number, (call, child) in enumerate(zip(state.calls, state.children, strict=True), start=1):
        words.append(f"call {number}: {_REPLIES[call.reply] if call.is_asked else 'not asked'}")
        words.append(f"child {number}: {'none' if child is None else _in_words(child)}")
    return " · ".join([*words, f"queue: {''.join(map(str, state.queue))}"])


def _in_words(session: Session) -> str:
    claim = f", claim: {_CLAIMS[session.claim]}{'' if session.lease else ' without lease'}" if session.claim else ""
    return f"{_PHASES[session.phase]}, {_DUE[session.due]}{claim}{', stopping' if session.cancel else ''}"


# From each state workers, sweep and time alone must reach the end of the whole tree. Without time they must, too:
# an end of a child that was told to nobody is not excused by an expiry.
RULES: Final = Rules(
    initial=initial,
    successors=successors,
    violations=violations,
    canonical=canonical,
    goals=(
        Goal("I2: from here the tree cannot end any more", has_ended, _happens_by_itself),
        Goal("I13: something could run, and nobody will look", has_ended, _happens_soon),
    ),
    events=EVENTS,
    describe=_describe,
)

# Each with any one fault, as in the test suite.
CONFIGURATIONS: Final[dict[str, Config]] = {
    "one child": Config(),
    "one child, stop": Config(stop=True),
    "one child, expiry": Config(expires=True),
    "one child, expiry, stop, no fault": Config(expires=True, stop=True, faults=0),
    "two children, no fault": Config(calls=2, faults=0),
    "two children, one after the other": Config(calls=2, at_once=1, replies=0, pauses=0),
    "two children, a budget for both, no fault": Config(calls=2, budget=3, faults=0),
    "two children, a budget for one, a crash": Config(calls=2, at_once=1, budget=2, pauses=0, replies=0, messages=0),
    "two children, the first stops the other, no fault": Config(calls=2, first=True, faults=0),
}
# More than the test suite has time for; `make faults` searches them.
LARGE: Final[dict[str, Config]] = {
    "one child, expiry, stop": Config(expires=True, stop=True),
    "one child, stop, two faults": Config(stop=True, faults=2),
    "two children": Config(calls=2),
    "two children, one after the other, stop": Config(calls=2, at_once=1, stop=True),
    "two children, the first stops the other": Config(calls=2, first=True),
    "two children, a budget for both": Config(calls=2, budget=3),
    "two children, a budget for both, stop, expiry": Config(calls=2, at_once=1, budget=3, stop=True, expires=True),
    "two children, stop": Config(calls=2, stop=True),
}
EXPLORER: Final = Explorer("children", RULES, CONFIGURATIONS, LARGE)

if __name__ == "__main__":
    sys.exit(EXPLORER.show_searches())
