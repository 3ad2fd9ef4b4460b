"""The values of the model of holders: its configuration, and the one immutable state that the rules change.

A concurrency limit has a narrow part, such as one customer's, and a wide one, its total.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

NARROW, WIDE = PARTS = (0, 1)
NOBODY, DEAD = 0, 3  # beside the claims 1 and 2 of the two workers
DUE, WORK, OFF, DONE = range(4)
IDLE, CLAIMED, REFUSED, LOOKING, RUNNING, GIVING, CALLING = range(7)
UNCALLED, SWEEP, OVERDUE = 0, 3, 4
"""A session in a line that nobody has called, that the sweep has called just now, as a worker may (1 and 2), or that was
called some time ago."""
NONE: Final = -1


class Mutant(StrEnum):
    """One breakage of the protocol each."""

    CHECK_APART = "a holder is looked for and taken in two round trips"
    DEAD_COUNT = "the holder of a dead claim counts for ever"
    DEAD_DROPPED_EARLY = "a holder does not count any more as soon as its worker is gone"
    TAKEN_AGAIN = "a holder that is asked for again counts again"
    KEPT_BY_COMMIT = "a commit keeps the holder"
    GIVEN_UNHEARD = "who gives a holder back calls nobody"
    NO_LOOK = "who was put off does not look again"
    LOOK_KEEPS_CALL = "who looks again and may not go is not called any more"
    LINE_KEPT = "who has taken a holder stays in the line"
    GONE_STAY = "who is called and will not come stays in the line"
    GONE_UNHEARD = "who takes a session out of a line calls nobody in its place"
    GONE_BLINDLY = "who has come meanwhile is taken out of the line by an old call"
    CALLED_ONCE = "who was called is never called again"
    NEWCOMERS_FIRST = "a newcomer takes what is free for those in the line"
    RESTORED_ALONE = "a lease is taken back without its holder"
    CARRIED_ON = "a claim is kept although others wait"
    STOP_WAITS = "a step that was asked to stop needs a holder"
    STOP_PUT_OFF = "a stop that comes before a step is put off waits with it"
    SWEEP_DEAF = "the sweep calls nobody"
    OLD_CLAIM_TAKES = "a claim that was taken over takes its session out of the line"


class Config(NamedTuple):
    """The part of the protocol that one search looks at.

    Attributes:
        sessions: How many, each with one step and those of `steps`.
        narrow: The sessions that the narrow part limits, too.
        most: The limits of the narrow and the wide part.
        raised: The wide limit that somebody sets at any moment. None: nobody does.
        steps: Steps of the first session; the others have one.
        stops: Somebody may stop the second session.
        faults: Crashes, pauses longer than the lease and lost messages together.
    """

    sessions: int = 3
    narrow: frozenset[int] = frozenset()
    most: tuple[int, int] = (1, 1)
    raised: int | None = None
    steps: int = 1
    stops: bool = False
    faults: int = 1
    mutant: Mutant | None = None


class Session(NamedTuple):
    """A session, with its place in the lines and its holder.

    Attributes:
        by: The part by which it is put off.
        since: Its place among all that stand in a line; 0: it stands in none.
        lines: Whether it stands in the narrow and in the wide line.
        called: Who has called it there.
        held: The claims that hold, each for all parts of the session.
        outdated: The claims that are older than the one that stands in the lines.
    """

    at: int = DUE
    by: int = NONE
    left: int = 1
    has_message: bool = True
    claim: int = NOBODY
    lease: bool = False
    since: int = 0
    lines: tuple[bool, bool] = (False, False)
    called: tuple[int, int] = (UNCALLED, UNCALLED)
    held: frozenset[int] = frozenset()
    outdated: frozenset[int] = frozenset()
    stop: bool = False


Call: TypeAlias = tuple[int, int, bool]
"""A session that was called, the part, and whether it had been called before."""


class Worker(NamedTuple):
    """What a worker does, for which session, and whom it has called."""

    at: int = IDLE
    session: int = NONE
    part: int = NONE
    calls: tuple[Call, ...] = ()
    saw_room: bool = False  # of the mutant that looks and takes in two round trips


class State(NamedTuple):
    """Everything; the last fields are what only the observer sees."""

    sessions: tuple[Session, ...]
    most: tuple[int, int]
    workers: tuple[Worker, Worker] = (Worker(), Worker())
    sweep: tuple[Call, ...] = ()
    is_raised: bool = False
    faults: int = 0
    broken: str = ""


Moves: TypeAlias = Iterator[tuple[str, int, State]]


def initial(config: Config) -> State:
    """All sessions are submitted."""
    sessions = tuple(Session(left=config.steps if number == 0 else 1) for number in range(config.sessions))
    return State(sessions, config.most, faults=config.faults)


def canonical(state: State) -> State:
    """One of the states that differ only in which worker is which, with the places counted from 1."""
    order = sorted({each.since for each in state.sessions if each.since})
    ranks = {since: rank for rank, since in enumerate(order, start=1)}
    if any(since != rank for since, rank in ranks.items()):
        sessions = tuple(each._replace(since=ranks.get(each.since, 0)) for each in state.sessions)
        state = state._replace(sessions=sessions)
    return min(state, _swapped(state), key=_order)


def _swapped(state: State) -> State:
    names = {1: 2, 2: 1}
    sessions = tuple(
        each._replace(
            claim=names.get(each.claim, each.claim),
            held=frozenset(names.get(claim, claim) for claim in each.held),
            outdated=frozenset(names.get(claim, claim) for claim in each.outdated),
            called=(names.get(each.called[0], each.called[0]), names.get(each.called[1], each.called[1])),
        )
        for each in state.sessions
    )
    return state._replace(sessions=sessions, workers=state.workers[::-1])


def _order(state: State) -> tuple[object, ...]:
    return state.workers, [
        (each.claim, sorted(each.held), each.called, sorted(each.outdated)) for each in state.sessions
    ]


def parts_of(config: Config, number: int) -> tuple[int, ...]:
    """The parts that limit a session, the narrow one first."""
    return PARTS if number in config.narrow else (WIDE,)


def with_session(state: State, number: int, session: Session) -> State:
    """The state with another value of one session."""
    sessions = list(state.sessions)
    sessions[number] = session
    return state._replace(sessions=tuple(sessions))


def with_worker(state: State, index: int, worker: Worker) -> State:
    """The state with another value of one worker."""
    return state._replace(workers=(worker, state.workers[1]) if index == 0 else (state.workers[0], worker))


def put(pair: tuple[int, int], part: int, value: int) -> tuple[int, int]:
    """A pair with another value for one part."""
    return (value, pair[1]) if part == NARROW else (pair[0], value)
