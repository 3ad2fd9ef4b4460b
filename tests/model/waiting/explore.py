"""Search every interleaving of the waiting model: `cd tests && python -m model.waiting.explore --help`."""

from __future__ import annotations

import sys
from typing import Final

from ..command_line import Explorer
from ..search import Goal, Rules
from ..values import Effect
from .answers import moves_of_people, moves_of_service
from .clients import moves_of_hold, moves_of_note, moves_of_stop
from .events import EVENTS
from .invariants import has_ended, rests, violations
from .leg import moves_of_worker
from .values import Config, Moves, Note, State, canonical, initial
from .world import moves_of_queue, moves_of_sweep, moves_of_time

_CLIENTS = ("answer.", "service.", "stop.", "hold.", "note.")
_CLAIMS = ("nobody", "worker 1", "worker 2", "a dead claim")
_PHASES = ("run", "wait", "end")
_REPLIES = ("open", "approved", "denied", "expired", "answered")
_DUE = ("not due", "due now", "due at the expiry", "due at the end of the hold")


def successors(state: State, config: Config) -> Moves:
    """Every next state, with the event that leads there and who did it (0: not a worker)."""
    for index in (0, 1):
        yield from moves_of_worker(state, config, index)
    yield from moves_of_time(state, config)
    yield from moves_of_sweep(state, config)
    yield from moves_of_queue(state)
    yield from moves_of_people(state, config)
    if config.external:
        yield from moves_of_service(state, config)
    if config.stop:
        yield from moves_of_stop(state, config)
    if config.hold:
        yield from moves_of_hold(state, config)
    if config.note:
        yield from moves_of_note(state, config)


def _happens_by_itself(event: str) -> bool:
    return not event.startswith(("fault.", *_CLIENTS)) and not event.endswith("reply lost")


def _happens_soon(event: str) -> bool:
    return _happens_by_itself(event) and not event.startswith("time.")


def _describe(state: State) -> str:
    session = state.session
    words = [f"step {session.position + 1}" if session.position < 2 else "second execution"]
    words += [f"phase {_PHASES[session.phase]}", _DUE[session.due]]
    if session.claim:
        words.append(f"claim: {_CLAIMS[session.claim]}{'' if session.lease else ' without lease'}")
    words += [name for name in ("cancel", "held") if getattr(session, name)]
    if session.asked:
        words.append(f"request of round {session.round + 1} {_REPLIES[session.reply]}")
    if session.begun or session.result:
        words.append("call ended" if session.result else f"call begun by {_CLAIMS[session.begun]}")
    if session.job_begun:
        words.append(f"external call {_REPLIES[session.job_reply]}")
    if session.inbox:
        words.append(f"inbox: {session.inbox}")
    queued = [str(position + 1) for position, count in enumerate(state.queue) for _ in range(count)]
    words.append(f"queue: {' '.join(queued) or 'empty'}")
    return " · ".join(words)


# From each state workers, sweep and time alone must reach the end. Workers and sweep alone must reach a state in
# which nobody has anything to do: a wake-up that was lost is not excused by an expiry in thirty days.
RULES: Final = Rules(
    initial=initial,
    successors=successors,
    violations=violations,
    canonical=canonical,
    goals=(
        Goal("I2: from here the execution cannot end any more", has_ended, _happens_by_itself),
        Goal("I13: something could run, and nobody will look", rests, _happens_soon),
    ),
    events=EVENTS,
    describe=_describe,
)

# Each with any one fault, as in the test suite.
CONFIGURATIONS: Final[dict[str, Config]] = {
    "approval": Config(people=2),
    "approval that a tool asks for, keyed": Config(effect=Effect.KEYED, asked_by_tool=True, edited=True),
    "approval that a tool asks for, unsafe, stop, hold": Config(asked_by_tool=True, stop=True, hold=True),
    "approval that is passed on": Config(people=2, passes_on=True, stop=True),
    "approval without an expiry, stop": Config(expires=False, stop=True),
    "approval, stop, hold": Config(stop=True, hold=True, carries=True),
    "approval, a message that denies": Config(note=Note.DENY),
    "approval, interrupt, hold": Config(note=Note.INTERRUPT, hold=True),
    "approval, stop, message": Config(stop=True, note=Note.STEER),
    "external, stop": Config(approval=False, external=True, stop=True),
    "external, keyed, hold": Config(approval=False, external=True, effect=Effect.KEYED, hold=True),
    "external without an expiry": Config(approval=False, external=True, expires=False, note=Note.STEER),
    "approval and external": Config(external=True),
    "approval and external, stop, hold, no fault": Config(external=True, stop=True, hold=True, faults=0),
}
# More than the test suite has time for; `make faults` searches them.
LARGE: Final[dict[str, Config]] = {
    "approval and external, stop, hold": Config(external=True, stop=True, hold=True),
    "approval and external, interrupt, hold": Config(external=True, note=Note.INTERRUPT, hold=True),
    "approval that is passed on, stop, hold, message": Config(
        people=2, passes_on=True, stop=True, hold=True, note=Note.STEER
    ),
    "approval that a tool asks for, keyed, two faults": Config(effect=Effect.KEYED, asked_by_tool=True, faults=2),
    "approval, stop, two faults": Config(stop=True, faults=2),
    "external, hold, two faults": Config(approval=False, external=True, hold=True, faults=2),
}
EXPLORER: Final = Explorer("waiting", RULES, CONFIGURATIONS, LARGE)

if __name__ == "__main__":
    sys.exit(EXPLORER.show_searches())
