"""Search every interleaving of the model of rewinds: `cd tests && python -m model.rewind.explore --help`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

from ..command_line import Explorer
from ..search import Goal, Rules
from .clients import moves_of_clients
from .events import EVENTS
from .execution import moves_of_worker
from .values import DEAD, IDLE, OVER, Config, Moves, State, canonical, initial

_PHASES = ("idle", "run", "wait")
_COPIES = ("asked", "ends a wait", "looked", "read", "saved", "over", "dead")


def successors(state: State, config: Config) -> Moves:
    """Every next state, with the event that leads there."""
    yield from moves_of_worker(state, config)
    yield from moves_of_clients(state, config)


def violations(state: State, config: Config) -> Iterator[str]:
    """The invariants that this state breaks, by name."""
    del config
    session, ghost = state.session, state.ghost
    if ghost.broken:
        yield ghost.broken
    if ghost.rewinds > 1:
        yield "W3: one request has rewound twice"
    if session.spent != ghost.commits:
        yield "W7: what was spent is not known any more"
    places = sorted((*ghost.delivered, *session.inbox))
    if places != sorted(ghost.accepted):
        yield "W1: a message is lost, or has come twice"
    lists = (*session.old, session.lines)
    for step in session.steps:
        saved = dict(ghost.saved)[step.execution, step.number]
        if lists[step.generation][: step.length] != saved.lines:
            yield "W8: the state at a step cannot be read any more"
        if step.is_packed and step.generation != session.generation:
            yield "W8: the record of a step cannot be read any more"


def _rests(state: State, config: Config) -> bool:
    """No execution is active, and whoever has asked for the rewind has an answer, or is dead."""
    del config
    decided = state.ghost.decided is not None
    return state.session.phase == IDLE and (not decided or all(copy.at in (OVER, DEAD) for copy in state.copies))


def _happens_by_itself(event: str) -> bool:
    return event.startswith(("work.", "rewind.", "answer."))


def _describe(state: State) -> str:
    session = state.session
    words = [f"{_PHASES[session.phase]}, version {session.version}, messages {list(session.lines)}"]
    words += [f"inbox {list(session.inbox)}"] if session.inbox else []
    words += ["stopping"] if session.is_stopping else []
    words += [f"rewind {_COPIES[copy.at]}" for copy in state.copies if copy.at]
    return " · ".join(words)


RULES: Final = Rules(
    initial=initial,
    successors=successors,
    violations=violations,
    canonical=canonical,
    goals=(Goal("W9: from here an execution or a rewind cannot end any more", _rests, _happens_by_itself),),
    events=EVENTS,
    describe=_describe,
)

# Each with any one fault, as in the test suite.
CONFIGURATIONS: Final[dict[str, Config]] = {
    "a version is named": Config(),
    "no version is named": Config(is_expected=False),
    "a step of the latest execution": Config(is_expected=False, is_relative=True),
    "executions that wait": Config(messages=2, asks=True, faults=0),
    "executions that wait, no version is named": Config(asks=True, is_expected=False),
    "a stop, a retry": Config(messages=0, stops=True),
}
# More than the test suite has time for; `make faults` searches them.
LARGE: Final[dict[str, Config]] = {
    "two messages": Config(messages=2),
    "executions that wait, a stop, a retry": Config(asks=True, stops=True, is_relative=True),
    "executions that wait, two faults": Config(asks=True, faults=2),
    "no version is named, a stop, a retry, two faults": Config(is_expected=False, stops=True, faults=2),
}
EXPLORER: Final = Explorer("rewind", RULES, CONFIGURATIONS, LARGE)

if __name__ == "__main__":
    sys.exit(EXPLORER.show_searches())
