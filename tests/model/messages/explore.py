"""Search every interleaving of the model of messages: `cd tests && python -m model.messages.explore --help`."""

from __future__ import annotations

import sys
from typing import Final

from ..command_line import Explorer
from ..search import Goal, Rules
from .clients import moves_of_clients
from .events import EVENTS
from .invariants import change_violations, rests, violations
from .values import (
    INTERRUPT,
    QUEUE,
    REFUSE,
    STEER,
    Config,
    Messages,
    Moves,
    Other,
    Send,
    SetMode,
    State,
    Stop,
    Withdraw,
    initial,
)
from .worker import moves_of_worker

_PHASES = ("idle", "run", "wait")
_ENDS = ("completed", "stopped", "failed")
_ANSWERS = ("", "a last answer", "calls", "calls that ask", "an interrupted answer")
_CLAIMS = ("", "claimed", "claimed by the dead")
_CLIENTS = ("send.", "withdraw.", "mode.", "stop.", "release.", "retry.", "suspend.", "resume.", "answer.")


def successors(state: State, config: Config) -> Moves:
    """Every next state, with the event that leads there."""
    yield from moves_of_worker(state, config)
    yield from moves_of_clients(state, config)


def _happens_by_itself(event: str) -> bool:
    is_bad = event.startswith("fault.") or event.endswith("reply lost") or event == "model.failed"
    return not is_bad and not event.startswith(_CLIENTS)


def _describe(state: State) -> str:
    session, ghost = state.session, state.ghost
    words = [f"execution {session.execution} {_PHASES[session.phase]}"]
    words += [f"{_ENDS[session.last]} last"] if session.execution else []
    words += [word for word in (_ANSWERS[session.answer], _CLAIMS[session.claim]) if word]
    words += [name for name in ("interrupt", "cancel", "held") if getattr(session, name)]
    words.append(f"inbox: {_in_words(session.inbox)}")
    words.append(f"{'held ' if session.queue_held else ''}queue: {_in_words(session.queue)}")
    words.append("delivered: " + " ".join(f"{number}>{execution}" for number, _, execution in ghost.delivered))
    return " · ".join(words)


def _in_words(messages: Messages) -> str:
    modes = ("interrupt", "steer", "queue")
    words = [f"{number} {modes[mode]}{' after the stop' if late else ''}" for number, mode, late in messages]
    return ", ".join(words) or "-"


# From each state the worker alone must reach one in which it has nothing to do.
RULES: Final = Rules(
    initial=initial,
    successors=successors,
    violations=violations,
    change_violations=change_violations,
    canonical=lambda state: state,
    goals=(Goal("M17: the session never comes to rest", rests, _happens_by_itself),),
    events=EVENTS,
    describe=_describe,
)

_FIRST: Final = Send(1, STEER)
_STEERED: Final = (_FIRST, Send(2, QUEUE), Send(3, STEER))
_QUEUED: Final = (_FIRST, Send(2, QUEUE), Send(3, QUEUE))
CONFIGURATIONS: Final[dict[str, Config]] = {
    "a queue, sent again": Config((*_QUEUED, Send(2, QUEUE)), crashes=1),
    "an interrupt is withdrawn": Config((_FIRST, Send(2, INTERRUPT), Withdraw(2), Send(2, INTERRUPT)), replies=1),
    "a stop, a retry": Config((*_STEERED, Stop(), Other.RETRY)),
    "a stop that fails": Config((_FIRST, Send(2, STEER), Stop()), fails=1, crashes=1, replies=1),
    "two stops": Config((_FIRST, Send(2, STEER), Stop(), Stop())),
    "two stops, of which one clears": Config((*_STEERED, Stop(), Stop(clears=True))),
    "a stop, an interrupt": Config((_FIRST, Send(2, INTERRUPT), Stop(), SetMode(2, QUEUE), SetMode(2, INTERRUPT))),
    "a failure, two releases": Config((*_STEERED, Other.RELEASE, Other.RELEASE), fails=1),
    "a failure, two demotions": Config(
        (_FIRST, Send(2, STEER), Send(3, STEER), SetMode(2, QUEUE), SetMode(3, QUEUE)), fails=1
    ),
    "a stop, a promotion": Config((*_QUEUED, SetMode(3, STEER), Stop())),
    "a hold": Config((*_QUEUED, Other.SUSPEND, Other.RESUME)),
    "a hold, a stop": Config((_FIRST, Send(2, STEER), Other.SUSPEND, Other.RESUME, Stop()), crashes=1),
    "a wait": Config((_FIRST, Send(2, INTERRUPT), Other.ANSWER, Other.SUSPEND, Other.RESUME, Stop()), asks=True),
    "a message that takes the place of an answer": Config(
        (_FIRST, Send(2, QUEUE), SetMode(2, STEER), Other.ANSWER, Other.SUSPEND, Other.RESUME, Stop()),
        asks=True,
        yields=True,
        crashes=1,
    ),
    "a refused message": Config((_FIRST, Send(2, REFUSE), Send(2, REFUSE))),
}
# More than the test suite has time for; `make faults` searches them.
LARGE: Final[dict[str, Config]] = {
    "a stop, messages of each mode": Config((*_STEERED, Send(4, INTERRUPT), Stop(), Other.RELEASE)),
    "a stop, an interrupt, a release": Config(
        (_FIRST, Send(2, QUEUE), Send(3, INTERRUPT), Stop(), Other.RELEASE), fails=1, crashes=1, replies=1
    ),
    "two stops, a retry": Config((*_STEERED, Stop(), Stop(clears=True), Other.RETRY), fails=1),
    "a wait, a hold, a stop": Config(
        (_FIRST, Send(2, STEER), Send(3, INTERRUPT), Other.ANSWER, Other.SUSPEND, Other.RESUME, Stop()),
        asks=True,
        crashes=1,
    ),
    "a message that takes the place of an answer, an interrupt, a retry": Config(
        (_FIRST, Send(2, STEER), Withdraw(2), Send(3, INTERRUPT), Other.ANSWER, Other.SUSPEND, Stop(), Other.RETRY),
        asks=True,
        yields=True,
        crashes=1,
    ),
    "changes of mode, a stop": Config(
        (*_STEERED, SetMode(2, INTERRUPT), SetMode(3, QUEUE), SetMode(2, QUEUE), Stop(), Other.RETRY), fails=1
    ),
    "withdrawals, releases": Config(
        (*_QUEUED, Withdraw(2), Withdraw(3), Send(3, QUEUE), Other.RELEASE, Other.RELEASE), fails=2, replies=1
    ),
}
EXPLORER: Final = Explorer("messages", RULES, CONFIGURATIONS, LARGE)

if __name__ == "__main__":
    sys.exit(EXPLORER.show_searches())
