"""The rules of time, of the sweep and of the faults of the queue."""

from __future__ import annotations

from ..changes import push, spend
from .changes import is_at, touch
from .values import ABSENT, DEAD, END, EXPIRY, FIRST, HOLD_END, NOW, WAIT, Config, Moves, State


def moves_of_time(state: State, config: Config) -> Moves:
    session = state.session
    if session.claim == DEAD and session.lease:
        yield "lease.ended", 0, state._replace(session=session._replace(lease=False))
    asks = is_at(session, FIRST) and bool(session.asked or session.job_asked)
    if asks and not state.is_expired and (config.expires or session.phase == WAIT):
        yield "time.expired", 0, state._replace(is_expired=True)
    if session.held and not state.is_hold_over:
        yield "time.hold ended", 0, state._replace(is_hold_over=True)


def moves_of_sweep(state: State, config: Config) -> Moves:
    session = state.session
    if session.phase == END or session.due == ABSENT or not _is_time(state):
        return
    if (session.claim and session.lease) or any(state.queue):
        return
    if session.held and not session.cancel and not state.is_hold_over:
        if session.due != HOLD_END:
            yield "sweep.held", 0, state._replace(session=session._replace(due=HOLD_END))
        return
    published = state._replace(session=session._replace(due=NOW), queue=push(state.queue, session.position))
    yield "sweep.published", 0, touch(published, config, control=True)


def _is_time(state: State) -> bool:
    due = state.session.due
    if due == NOW:
        return True
    hold_is_over = state.session.held and state.is_hold_over
    return hold_is_over or (due == EXPIRY and state.is_expired)


def moves_of_queue(state: State) -> Moves:
    if not state.faults.messages:
        return
    faults = spend(state.faults, "messages")
    for position, count in enumerate(state.queue):
        if count:
            yield "fault.message lost", 0, state._replace(queue=push(state.queue, position, -1), faults=faults)
        elif position <= state.session.position:
            yield "fault.message repeated", 0, state._replace(queue=push(state.queue, position), faults=faults)
