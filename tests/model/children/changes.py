"""Changing a state: who writes a watched key throws the watcher back to its reading."""

from __future__ import annotations

from ..changes import spend
from .values import (
    CLOSED,
    CLOSING,
    COMMITTING,
    DEAD,
    END,
    ENDED,
    ENDING,
    FINISHING,
    FIRST,
    LEG,
    NOBODY,
    NOW,
    OPEN,
    PARENT,
    RESTING,
    RUN,
    WAIT,
    WAITING,
    Call,
    Config,
    Mutant,
    Session,
    State,
    Worker,
)


def with_worker(state: State, index: int, worker: Worker) -> State:
    one, two = state.workers
    return state._replace(workers=(worker, two) if index == 0 else (one, worker))


def session_of(state: State, on: int) -> Session:
    """The session that a worker has claimed."""
    child = state.parent if on == PARENT else state.children[on]
    assert child is not None
    return child


def with_session(state: State, on: int, session: Session) -> State:
    if on == PARENT:
        return state._replace(parent=session)
    return state._replace(children=(*state.children[:on], session, *state.children[on + 1 :]))


def with_call(state: State, number: int, call: Call) -> State:
    return state._replace(calls=(*state.calls[:number], call, *state.calls[number + 1 :]))


def push(state: State, on: int, count: int = 1) -> State:
    """A message of the session's present step."""
    place = session_of(state, on).position if on == PARENT else 2 + on
    queue = list(state.queue)
    queue[place] += count
    return state._replace(queue=tuple(queue))


def leave(state: State, index: int) -> State:
    """The worker is idle; what it wrote stays, under a claim nobody holds."""
    for on in (PARENT, *range(len(state.children))):
        if (on == PARENT or state.children[on] is not None) and session_of(state, on).claim == index + 1:
            state = with_session(state, on, session_of(state, on)._replace(claim=DEAD))
    return with_worker(state, index, RESTING)


def touch(state: State, config: Config, on: int, *, control: bool = False, journal: bool = False) -> State:
    """Throw whoever watches a written key back to its reading.

    The parent's wait watches all of its keys, its commit all but the journal, a child's end its own control fields and
    the parent's control fields and journal.
    """
    workers = tuple(_thrown_back(worker, config, on, control, journal) for worker in state.workers)
    return state._replace(workers=(workers[0], workers[1]))


def _thrown_back(worker: Worker, config: Config, on: int, control: bool, journal: bool) -> Worker:
    if on == PARENT and worker.at == WAITING:
        if control or (journal and config.mutant is not Mutant.WAIT_WITHOUT_WATCH):
            return worker._replace(at=LEG)
    elif on == PARENT and worker.at == COMMITTING and control:
        return worker._replace(at=CLOSING)
    if worker.at == FINISHING:
        by_parent = on == PARENT and config.mutant is not Mutant.END_WITHOUT_WATCH
        if by_parent or (on == worker.on and control):
            return worker._replace(at=ENDING)
    return worker


def is_mine(state: State, worker: Worker, me: int) -> bool:
    session = session_of(state, worker.on)
    return session.claim == me and session.phase != END and session.position == worker.position


def cost_of(state: State, number: int) -> int:
    """What a child has spent."""
    return state.ghost.spent[number] + state.ghost.over[number]


def is_covered(state: State, config: Config) -> bool:
    """Whether what is left at this moment covers the reservation of one more child."""
    if config.budget is None or config.mutant is Mutant.MADE_UNCOVERED:
        return True
    left = config.budget - (config.mutant is not Mutant.CLOSING_NOT_KEPT)
    for number, call in enumerate(state.calls):
        if call.reply == ENDED:
            left -= cost_of(state, number)
        elif call.is_made and config.mutant is not Mutant.RESERVATIONS_FORGOTTEN:
            left -= 1
    return left >= 1


def is_open(state: State, number: int) -> bool:
    """Whether the parent's step still waits for the end of this child."""
    parent, call = state.parent, state.calls[number]
    return parent.position == FIRST and parent.phase != END and call.is_asked and call.reply == OPEN


def wake(state: State, on: int) -> State:
    """Bring a session forward: the one function that all causes use, inside their own transactions."""
    session = session_of(state, on)
    return push(with_session(state, on, session._replace(phase=RUN, due=NOW)), on)


def end_child(state: State, config: Config, number: int, saw: int) -> State:
    """End a child and answer its parent, in one transaction.

    Args:
        saw: The phase of the parent as it was read.
    """
    child = session_of(state, number)
    ended = Session(phase=END, position=child.position, claim=NOBODY, due=0)
    ghost = state.ghost._replace(ended=add(state.ghost.ended, number))
    state = touch(with_session(state, number, ended)._replace(ghost=ghost), config, number, control=True)
    return state if config.mutant is Mutant.END_TOLD_LATER else tell_parent(state, config, number, saw)


def tell_parent(state: State, config: Config, number: int, saw: int) -> State:
    """Write the answer, and wake a parent that waits; one that asks no more is left alone."""
    parent, call = state.parent, state.calls[number]
    overwrites = config.mutant is Mutant.END_OVERWRITES and call.reply == CLOSED and parent.position == FIRST
    if not is_open(state, number) and not overwrites:
        return wake(state, PARENT) if config.mutant is Mutant.END_WAKES_ANY else state
    state = with_call(state, number, call._replace(reply=ENDED))
    ghost = state.ghost._replace(heard=add(state.ghost.heard, number, 2 if overwrites else 1))
    state = touch(state._replace(ghost=ghost), config, PARENT, journal=True)
    phase = saw if config.mutant is Mutant.END_WITHOUT_WATCH else state.parent.phase
    others = config.mutant is Mutant.WAKE_AT_LAST and any(each.reply == OPEN for each in state.calls)
    if phase != WAIT or config.mutant is Mutant.WAKE_FORGOTTEN or others:
        return state
    if parent.rest and config.mutant is not Mutant.END_WITHOUT_WATCH:
        return touch(state._replace(parent=parent._replace(rest=parent.rest - 1)), config, PARENT, control=True)
    return touch(wake(state, PARENT), config, PARENT, control=True)


def make_child(state: State, config: Config, number: int) -> State:
    """The whole session of a child, due, with its message."""
    due = 0 if config.mutant is Mutant.MADE_NOT_DUE else NOW
    ghost = state.ghost._replace(made=add(state.ghost.made, number))
    return push(with_session(state, number, Session(due=due))._replace(ghost=ghost), number)


def stop_session(state: State, config: Config, on: int) -> State:
    """Leave a stop for who works on a session; a child that nobody works on ends in the stop's transaction."""
    session = session_of(state, on)
    if session.phase == END or session.cancel:
        return state
    has_worker = session.claim and session.lease
    if not has_worker and on != PARENT and not session.answered:
        return end_child(state, config, on, state.parent.phase)
    stopped = with_session(state, on, session._replace(cancel=True))
    stopped = stopped if has_worker else wake(stopped, on)
    return touch(stopped, config, on, control=True)


def with_broken(state: State, name: str) -> State:
    """Keep the first invariant that a move broke."""
    return state._replace(ghost=state.ghost._replace(broken=state.ghost.broken or name))


def spend_fault(state: State, kind: str) -> State:
    return state._replace(faults=spend(state.faults, kind))


def add(counts: tuple[int, int], number: int, by: int = 1) -> tuple[int, int]:
    """Count for one of the two children."""
    return (counts[0] + by, counts[1]) if number == 0 else (counts[0], counts[1] + by)
