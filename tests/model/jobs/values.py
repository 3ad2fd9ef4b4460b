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
    END_OVERLOOKED = "a job is asked again although another worker has journaled its answer"
    STOP_WAITS = "a stop does not wake a step that was put off"


class Config(NamedTuple):
    """What may happen in one search.

    Attributes:
        listed: Jobs can be found by their key, as those of a batch can.
        rejected: The first answer cannot be used.
        broken: Jobs that fail at the provider, or are forgotten there.
        stop: Somebody may stop the execution.
        faults: Crashes, pauses longer than the lease and lost replies together.
    """

    listed: bool = False
    rejected: bool = False
    broken: int = 0
    stop: bool = False
    faults: int = 1
    mutant: Mutant | None = None


class Journaled(NamedTuple):
    """A job as the journal of the step has it."""

    id: int = UNKNOWN
    ended: bool = False
    why: int = NOBODY  # LOST, FAILED or READ


class Worker(NamedTuple):
    """What a worker knows: the number of the job in the journal, and its id at the provider."""

    at: int = IDLE
    number: int = 0
    id: int = UNKNOWN


class Created(NamedTuple):
    """A job at the provider: for which number of the journal it was created, and what has become of it."""

    number: int
    status: int = OPEN


class State(NamedTuple):
    """Everything. The flags are what only the observer sees.

    Attributes:
        index: Ids of jobs that are to be cleaned up once their step is past.
        answer: The job whose answer is journaled; UNKNOWN without one.
        used: Jobs whose answer was rejected.
        charged: Jobs whose answer was charged to the session: by a commit or a rejection, or by whoever cancelled it.
    """

    jobs: tuple[Journaled, ...] = ()
    provider: tuple[Created, ...] = ()
    index: frozenset[int] = frozenset()
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


Moves: TypeAlias = Iterator[tuple[str, int, State]]


def initial(config: Config) -> State:
    """Submitted: the step is due."""
    return State(faults=config.faults, broken=config.broken)


def canonical(state: State) -> State:
    """One of the two states that differ only in which worker is which."""
    one, two = state.workers
    claim = {1: 2, 2: 1}.get(state.claim, state.claim)
    if (two, one, claim) < (one, two, state.claim):
        return state._replace(workers=(two, one), claim=claim)
    return state
