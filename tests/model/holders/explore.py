"""Search every interleaving of the model of holders: `cd tests && python -m model.holders.explore --help`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

from ..command_line import Explorer
from ..search import Goal, Rules
from .events import EVENTS
from .script import holders, in_line
from .values import (
    DONE,
    IDLE,
    OFF,
    PARTS,
    RUNNING,
    WIDE,
    WORK,
    Config,
    Moves,
    State,
    canonical,
    initial,
    parts_of,
)
from .world import moves_of_worker, moves_of_world

_PLACES = ("due", "claimed", "put off", "done")


def successors(state: State, config: Config) -> Moves:
    """Every next state, with the event that leads there."""
    for index in (0, 1):
        yield from moves_of_worker(state, config, index)
    yield from moves_of_world(state, config)


def violations(state: State, config: Config) -> Iterator[str]:
    """The invariants that this state breaks, by name."""
    for part in PARTS:
        live = sum(len(each.held) for number, each in enumerate(state.sessions) if part in parts_of(config, number))
        if live > state.most[part]:
            yield "H1: more hold than the limit allows"
    for me, worker in enumerate(state.workers, start=1):
        session = state.sessions[worker.session] if worker.at == RUNNING else None
        if session is None or session.claim != me or not session.lease:
            continue
        if config.faults != state.faults:
            continue
        if me not in session.held:
            yield "H2: a step runs without a holder"
        elif session.since:  # an older claim, that was taken over, may stand there until it is called
            yield "H3: who holds stands in a line"

    if not _is_excused(state, config) and _is_quiet(state):
        for number, session in enumerate(state.sessions):
            parts = parts_of(config, number)
            if session.at == OFF and all(holders(state, config, part) < state.most[part] for part in parts):
                yield "H8: a session is put off, and nothing holds it back"
    if any(session.at == OFF and session.stop for session in state.sessions):
        yield "H9: a stop waits for a holder"


def _is_excused(state: State, config: Config) -> bool:
    """Whether something has failed, or somebody has raised a limit or stopped who was called: the sweep goes on then."""
    return state.faults != config.faults or state.is_raised or (config.stops and state.sessions[1].stop)


def _is_quiet(state: State) -> bool:
    """Whether nobody is about to do something but to finish steps."""
    is_at_rest = all(worker.at in (IDLE, RUNNING) for worker in state.workers) and not state.sweep
    return is_at_rest and not any(session.has_message for session in state.sessions)


def change_violations(before: State, after: State) -> Iterator[str]:
    """The invariants that the way from one state to the next breaks."""
    line = in_line(before, WIDE)
    for old, new in zip(before.sessions, after.sessions, strict=True):
        if old.stop and len(new.held) > len(old.held) and new.claim in new.held - old.held:
            yield "H9: a stop waits for a holder"
        is_newcomer = line and not old.since and len(new.held) > len(old.held)
        if is_newcomer and sum(len(each.held) for each in after.sessions) + len(line) > after.most[WIDE]:
            yield "H10: a newcomer takes what is free for those in the line"
        if line and new.at == WORK and new.left < old.left:
            yield "H11: a claim is kept although others wait"


def _has_ended(state: State, config: Config) -> bool:
    del config
    return state.most[WIDE] == 0 or all(session.at == DONE for session in state.sessions)


def _ends_alone(state: State, config: Config) -> bool:
    """Whether all have ended, or only the sweep has to go on."""
    return _is_excused(state, config) or _has_ended(state, config)


def _is_clean(state: State, config: Config) -> bool:
    """Whether all have ended, and none of them is left among the holders; who stands in a line has not come yet."""
    return state.most[WIDE] == 0 or (_has_ended(state, config) and not any(each.held for each in state.sessions))


def _has_empty_lines(state: State, config: Config) -> bool:
    return state.most[WIDE] == 0 or (_has_ended(state, config) and not any(in_line(state, part) for part in PARTS))


def _happens_by_itself(event: str) -> bool:
    return not event.startswith(("fault.", "limit.", "stop.a"))


def _happens_soon(event: str) -> bool:
    return _happens_by_itself(event) and not event.startswith(("time.", "sweep.c", "sweep.f"))


def _describe(state: State) -> str:
    words: list[str] = []
    for number, session in enumerate(state.sessions):
        held = ", holds" if session.held else ""
        lines = "".join(f", in line {part}" for part in PARTS if session.lines[part])
        claim = f", claim {session.claim}{'' if session.lease else ' without lease'}" if session.claim else ""
        words.append(f"session {number + 1}: {_PLACES[session.at]}{claim}{held}{lines}")
    return " · ".join(words)


# From each state all sessions can end without another fault, and leave nothing behind. Where nobody has died and nobody
# has changed anything, that needs neither the sweep nor time: who gives a holder back lets the next one go.
RULES: Final = Rules(
    initial=initial,
    successors=successors,
    violations=violations,
    canonical=canonical,
    goals=(
        Goal("H4: a session waits for ever", _has_ended, _happens_by_itself),
        Goal("H5: nobody but the sweep calls who may go", _ends_alone, _happens_soon),
        Goal("H6: a holder stays for ever", _is_clean, _happens_by_itself),
        Goal("H7: a session that has ended stands in a line for ever", _has_empty_lines, _happens_by_itself),
    ),
    events=EVENTS,
    describe=_describe,
    change_violations=change_violations,
)

CONFIGURATIONS: Final[dict[str, Config]] = {
    "three sessions, no fault": Config(faults=0),
    "two steps": Config(sessions=2, steps=2),
    "a narrow part, no fault": Config(narrow=frozenset({0, 1}), faults=0),
    "a stop": Config(sessions=2, stops=True),
    "a limit of none is raised": Config(sessions=2, most=(1, 0), raised=1),
}
LARGE: Final[dict[str, Config]] = {
    **CONFIGURATIONS,
    "three sessions": Config(),
    "three sessions, two steps, a stop": Config(steps=2, stops=True),
    "a narrow part": Config(narrow=frozenset({0, 1}), most=(1, 2)),
    "a narrow part, both full": Config(narrow=frozenset({0, 1})),
    "two sessions, two faults": Config(sessions=2, steps=2, stops=True, faults=2),
    "a limit is raised": Config(raised=2),
}
EXPLORER: Final = Explorer("holders", RULES, CONFIGURATIONS, LARGE)

if __name__ == "__main__":
    sys.exit(EXPLORER.show_searches())
