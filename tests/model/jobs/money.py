"""The money of jobs under a spend cap: reserved under a job's key, and settled once."""

from __future__ import annotations

from collections.abc import Iterator

from .values import DELETED, DONE, END, LOST, OPEN, READ, UNKNOWN, Config, Key, Mutant, State, Worker


def reserve(state: State, key: Key, *, is_mine: bool) -> State:
    """The state with a reservation; one that is there stays.

    Args:
        is_mine: Who reserves has the claim, which it cannot know.
    """
    strays = state.strays if is_mine or key in state.held else state.strays | {key}
    return state._replace(held=state.held | {key}, strays=strays)


def settle(state: State, key: Key, *, counts: bool) -> State:
    """The state in which a reservation is gone; without one, nothing has changed.

    Args:
        counts: Something is spent: what the job has cost, or what was reserved where nobody knows that.
    """
    if key not in state.held:
        return state
    state = state._replace(held=state.held - {key})
    if not counts:
        return state
    is_again = key in state.counted and key not in state.strays
    return state._replace(counted=state.counted | {key}, counted_twice=state.counted_twice or is_again)


def settle_end(state: State, config: Config, worker: Worker) -> State:
    """The state in which a worker has settled a job by its end in the journal."""
    spent = (READ,) if config.mutant is Mutant.LOST_IS_FREE else (READ, LOST)
    return settle(state, Key(worker.number, worker.retries), counts=state.jobs[worker.number].why in spent)


def is_owed(state: State, config: Config, number: int) -> bool:
    """Whether a worker that reads the journal has to settle a job: who has journaled its end may have died then."""
    job = state.jobs[number]
    return job.ended and Key(number, job.retries) in state.held and config.mutant is not Mutant.SETTLED_ONCE


def money_violations(state: State, config: Config) -> Iterator[str]:
    """The invariants of money that this state breaks, by name."""
    paid = (each.key for each in state.provider if each.status in (OPEN, DONE, DELETED))
    if config.capped and not state.held | state.counted >= frozenset(paid):
        yield "J11: a job is or may be paid, and a cap does not count it"
    if state.counted_twice:
        yield "J12: a job counts twice"


def is_settled(state: State, config: Config) -> bool:
    """Whether nothing stays reserved of a job of which it is known what has become of it."""
    del config
    known = {Key(number, job.retries) for number, job in enumerate(state.jobs) if job.id != UNKNOWN}
    return state.phase == END and not (state.held - state.strays) & known
