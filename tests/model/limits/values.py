"""The values of the model of limits: its configuration, and the one immutable state that the rules change."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple


class Mutant(StrEnum):
    """One breakage of the protocol each."""

    CHECK_APART = "a reservation looks and writes in two round trips"
    RESERVED_AGAIN = "a reservation that is asked for again is counted again"
    SETTLED_AGAIN = "a settlement that is sent again moves the arrival time again"
    DEAD_HOLDS = "the reservation of a dead claim is held for ever"
    TWO_PROBES = "a second probe may go while one is under way"
    PROBE_FORGOTTEN = "a probe that fails stays the probe"
    CLOSED_TOLD_ONCE = "who settles again is not told that this closed the breaker"
    CLOSED_KEEPS_LINE = "the breaker is closed, and the appointments stay"
    SET_WITHOUT_FORWARD = "who sets a limit brings nobody forward"
    RELEASE_WITHOUT_LOOK = "a step is put off without a look at whether what holds it back is still there"
    NEWCOMERS_FIRST = "a newcomer takes the room of one with an appointment"
    WINDOW_FORGOTTEN = "after a refusal as many may go as before"
    NO_OWN_TIME = "a step that was put off comes back only when it is brought forward"


class Config(NamedTuple):
    """The part of the protocol that one search looks at.

    Attributes:
        sessions: Sessions with one request each.
        limit: Requests that may come at once; each unit of time makes room for one.
        new_limit: What somebody may set instead, at any moment; None: nobody does.
        refusals: How often the provider refuses a request.
        outage: The provider may go away once, and comes back.
        paused: It is paused at first, and somebody ends that at any moment.
        faults: Most faults of all kinds together.
        crashes, replies: Most faults of each kind.
        mutant: The breakage.
    """

    sessions: int = 2
    limit: int = 1
    new_limit: int | None = None
    refusals: int = 0
    outage: bool = False
    paused: bool = False
    faults: int = 1
    crashes: int = 1
    replies: int = 1
    mutant: Mutant | None = None


# Where a session is. OFF: put off; TELLING: its worker brings the others forward; DEAD: its worker has died.
DUE, ASKING, ADDING, SENT, GOT, PUTTING, TELLING, OFF, DEAD, DONE = range(10)
AT_WORK: Final = frozenset((ASKING, ADDING, SENT, GOT, PUTTING, TELLING))
OK, REFUSED, AWAY = range(3)  # what the provider answers
NO_APPOINTMENT, LATER, NOW = range(3)
NOBODY, SOMEBODY_DEAD = -1, -2  # in place of the number of the session whose request is the probe


class Session(NamedTuple):
    """A session, and the worker that has claimed its step.

    Attributes:
        is_probe: Its request is the probe.
        answer: What the provider answered.
        is_dear: The answer used one unit more than was reserved.
        is_journaled: The answer is in the journal.
        by_pause: It is put off by the pause, not by the bucket.
        by_breaker: The bucket refused it since its breaker was open.
        settled: How often its request was settled.
    """

    at: int = DUE
    is_probe: bool = False
    answer: int = OK
    is_dear: bool = False
    is_journaled: bool = False
    by_pause: bool = False
    by_breaker: bool = False
    settled: int = 0


class Bucket(NamedTuple):
    """What is stored of the bucket.

    Attributes:
        debt: Units that time has not made up for.
        held: Whether the request of each session is reserved and not settled.
        orphans: Reservations of dead claims that nobody takes out.
        is_narrow: After a refusal, one request at a time.
        is_away: The breaker is open.
        probe: The session whose request is the probe.
        may_probe: The time of the next probe has come.
        closed_by: The session whose request closed the breaker.
        line: The appointment of each session.
    """

    limit: int
    debt: int
    held: tuple[bool, ...]
    line: tuple[int, ...]
    orphans: int = 0
    is_narrow: bool = False
    is_away: bool = False
    probe: int = NOBODY
    may_probe: bool = False
    closed_by: int = NOBODY


class Faults(NamedTuple):
    """Faults that may still happen."""

    any: int
    crashes: int
    replies: int


class Ghost(NamedTuple):
    """What only the observer sees.

    Attributes:
        debt: What the bucket's debt has to be.
        is_excused: Who had to bring sessions forward has died.
    """

    debt: int = 0
    is_excused: bool = False
    broken: str = ""


class State(NamedTuple):
    """Everything."""

    sessions: tuple[Session, ...]
    bucket: Bucket
    refusals: int
    outages: int
    is_gone: bool  # the provider is away
    is_set: bool  # the limit was set
    is_paused: bool
    forwards: bool  # the client has still to bring forward what its change has freed
    ghost: Ghost
    faults: Faults


Moves = Iterator[tuple[str, int, State]]


def initial(config: Config) -> State:
    """All sessions are due."""
    count = config.sessions
    return State(
        sessions=(Session(),) * count,
        bucket=Bucket(config.limit, 0, (False,) * count, (NO_APPOINTMENT,) * count),
        refusals=config.refusals,
        outages=int(config.outage),
        is_gone=False,
        is_set=config.new_limit is None,
        is_paused=config.paused,
        forwards=False,
        ghost=Ghost(),
        faults=Faults(config.faults, config.crashes, config.replies) if config.faults else Faults(0, 0, 0),
    )


def put(values: tuple, place: int, value: object) -> tuple:
    """The tuple with another value at a place."""
    return (*values[:place], value, *values[place + 1 :])


def canonical(state: State) -> State:
    """One of the states that differ only in which session is which: those of the first two are exchanged."""
    bucket = state.bucket
    rest = tuple(range(2, len(state.sessions)))
    order = (1, 0, *rest)
    swap = {0: 1, 1: 0}
    swapped = state._replace(
        sessions=tuple(state.sessions[i] for i in order),
        bucket=bucket._replace(
            held=tuple(bucket.held[i] for i in order),
            line=tuple(bucket.line[i] for i in order),
            probe=swap.get(bucket.probe, bucket.probe),
            closed_by=swap.get(bucket.closed_by, bucket.closed_by),
        ),
    )
    return min(state, swapped, key=lambda each: (each.sessions, each.bucket))
