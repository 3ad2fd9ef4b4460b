"""Search every interleaving of the model of the archive: `cd tests && python -m model.archive.explore --help`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

from ..command_line import Explorer
from ..search import Goal, Rules
from .events import EVENTS
from .values import IDLE, MOVERS, RESTORERS, TOMBSTONE, VALID, Config, Moves, State, canonical, initial, readable
from .world import moves_of_mover, moves_of_restorer, moves_of_world

_ROWS = ("pending", "valid", "tombstone")


def successors(state: State, config: Config) -> Moves:
    """Every next state, with the event that leads there."""
    for number in MOVERS:
        yield from moves_of_mover(state, config, number)
    for number in RESTORERS:
        yield from moves_of_restorer(state, config, number)
    yield from moves_of_world(state, config)


def violations(state: State, config: Config) -> Iterator[str]:
    """The invariants that this state breaks, by name."""
    shown = readable(state)
    if state.redis.is_deleted:
        is_done = not state.redis.outbox
        if is_done and state.row is not None and state.row.kind != TOMBSTONE:
            yield "A3: a deleted session stays in the archive"
    elif shown is None:
        yield "A1: a session is in neither place"
    elif shown != state.accepted:
        yield "A2: a session lacks what it had accepted, and would do it again"


def _has_ended(state: State, config: Config) -> bool:
    del config
    if any(actor.at != IDLE for actor in state.actors):
        return False
    if state.redis.is_deleted:
        return not state.redis.outbox
    return state.redis.session is None and state.row is not None and state.row.kind == VALID


def _happens_by_itself(event: str) -> bool:
    return event.startswith(("move.", "house.", "redis.", "delete.t", "delete.e", "restore.w", "restore.ref"))


def _describe(state: State) -> str:
    row = "no row" if state.row is None else f"row {_ROWS[state.row.kind]} {list(state.row.history)}"
    return f"{state.redis} · {row} · accepted {list(state.accepted)}"


RULES: Final = Rules(
    initial=initial,
    successors=successors,
    violations=violations,
    canonical=canonical,
    goals=(Goal("A4: a session can never be archived", _has_ended, _happens_by_itself),),
    events=EVENTS,
    describe=_describe,
)

CONFIGURATIONS: Final[dict[str, Config]] = {
    "messages": Config(messages=2),
    "messages, a deletion": Config(messages=1, delete=True),
    "messages, a loss": Config(messages=2, crashes=0, losses=1),
    "a message, marks that expire": Config(messages=1, expires=True),
    "a deletion, marks that expire": Config(messages=0, delete=True, expires=True),
    "a deletion, a loss": Config(messages=1, delete=True, crashes=0, losses=1),
}
EXPLORER: Final = Explorer("archive", RULES, CONFIGURATIONS)

if __name__ == "__main__":
    sys.exit(EXPLORER.show_searches())
