"""The values of the model of children: its configuration, and the one immutable state that the rules change."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from ..values import Faults


class Mutant(StrEnum):
    """One breakage of the protocol each."""

    MADE_BEFORE_WAIT = "children are made before the wait, in a transaction of their own"
    MADE_AT_EVERY_WAIT = "every wait makes the children of the step, whether they were made or not"
    MADE_NOT_DUE = "a child is made without its due entry"
    WAIT_WITHOUT_WATCH = "the wait does not watch the journal"
    WAIT_IGNORES_STOP = "the wait does not look for a stop"
    END_WITHOUT_WATCH = "the end of a child does not watch its parent"
    END_TOLD_LATER = "the end of a child reaches its parent in a second transaction"
    END_OVERWRITES = "the end of a child replaces the answer that its parent has"
    END_WAKES_ANY = "the end of a child wakes its parent, whatever that does"
    WAKE_FORGOTTEN = "the end of a child wakes nobody"
    WAKE_AT_LAST = "only the end that answers the last call wakes the parent"
    RESTS_TOO_LONG = "the parent sleeps through one end too many"
    ONLY_STOP_STOPS = "only a stop stops open children; an expiry closes them"
    STOP_NOT_REPEATED = "a child that a dead claim wanted to stop is not told again"
    CLOSED_WITHOUT_CHARGE = "a child that was closed without an end is charged nothing"
    OPEN_AT_COMMIT = "the step is committed while a child is open"
    MADE_UNCOVERED = "a child is made with its reservation, whatever its siblings have spent"
    RESERVATIONS_FORGOTTEN = "what is left for a child counts no reservation of a child that works"
    CLOSING_NOT_KEPT = "children may get all that is left, and the parent's final step nothing"


class Config(NamedTuple):
    """The part of the protocol that one search looks at.

    Attributes:
        calls: Calls of the parent's step that start a child: one or two.
        at_once: Most children that are open at the same time.
        first: The first child that ends stops the others.
        expires: The requests expire, at any moment.
        stop: Somebody may stop the tree, at any moment: the parent, then its children; he may die in between.
        budget: Model calls that are left for the children and the parent's final step; each child reserves one. A model
            call of a child may cost two. None: no limit, and each costs one.
        faults: Most faults of all kinds together.
        crashes, pauses, replies, messages: Most faults of each kind.
        mutant: The breakage.
    """

    calls: int = 1
    at_once: int = 2
    first: bool = False
    expires: bool = False
    stop: bool = False
    budget: int | None = None
    faults: int = 1
    crashes: int = 1
    pauses: int = 1
    replies: int = 1
    messages: int = 1
    mutant: Mutant | None = None


# Where a worker is. LEG is where it decides what comes next in the parent, WORK the same in a child.
IDLE, LEG, STOPPING, WAITING, WAITED, CLOSING, COMMITTING, WORK, ENDING, FINISHING, TELLING = range(11)
# Positions of the parent: the step that has children, and the final one.
FIRST, LAST = range(2)
RUN, WAIT, END = range(3)  # phases
ABSENT, NOW, EXPIRY = range(3)  # what the due entry says
NOBODY, DEAD = 0, 3  # holders of a claim beside workers 1 and 2
OPEN, ENDED, CLOSED = range(3)  # answers: the child's end, or closed by the leg without one
PARENT = -1  # in place of the number of a child


class Session(NamedTuple):
    """What is stored of the parent or of a child."""

    phase: int = RUN
    position: int = FIRST
    claim: int = NOBODY
    lease: bool = False
    due: int = NOW
    cancel: bool = False
    answered: bool = False  # the model's answer is journaled
    rest: int = 0  # ends of children that need not wake the parent while it waits


class Call(NamedTuple):
    """A call of the parent's step, in its journal."""

    is_asked: bool = False
    is_made: bool = False  # the note that its child exists
    is_told: bool = False  # the note that its child was to be stopped
    reply: int = OPEN


class Worker(NamedTuple):
    """A worker and what it knows.

    Attributes:
        at: Where it is.
        on: PARENT, or the number of a child.
        position: Of the claimed step.
        replies: The answers that it has seen.
        told: The children that it has told to stop since its claim.
        target: The child that it is about to tell.
        saw: The parent's phase when a child's end was read.
    """

    at: int = IDLE
    on: int = PARENT
    position: int = FIRST
    replies: tuple[int, ...] = ()
    told: frozenset[int] = frozenset()
    target: int = 0
    saw: int = RUN


class Ghost(NamedTuple):
    """What only the observer sees."""

    paid: int = 0
    made: tuple[int, int] = (0, 0)
    ended: tuple[int, int] = (0, 0)
    heard: tuple[int, int] = (0, 0)  # how often an end reached the parent
    spent: tuple[int, int] = (0, 0)  # model calls of each child
    over: tuple[int, int] = (0, 0)  # what they cost above one each: the call in which a limit is reached
    charged: int = -1  # by the step's commit; -1 before it
    reserved: tuple[int, int] = (0, 0)  # charged in full, since there was no end
    commits: tuple[int, int] = (0, 0)
    broken: str = ""


class State(NamedTuple):
    """Everything."""

    parent: Session
    calls: tuple[Call, ...]
    children: tuple[Session | None, ...]
    workers: tuple[Worker, Worker]
    queue: tuple[int, ...]  # messages of the parent's two steps, then of each child
    ghost: Ghost
    stop: int  # sessions of the tree that the client has stopped
    is_expired: bool
    is_lapsed: bool  # the time in which a child that was told to stop may still end is over
    faults: Faults


Moves = Iterator[tuple[str, int, State]]
RESTING: Final = Worker()


def initial(config: Config) -> State:
    """The parent is submitted and its first message is in the queue."""
    kinds = (config.crashes, config.pauses, config.replies, config.messages)
    return State(
        parent=Session(),
        calls=(Call(),) * config.calls,
        children=(None,) * config.calls,
        workers=(RESTING, RESTING),
        queue=(1, 0, *(0,) * config.calls),
        ghost=Ghost(),
        stop=0,
        is_expired=False,
        is_lapsed=False,
        faults=Faults(config.faults, *kinds) if config.faults else Faults(0, 0, 0, 0, 0),
    )


def canonical(state: State) -> State:
    """One of the two states that differ only in which worker is which."""
    one, two = state.workers
    swapped = state._replace(
        workers=(two, one),
        parent=_swap(state.parent),
        children=tuple(None if child is None else _swap(child) for child in state.children),
    )
    mine, other = _order(state), _order(swapped)
    return swapped if other < mine else state


def _swap(session: Session) -> Session:
    return session._replace(claim=_SWAP[session.claim])


def _order(state: State) -> tuple[object, ...]:
    holders = tuple(-1 if child is None else child.claim for child in state.children)
    workers = tuple((w.at, w.on, w.position, w.replies, sorted(w.told), w.target, w.saw) for w in state.workers)
    return (*workers, state.parent.claim, *holders)


_SWAP: Final = (0, 2, 1, 3)
