"""The state of the model of rewinds: a session, one worker, a request to rewind that comes twice, and a reader."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

IDLE: Final = 0
RUN: Final = 1
WAIT: Final = 2

# Where a copy of the request to rewind is.
ASKED: Final = 0
ENDING: Final = 1
LOOKED: Final = 2
READ: Final = 3
SAVED: Final = 4
OVER: Final = 5
DEAD: Final = 6

STEPS: Final = 2
REWIND: Final = 99


class Mutant(StrEnum):
    """A rule of rewinds that is broken."""

    UNWATCHED = "a rewind does not watch the session between its look and its write"
    VERSION_IGNORED = "a rewind does not compare the version that its caller names"
    VERSION_BEHIND_END = "a rewind that ends a wait goes on from whatever version it finds then"
    RUNNING_REWOUND = "a rewind does not look whether an execution runs"
    WAIT_REWOUND = "a rewind does not end an execution that waits"
    NO_OPERATION_ID = "a rewind leaves no operation id"
    ID_BEHIND_SAVE = "the operation id of a rewind is written behind it"
    RESOLVED_AGAIN = "a rewind that comes again is compared with the step that its number means now"
    SAME_GENERATION = "a rewind cuts the list of messages"
    CACHE_IGNORES_GENERATION = "a worker reads on from what it has cached, whatever has become of the list"
    NO_EVENT = "a rewind tells no reader"
    RETRIED = "the last execution can be retried behind a rewind"
    OPERATIONS_TAKEN_BACK = "a rewind forgets the messages that came behind its step"
    SPENT_TAKEN_BACK = "a rewind takes back what was spent"
    MESSAGES_DROPPED = "a rewind does not keep the messages that go"
    STEPS_STAY_PACKED = "a rewind leaves steps packed over messages that go"


class Config(NamedTuple):
    """What happens in a search.

    Attributes:
        messages: Further messages, each sent twice at any moment.
        asks: The first step of each execution waits for an answer.
        stops: Somebody stops an execution, and retries it.
        is_expected: The rewind names the version at which its caller has decided.
        is_relative: It names a step of the latest execution; else one of the first.
        faults: Lost replies and deaths of clients.
    """

    messages: int = 1
    asks: bool = False
    stops: bool = False
    is_expected: bool = True
    is_relative: bool = False
    faults: int = 1
    mutant: Mutant | None = None


class Step(NamedTuple):
    """A committed step: where its execution has left the conversation, and whether its record is packed over it."""

    execution: int
    number: int
    generation: int
    length: int
    is_packed: bool = True


class Session(NamedTuple):
    """What Redis has. A line is a message by its number, or an answer, `10 * execution + step`.

    Attributes:
        journal: The conversation that the journaled answer of the open step was asked with; None without one.
        known: Ids of operations.
        old: Messages of former generations.
        place: The step that a rewind went to, by execution and number; None before one.
        told: How many events tell of a rewind.
    """

    phase: int = RUN
    version: int = 1
    execution: int = 1
    done: int = 0
    lines: tuple[int, ...] = (1,)
    generation: int = 0
    is_rewound: bool = False
    can_retry: bool = False
    is_stopping: bool = False
    is_answered: bool = False
    journal: tuple[int, ...] | None = None
    inbox: tuple[int, ...] = ()
    known: frozenset[int] = frozenset({1})
    spent: int = 0
    steps: tuple[Step, ...] = ()
    old: tuple[tuple[int, ...], ...] = ()
    place: tuple[int, int] | None = None
    told: int = 0


class Worker(NamedTuple):
    """A worker with what it caches: generation and messages; None without a cache."""

    is_busy: bool = False
    version: int = 0
    cached: tuple[int, tuple[int, ...]] | None = None


class Copy(NamedTuple):
    """One delivery of the request to rewind.

    Attributes:
        version: That the session must have.
        place: The step, by execution and number.
        noted: The execution that was stopped; the version that was read under WATCH.
    """

    at: int = ASKED
    version: int = 0
    place: tuple[int, int] = (0, 0)
    noted: int = 0


class Reader(NamedTuple):
    """Somebody who reads the conversation on from a cursor."""

    shown: tuple[int, ...] = (1,)
    told: int = 0


class Past(NamedTuple):
    """What a step has left, as it was committed."""

    lines: tuple[int, ...]
    known: frozenset[int]
    spent: int


class Ghost(NamedTuple):
    """What really happened.

    Attributes:
        decided: The version, the execution and the conversation at which the caller has decided; None before.
        delivered: Messages in the order in which executions got them.
    """

    decided: tuple[int, int, tuple[int, ...]] | None = None
    saved: tuple[tuple[tuple[int, int], Past], ...] = ()
    accepted: frozenset[int] = frozenset({1})
    delivered: tuple[int, ...] = (1,)
    rewinds: int = 0
    commits: int = 0
    broken: str = ""


class State(NamedTuple):
    """Everything."""

    session: Session = Session()
    worker: Worker = Worker()
    copies: tuple[Copy, ...] = (Copy(), Copy())
    reader: Reader = Reader()
    ghost: Ghost = Ghost()
    sent: tuple[int, ...] = ()
    has_stopped: bool = False
    has_retried: bool = False
    faults: int = 0


Moves = Iterator[tuple[str, int, State]]


def initial(config: Config) -> State:
    """A first message has started an execution."""
    return State(sent=(0,) * config.messages, faults=config.faults)


def canonical(state: State) -> State:
    """Copies of the request are alike."""
    one, other = state.copies
    return state if one <= other else state._replace(copies=(other, one))


def broken(state: State, what: str) -> State:
    """The same with the first thing that went wrong."""
    return state if state.ghost.broken else state._replace(ghost=state.ghost._replace(broken=what))


def start(session: Session, message: int) -> Session:
    """The session with an execution that a message starts."""
    return session._replace(
        phase=RUN, execution=message, done=0, lines=(*session.lines, message), is_rewound=False, can_retry=False,
        is_stopping=False, is_answered=False, journal=None,
    )  # fmt: skip
