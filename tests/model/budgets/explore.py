"""Search every interleaving of the model of budgets: `cd tests && python -m model.budgets.explore --help`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

from ..command_line import Explorer
from ..search import Goal, Rules
from .events import EVENTS
from .values import END, NOTHING, WAIT, Config, Moves, State, canonical, initial, limit_of
from .worker import moves_of_worker
from .world import moves_of_client, moves_of_holder, moves_of_people, moves_of_time

_PHASES = ("run", "wait", "end")


def successors(state: State, config: Config) -> Moves:
    """Every next state, with the event that leads there."""
    for index in (0, 1):
        yield from moves_of_worker(state, config, index)
    yield from moves_of_client(state, config)
    if config.hold:
        yield from moves_of_holder(state, config)
    yield from moves_of_people(state, config)
    yield from moves_of_time(state)


def violations(state: State, config: Config) -> Iterator[str]:
    """The invariants that this state breaks, by name."""
    del config
    session = state.session
    if state.over_budget:
        yield "B1: the model is asked although the limit that held at the claim was reached"
    if state.ended_wrongly:
        yield "B2: an execution ends by a limit that does not hold any more"
    if session.phase != END and limit_of(session) != state.truth:
        yield "B3: a change is lost"
    if state.changed_late or (session.phase == END and session.field != NOTHING):
        yield "B4: an execution that has ended is changed"


def _rests(state: State, config: Config) -> bool:
    """The execution has ended, is held, or waits for an answer within its limit."""
    del config
    session = state.session
    waits = session.phase == WAIT and not session.reply and session.done < state.truth
    return session.phase == END or session.held or waits


def _happens_by_itself(event: str) -> bool:
    by_others = event.startswith(("fault.", "change.", "hold.", "answer.g"))
    return not by_others and not event.endswith("reply lost")


def _describe(state: State) -> str:
    session = state.session
    field = "" if session.field == NOTHING else f", set to {session.field}"
    claim = f" · claim {session.claim}{'' if session.lease else ' without lease'}" if session.claim else ""
    held = " · held" if session.held else ""
    return f"{session.done} steps · {_PHASES[session.phase]} · limit {session.limit}{field}{claim}{held}"


RULES: Final = Rules(
    initial=initial,
    successors=successors,
    violations=violations,
    canonical=canonical,
    goals=(Goal("B5: nothing notices a change any more", _rests, _happens_by_itself),),
    events=EVENTS,
    describe=_describe,
)

CONFIGURATIONS: Final[dict[str, Config]] = {
    "raised": Config(limit=1, changes=(3,), hold=True),
    "raised from nothing": Config(limit=0, changes=(3,), waits=True),
    "lowered": Config(limit=3, changes=(1,), hold=True),
    "lowered to nothing, while it waits": Config(limit=3, changes=(0,), waits=True, hold=True),
    "raised and lowered": Config(limit=2, changes=(3, 1), waits=True),
}
LARGE: Final[dict[str, Config]] = {
    **CONFIGURATIONS,
    "raised, two faults": Config(limit=1, changes=(3,), waits=True, hold=True, faults=2),
    "raised and lowered, two faults": Config(limit=2, changes=(3, 1), waits=True, hold=True, faults=2),
}
EXPLORER: Final = Explorer("budgets", RULES, CONFIGURATIONS, LARGE)

if __name__ == "__main__":
    sys.exit(EXPLORER.show_searches())
