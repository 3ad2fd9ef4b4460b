"""The values of the model of replicas: its configuration, and the one immutable state that the rules change."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple


class Mutant(StrEnum):
    """One breakage of the protocol each."""

    ACT_UNCONFIRMED = "an action is acknowledged without a confirmation"
    AGAIN_UNCONFIRMED = "an action that was applied before is acknowledged without a confirmation"
    DELETION_UNCONFIRMED = "a deletion is acknowledged without a confirmation"
    RESULT_UNCONFIRMED = "a result is given to a program without a confirmation"
    CALLBACK_UNCONFIRMED = "a callback is made without a confirmation"
    REQUEST_UNCONFIRMED = "the callback of a request is made without a confirmation"
    BEGIN_UNCONFIRMED = "a call with effects begins without a confirmation"
    BEGIN_KEPT = "a call that was not confirmed does not begin, and its begin record stays"
    SAFE_FIRST = "`safe` is written before the confirmation"
    SAFE_OF_ANOTHER = "`safe` of another version counts"
    OTHER_CONNECTION = "WAIT is sent on a connection that has written nothing"
    OTHER_PRIMARY = "a confirmation by one primary counts for what was written to another"
    FOREIGN_COUNTED = "a client that acknowledges like a replica counts as one"


class Config(NamedTuple):
    """The part of the protocol that one search looks at.

    Attributes:
        is_keyed: The tool is keyed; else it is unsafe.
        asks: The step asks a person before its call, and a callback tells of it.
        acts: What clients do besides the submit, at any moment at which it is possible.
        workers: One or two.
        foreign: At first a client is connected that acknowledges like a replica.
        faults: Most faults of all kinds together.
        failovers, crashes, replies: Most faults of each kind.
        mutant: The breakage.
    """

    is_keyed: bool = False
    asks: bool = False
    acts: tuple[Act, ...] = ()
    workers: int = 2
    foreign: bool = False
    faults: int = 2
    failovers: int = 1
    crashes: int = 1
    replies: int = 1
    mutant: Mutant | None = None


class Act(IntEnum):
    """What ends outside Redis, besides calls of tools."""

    SUBMIT = 0
    STOP = 1
    DELETE = 2
    RETRY = 3
    READ = 4
    CALLBACK = 5
    TELL = 6


# Places of an act. WROTE: it has a reply of Redis, and is not confirmed; AGAIN: the same, and it was applied before.
BEFORE, WROTE, AGAIN, OVER = range(4)
# Places of a worker. READY: its begin record is confirmed; COMMITTING: it knows the result; ENDED: it has committed.
IDLE, CLAIMED, JOURNALED, BEGUN, READY, COMMITTING, ENDED, DEAD = range(8)
NOBODY: Final = -1
UNKNOWN: Final = -1  # the result of a call that may have happened
NOT_RUN: Final = -2


class Store(NamedTuple):
    """What is stored of the one session.

    Attributes:
        is_deleted: Its deletion mark is there, and nothing else.
        claim: The worker that has the step.
        answer: The answer of the model that is journaled, counted from 1; 0: none.
        asked: The answer about whose call a person was asked; 0: none.
        has_reply: The person has answered.
        begun: The worker whose begin record is there.
        ends: The result of each end of the execution, as an answer, UNKNOWN or NOT_RUN; their number is the version.
        is_ended: It has ended, and was not retried since.
        safe: The version that is known to be confirmed.
    """

    exists: bool = False
    is_deleted: bool = False
    claim: int = NOBODY
    answer: int = 0
    asked: int = 0
    has_reply: bool = False
    is_stopped: bool = False
    begun: int = NOBODY
    ends: tuple[int, ...] = ()
    is_ended: bool = False
    safe: int = 0


class Worker(NamedTuple):
    """A worker.

    Attributes:
        is_behind: Its last round trip went to the former primary.
        answer: The answer that it works on.
        result: What it is about to commit; the version, where it has.
        is_again: It has replaced the begin record of another claim.
        is_late: A stop was acknowledged before its call began.
    """

    at: int = IDLE
    is_behind: bool = False
    answer: int = 0
    result: int = 0
    is_again: bool = False
    is_late: bool = False


class Caller(NamedTuple):
    """A client with its action, a program that reads, or a worker that makes a callback.

    Attributes:
        is_behind: Its last round trip went to the former primary.
        value: What it has read.
    """

    at: int = BEFORE
    is_behind: bool = False
    value: tuple[int, int] = (0, 0)


class Faults(NamedTuple):
    """Faults that may still happen."""

    any: int
    failovers: int
    crashes: int
    replies: int


class State(NamedTuple):
    """Everything.

    Attributes:
        now: What the primary has stored.
        replica: What the replica has, to which a failover goes back. It catches up at any moment, or stands still.
        former: What the former primary has stored; None before the failover.
        callers: By their act.
        is_foreign: A client is connected that acknowledges like a replica.
        models: How often the model has answered.
        effects: The answers whose calls had their effect, in order.
        broken: What a move has broken.
    """

    now: Store
    replica: Store
    former: Store | None
    workers: tuple[Worker, ...]
    callers: tuple[Caller, ...]
    is_foreign: bool
    models: int
    effects: tuple[int, ...]
    broken: str
    faults: Faults


Moves = Iterator[tuple[str, int, State]]


def initial(config: Config) -> State:
    """Nothing is stored, and a client is about to submit."""
    return State(
        now=Store(),
        replica=Store(),
        former=None,
        workers=(Worker(),) * config.workers,
        callers=(Caller(),) * len(Act),
        is_foreign=config.foreign,
        models=0,
        effects=(),
        broken="",
        faults=Faults(config.faults, config.failovers, config.crashes, config.replies),
    )


def sides(state: State, *, is_behind: bool) -> Iterator[tuple[bool, Store]]:
    """The servers that a round trip may reach: its own, or the primary of now; each with what it has stored."""
    if is_behind and state.former is not None:
        yield True, state.former
    yield False, state.now


def stored(state: State, store: Store, *, is_behind: bool) -> State:
    """The state after a write to one of the servers."""
    if is_behind:
        return state._replace(former=store)
    # Without another failover to come, it does not matter what the replica has.
    may_fail_over = state.faults.any and state.faults.failovers
    return state._replace(now=store, replica=state.replica if may_fail_over else store)


def confirmations(state: State, config: Config, *, is_behind: bool) -> Iterator[tuple[bool, State]]:
    """How a confirmation of what was written may end: whether it counts, and the state behind it.

    The former primary has no replica any more.
    """
    confirmed, mutant = state._replace(replica=state.now), config.mutant
    yield False, state
    if mutant is Mutant.OTHER_CONNECTION:
        yield True, state
    elif is_behind:
        if mutant is Mutant.OTHER_PRIMARY:
            yield True, confirmed
    elif not state.is_foreign:
        yield True, confirmed
    elif mutant is Mutant.FOREIGN_COUNTED:
        yield True, state


def spend(state: State, kind: str) -> State | None:
    """The state with one fault less to come; None: none of this kind may happen any more."""
    faults = state.faults
    if not faults.any or not getattr(faults, kind):
        return None
    return state._replace(faults=faults._replace(any=faults.any - 1, **{kind: getattr(faults, kind) - 1}))


def canonical(state: State) -> State:
    """One of the two states that differ only in which worker is which."""
    if len(state.workers) == 1:
        return state
    swap = {0: 1, 1: 0, NOBODY: NOBODY}

    def swapped(store: Store) -> Store:
        return store._replace(claim=swap[store.claim], begun=swap[store.begun])

    other = state._replace(
        now=swapped(state.now),
        replica=swapped(state.replica),
        former=None if state.former is None else swapped(state.former),
        workers=(state.workers[1], state.workers[0]),
    )
    return min(state, other, key=lambda each: (each.workers, each.now, each.replica, each.former or Store()))
