"""The state of the model of jobs at a provider: one step, two workers, a provider, and somebody who stops it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

RUN, END = range(2)
NOBODY, DEAD = 0, 3  # beside the claims 1 and 2 of the two workers
NOW, LATER, NEVER = range(3)  # when the step is due
UNKNOWN: Final = -1
"""A job whose creation was intended, and whose id nobody has journaled."""
IDLE, CLAIMED, INTENDED, CREATED, FINDING, COLLECTING, COLLECTED, FAILED, LOST, READ, LEAVING, CLOSING = range(12)
RESERVED, SETTLING = range(12, 14)  # under a spend cap alone
OPEN, DONE, BROKEN, CANCELLED, DELETED = range(5)  # a job at the provider


class Mutant(StrEnum):
    """A rule of the protocol that is broken."""

    NO_INTENTION = "a job is created before its creation is journaled"
    UNCLAIMED_INTENTION = "a worker without the claim creates a job"
    ID_NOT_INDEXED = "the id of a job is journaled, and not in the index of jobs"
    UNKNOWN_IS_FINAL = "a job without an id is waited for"
    SEARCH_BELIEVED = "a search finds no job while its creator may still create it, and is believed"
    ANSWER_KEEPS_JOB = "an answer is journaled, and its job has not ended"
    CLEANS_EVERYTHING = "whoever cleans up cancels jobs of steps that run"
    CHARGES_ANSWERS = "whoever cleans up charges the answers of jobs that were collected"
    CHARGE_KEEPS_JOB = "whoever cleans up charges the answer of a job, and leaves it open in the journal"
    END_OVERLOOKED = "a job is asked again although another worker has journaled its answer"
    STOP_WAITS = "a stop does not wake a step that was put off"
    ENDLESS_SEARCH = "a search that cannot tell goes on behind the window"
    FIRST_INTENTION = "a job that is created once more is looked for among those of the first time"
    KEY_OF_NOW = "the key of a job has the retries of now, in place of those of its intention"
    SETTLED_ONCE = "who finds an end in the journal does not settle it again"
    REFUSED_IS_FREE = "a worker that may not ask settles the job as one that has cost nothing, also without the claim"
    LOST_IS_FREE = "a job of which nobody knows whether it was created is settled as one that has cost nothing"


class Config(NamedTuple):
    """What may happen in one search.

    Attributes:
        listed: Jobs can be found by their key, as those of a batch can.
        blurred: A listed job can be told from others of its time only when it has ended, and another may never end.
        rejected: The first answer cannot be used.
        broken: Jobs that fail at the provider, or are forgotten there.
        stop: Somebody may stop the execution.
        retry: Somebody may retry an execution that was stopped, once.
        capped: Jobs reserve money under a spend cap.
        faults: Crashes, pauses longer than the lease and lost replies together.
    """

    listed: bool = False
    blurred: bool = False
    rejected: bool = False
    broken: int = 0
    stop: bool = False
    retry: bool = False
    capped: bool = False
    faults: int = 1
    mutant: Mutant | None = None


class Journaled(NamedTuple):
    """A job as the journal of the step has it.

    Attributes:
        retries: Of the execution when the job was intended first.
        again: It was intended once more: it may have been created later.
    """

    id: int = UNKNOWN
    ended: bool = False
    why: int = NOBODY  # LOST, FAILED or READ
    retries: int = 0
    again: bool = False


class Key(NamedTuple):
    """The key of a job, under which it is found, and its money reserved."""

    number: int
    retries: int


class Worker(NamedTuple):
    """What a worker knows: the number of the job in the journal, its id at the provider, and the retries in its key."""

    at: int = IDLE
    number: int = 0
    id: int = UNKNOWN
    retries: int = 0
    again: bool = False


class Created(NamedTuple):
    """A job at the provider: for which number of the journal it was created, and what has become of it.

    Attributes:
        retries: In its key.
        again: It was created behind the time of the first intention.
    """

    number: int
    status: int = OPEN
    retries: int = 0
    again: bool = False

    @property
    def key(self) -> Key:
        """The key under which it was created."""
        return Key(self.number, self.retries)


class State(NamedTuple):
    """Everything. The flags are what only the observer sees.

    Attributes:
        answer: The job whose answer is journaled; UNKNOWN without one.
        used: Jobs whose answer was rejected.
        charged: Jobs whose answer was charged to the session: by a commit or a rejection, or by whoever cancelled it.
        index: Ids of jobs that are to be cleaned up once their step is past, each with the retries in its key.
        held: Keys of the reservations that are not settled.
        strays: Keys for which a worker has reserved that had lost its claim: they may count too much.
        counted: Keys that count as spent, with a price or as they were reserved.
    """

    jobs: tuple[Journaled, ...] = ()
    provider: tuple[Created, ...] = ()
    index: frozenset[tuple[int, int]] = frozenset()
    answer: int = UNKNOWN
    phase: int = RUN
    claim: int = NOBODY
    lease: bool = False
    due: int = NOW
    stopped: bool = False
    workers: tuple[Worker, Worker] = (Worker(), Worker())
    used: frozenset[int] = frozenset()
    faults: int = 0
    broken: int = 0
    cancelled_running: bool = False
    paid_twice: bool = False
    charged: frozenset[int] = frozenset()
    charged_twice: bool = False
    retries: int = 0
    is_blurred: bool = False
    held: frozenset[Key] = frozenset()
    strays: frozenset[Key] = frozenset()
    counted: frozenset[Key] = frozenset()
    counted_twice: bool = False


Moves: TypeAlias = Iterator[tuple[str, int, State]]


def initial(config: Config) -> State:
    """Submitted: the step is due."""
    return State(faults=config.faults, broken=config.broken, is_blurred=config.blurred)


def canonical(state: State) -> State:
    """One of the two states that differ only in which worker is which."""
    one, two = state.workers
    claim = {1: 2, 2: 1}.get(state.claim, state.claim)
    if (two, one, claim) < (one, two, state.claim):
        return state._replace(workers=(two, one), claim=claim)
    return state
