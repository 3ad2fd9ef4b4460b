"""Search every interleaving of the model of replicas: `cd tests && python -m model.replicas.explore --help`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

from ..command_line import Explorer
from ..search import Goal, Rules
from .callers import moves_of_caller, moves_of_world
from .events import EVENTS
from .values import OVER, UNKNOWN, Act, Config, Moves, State, Store, canonical, initial
from .workers import moves_of_worker

_WORKER = ("idle", "asks the model", "journaled", "begun", "may call", "commits", "ended", "dead")
_CALLER = ("", "not confirmed", "again, not confirmed", "over")


def successors(state: State, config: Config) -> Moves:
    """Every next state, with the event that leads there."""
    for number in range(len(state.workers)):
        yield from moves_of_worker(state, config, number)
    for act in Act:
        yield from moves_of_caller(state, config, act)
    yield from moves_of_world(state, config)


def violations(state: State, config: Config) -> Iterator[str]:
    """The invariants that this state breaks, by name."""
    now = state.now
    if state.broken:
        yield state.broken
    if len(set(state.effects) if config.is_keyed else state.effects) > 1:
        yield "I3: an effect is doubled"
    if now.ends and state.effects and now.ends[0] not in (state.effects[0], UNKNOWN):
        yield "I5: an effect is missing from the history"
    untouched = (state.faults.failovers, state.faults.crashes) == (config.failovers, config.crashes)
    if UNKNOWN in now.ends and untouched and not state.effects:
        yield "I3: a call is unknown that no fault has touched"
    for act in Act:
        caller = state.callers[act]
        if caller.at == OVER and not now.is_deleted and not _is_kept(act, caller.value, now):
            yield _BROKEN.get(act, "I8: an acknowledged action is lost")


_BROKEN: Final = {
    Act.DELETE: "I16: a deletion is undone",
    Act.READ: "R1: a result that a program was given is no more",
    Act.CALLBACK: "R1: a result that a callback has told is no more",
    Act.TELL: "R2: a request that a callback has told is no more",
}


def _is_kept(act: Act, value: tuple[int, int], now: Store) -> bool:
    """Whether what has left Redis is stored, while the session is not deleted."""
    match act:
        case Act.SUBMIT:
            return now.exists
        case Act.STOP:
            return now.is_stopped or bool(now.ends)
        case Act.DELETE:
            return False
        case Act.RETRY:
            return bool(now.ends) and (not now.is_ended or len(now.ends) > 1)
        case Act.READ | Act.CALLBACK:
            version, result = value
            return len(now.ends) >= version and now.ends[version - 1] == result
        case Act.TELL:
            return now.asked == value[0]


def _has_ended(state: State, config: Config) -> bool:
    del config
    now = state.now
    return now.is_deleted or (now.is_ended and state.callers[Act.SUBMIT].at == OVER)


def _happens_by_itself(event: str) -> bool:
    return not event.startswith(("fault.", "act.stop", "act.delete", "act.retry"))


def _describe(state: State) -> str:
    store = state.now
    words = [", ".join(f"{name} {value}" for name, value in store._asdict().items() if value not in (0, -1, ())) or "-"]
    words += ["the replica lags"] if state.replica != store else []
    for number, worker in enumerate(state.workers):
        words.append(f"worker {number}: {_WORKER[worker.at]}{' (former primary)' * worker.is_behind}")
    words += [
        f"{act.name.lower()} {_CALLER[caller.at]}{' (former primary)' * caller.is_behind}"
        for act, caller in zip(Act, state.callers, strict=True)
        if caller.at
    ]
    return " · ".join(words)


# From each state every execution can end, and the submit can be acknowledged, without another fault.
RULES: Final = Rules(
    initial=initial,
    successors=successors,
    violations=violations,
    canonical=canonical,
    goals=(Goal("I2: an execution cannot end, or a submit cannot be acknowledged", _has_ended, _happens_by_itself),),
    events=EVENTS,
    describe=_describe,
)

# Most with the failover alone, as in the test suite.
CONFIGURATIONS: Final[dict[str, Config]] = {
    "an unsafe call, one more fault": Config(),
    "an unsafe call, its result is read": Config(acts=(Act.READ,), faults=1),
    "a keyed call, its result is read": Config(is_keyed=True, acts=(Act.READ,), faults=1),
    "a stop, one worker": Config(acts=(Act.STOP,), workers=1, faults=1, crashes=0),
    "a deletion": Config(acts=(Act.DELETE,), faults=1),
    "a request, and a callback of it": Config(asks=True, acts=(Act.TELL,), faults=1),
    "a callback, and a foreign client": Config(acts=(Act.CALLBACK,), foreign=True, faults=1),
    "a retry, and the result is read, one worker": Config(acts=(Act.RETRY, Act.READ), workers=1, faults=1, crashes=0),
}
# More than the test suite has time for; `make faults` searches them.
LARGE: Final[dict[str, Config]] = {
    "a stop": Config(acts=(Act.STOP,), faults=1),
    "a stop of a keyed call": Config(is_keyed=True, acts=(Act.STOP,), faults=1),
    "a retry, and the result is read": Config(acts=(Act.RETRY, Act.READ), faults=1),
    "the result is read, one more fault": Config(acts=(Act.READ,)),
    "a deletion, one more fault": Config(acts=(Act.DELETE,)),
    "three faults": Config(faults=3),
}
EXPLORER: Final = Explorer("replicas", RULES, CONFIGURATIONS, LARGE)

if __name__ == "__main__":
    sys.exit(EXPLORER.show_searches())
