"""The state of the model of budgets: one session, two workers, and clients that change its limit and hold it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

STEPS: Final = 3
"""Steps that the execution takes when no limit ends it; the last one completes it."""
NOTHING: Final = -1
"""No limit is in the control field."""

RUN, WAIT, END = range(3)
NOBODY, DEAD = 0, 3  # beside the claims 1 and 2 of the two workers
CLEAR, HELD, MARKED = range(3)  # what `cancel` says
IDLE, CLAIMING, CLAIMED, ASKING, ANSWERED, COMMITTING, CLOSING, PARKING = range(8)
UNASKED, READING, WRITING, ANSWERING = range(4)


class Mutant(StrEnum):
    """A rule of the protocol that is broken."""

    COMMIT_IGNORES_MARK = "the script of a commit does not compare the mark"
    CLAIM_IGNORES_MARK = "the script of a claim does not compare the mark"
    COMMIT_UNWATCHED = "a commit does not watch the control fields"
    WAIT_UNWATCHED = "a wait does not watch the control fields"
    WAITS_ALL_THE_SAME = "a wait saves the new limit and does not look whether it is reached"
    TAKEN_IN_BLINDLY = "a commit removes the field and saves the limit that its step has loaded"
    NOT_DECIDED_AGAIN = "a commit saves the new limit and ends as its step has decided before"
    NOT_GIVEN_BACK = "a step that a limit has kept from asking, or from its calls, ends although that limit was raised"
    FIELD_STAYS = "the end of an execution leaves the field"
    CHANGE_UNWATCHED = "a change does not watch the control fields"
    RESUME_CLEARS_MARK = "the end of a hold clears the mark of a change"
    NO_WAKE = "a change does not wake a session that waits"


class Config(NamedTuple):
    """What may happen in one search.

    Attributes:
        limit: Steps that the execution may take at first.
        changes: The limits that a client sets one after another, each at any moment.
        waits: The first step waits for an answer.
        hold: Somebody may hold the session, and resume it.
        faults: Crashes, pauses longer than the lease and lost replies together.
    """

    limit: int = 2
    changes: tuple[int, ...] = (3,)
    waits: bool = False
    hold: bool = False
    faults: int = 1
    mutant: Mutant | None = None


class Session(NamedTuple):
    """What Redis holds."""

    limit: int
    done: int = 0
    phase: int = RUN
    claim: int = NOBODY
    lease: bool = False
    cancel: int = CLEAR
    field: int = NOTHING
    held: bool = False
    answer: bool = False  # of the model, journaled
    reply: bool = False  # to the request of the first step


class Worker(NamedTuple):
    """What a worker knows: the limit that it has loaded, whether it has an answer, and whether a limit stops it."""

    at: int = IDLE
    limit: int = 0
    has_answer: bool = False
    stops: bool = False


class Client(NamedTuple):
    """The client that changes limits: how many it has set, and how far it is with the next one."""

    at: int = UNASKED
    number: int = 0


class State(NamedTuple):
    """Everything. `truth` is the limit that holds; the flags are what only the observer sees."""

    session: Session
    truth: int
    workers: tuple[Worker, Worker] = (Worker(), Worker())
    client: Client = Client()
    holds: int = 0
    faults: int = 0
    claimed_under: tuple[int, int] = (0, 0)  # the limit that held when each worker claimed
    over_budget: bool = False
    ended_wrongly: bool = False
    changed_late: bool = False


Moves: TypeAlias = Iterator[tuple[str, int, State]]


def initial(config: Config) -> State:
    """Submitted: the first step is due."""
    return State(Session(config.limit), config.limit, faults=config.faults)


def canonical(state: State) -> State:
    """One of the two states that differ only in which worker is which."""
    one, two = state.workers
    claim = {1: 2, 2: 1}.get(state.session.claim, state.session.claim)
    swapped = (two, one, state.claimed_under[1], state.claimed_under[0], claim)
    if swapped < (one, two, *state.claimed_under, state.session.claim):
        return state._replace(
            workers=(two, one), claimed_under=state.claimed_under[::-1], session=state.session._replace(claim=claim)
        )
    return state


def limit_of(session: Session) -> int:
    """The limit that a reader of the session finds."""
    return session.limit if session.field == NOTHING else session.field
