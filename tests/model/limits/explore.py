"""Search every interleaving of the model of limits: `cd tests && python -m model.limits.explore --help`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

from ..command_line import Explorer
from ..search import Goal, Rules
from .events import EVENTS
from .values import DONE, NO_APPOINTMENT, OFF, Config, Moves, Session, State, canonical, initial
from .world import moves_of_session, moves_of_world

_PLACES = ("due", "claimed", "looked", "sent", "answered", "refused", "bringing forward", "put off", "dead", "done")
_APPOINTMENTS = ("", ", appointment", ", appointment now")


def successors(state: State, config: Config) -> Moves:
    """Every next state, with the event that leads there."""
    for number in range(len(state.sessions)):
        yield from moves_of_session(state, config, number)
    yield from moves_of_world(state, config)


def violations(state: State, config: Config) -> Iterator[str]:
    """The invariants that this state breaks, by name."""
    if state.ghost.broken:
        yield state.ghost.broken
    if any(session.settled > 1 for session in state.sessions):
        yield "L2: a request is settled twice"
    if state.bucket.debt != state.ghost.debt:
        yield "L2: the bucket counts what no request has used"
    if sum(session.is_probe and held for session, held in zip(state.sessions, state.bucket.held, strict=True)) > 1:
        yield "L3: two probes are under way"


def _has_ended(state: State, config: Config) -> bool:
    del config
    return all(session.at == DONE for session in state.sessions)


def _is_freed(state: State, config: Config) -> bool:
    """Whether no session is put off by what holds it back no more."""
    del config
    return state.ghost.is_excused or not any(
        session.at == OFF and _may_come(state, session, appointment)
        for session, appointment in zip(state.sessions, state.bucket.line, strict=True)
    )


def _may_come(state: State, session: Session, appointment: int) -> bool:
    if session.by_pause:
        return not state.is_paused
    return appointment == NO_APPOINTMENT or (session.by_breaker and not state.bucket.is_away)


def _happens_by_itself(event: str) -> bool:
    is_bad = event.startswith("fault.") or event in ("provider.went away", "provider.refused")
    return not is_bad and not event.endswith("reply lost")


def _happens_soon(event: str) -> bool:
    return _happens_by_itself(event) and not event.startswith(("time.", "limit.", "pause."))


def _describe(state: State) -> str:
    bucket = state.bucket
    words = [f"{bucket.debt} of {bucket.limit} used"]
    words += ["one at a time"] if bucket.is_narrow else []
    words += ["breaker open"] if bucket.is_away else []
    for number, session in enumerate(state.sessions):
        held = ", reserved" if bucket.held[number] else ""
        words.append(f"session {number + 1}: {_PLACES[session.at]}{held}{_APPOINTMENTS[bucket.line[number]]}")
    return " · ".join(words)


# From each state all sessions can end without another fault. And as soon as nothing holds a session back any more,
# it comes without the help of time, unless its helper has died.
RULES: Final = Rules(
    initial=initial,
    successors=successors,
    violations=violations,
    canonical=canonical,
    goals=(
        Goal("L6: a session waits for ever", _has_ended, _happens_by_itself),
        Goal("L7: nothing holds a session back, and nobody brings it forward", _is_freed, _happens_soon),
    ),
    events=EVENTS,
    describe=_describe,
)

# Each with any one fault, as in the test suite.
CONFIGURATIONS: Final[dict[str, Config]] = {
    "two sessions": Config(),
    "three sessions, two at once": Config(sessions=3, limit=2),
    "refusals": Config(limit=2, refusals=2),
    "an outage": Config(limit=2, outage=True),
    "an outage, three sessions, no fault": Config(sessions=3, outage=True, faults=0),
    "a limit of none is raised": Config(limit=0, new_limit=1),
    "a limit is lowered": Config(sessions=3, limit=2, new_limit=1),
    "a limit is raised, refusals": Config(limit=1, new_limit=2, refusals=1),
    "a pause": Config(paused=True),
}
# More than the test suite has time for; `make faults` searches them.
LARGE: Final[dict[str, Config]] = {
    "three sessions, an outage": Config(sessions=3, outage=True),
    "three sessions, an outage, refusals, no fault": Config(sessions=3, limit=2, outage=True, refusals=1, faults=0),
    "three sessions, a pause, a limit is raised": Config(sessions=3, limit=1, new_limit=2, paused=True),
    "all that may happen": Config(limit=1, new_limit=2, outage=True, paused=True, refusals=1),
    "refusals, a limit is raised, two faults": Config(limit=1, new_limit=2, refusals=1, faults=2, crashes=2, replies=2),
    "an outage, two faults": Config(limit=2, outage=True, faults=2, crashes=2, replies=2),
}
EXPLORER: Final = Explorer("limits", RULES, CONFIGURATIONS, LARGE)

if __name__ == "__main__":
    sys.exit(EXPLORER.show_searches())
