"""The wait: the transaction in which a step gives claim, lease and message back and keeps its journal."""

from __future__ import annotations

from typing import Final

from ..changes import spend
from .changes import has_result, is_mine, leave, touch, view_of, with_worker
from .values import (
    ABSENT,
    CLOSING,
    EXPIRY,
    FIRST,
    NOBODY,
    OPEN,
    STOPPED,
    WAIT,
    WAITED,
    WAITING,
    Config,
    Moves,
    Mutant,
    Session,
    State,
    Worker,
)


def is_open_for(session: Session, worker: Worker) -> bool:
    """Whether a request is open, as this leg knows it."""
    return _is_approval_open(session, worker) or _is_job_open(session, worker)


def _is_approval_open(session: Session, worker: Worker) -> bool:
    return bool(session.asked) and worker.view.reply == OPEN and not has_result(session)


def _is_job_open(session: Session, worker: Worker) -> bool:
    return bool(session.job_begun) and worker.view.job_reply == OPEN


def sees_expiry(state: State, config: Config, worker: Worker) -> bool:
    """Whether a request that is open, as this leg knows it, has expired."""
    looks = config.expires and config.mutant is not Mutant.EXPIRY_IGNORED
    return looks and state.is_expired and is_open_for(state.session, worker)


def start_wait(state: State, config: Config, index: int, worker: Worker) -> Moves:
    """Read for the wait: it watches session, ctl, journal and inbox. Without an open request, go to the commit."""
    me, view = index + 1, view_of(state, config)
    if worker.position != FIRST or worker.ending or not is_open_for(state.session, worker):
        yield "leg.closed", me, with_worker(state, index, worker._replace(at=CLOSING))
    elif state.session.cancel and config.mutant is not Mutant.WAIT_IGNORES_STOP:
        yield "wait.sees the stop", me, with_worker(state, index, worker._replace(ending=STOPPED))
    elif view != worker.view:
        seen = state._replace(ghost=state.ghost._replace(news=False))
        yield "wait.sees news", me, with_worker(seen, index, worker._replace(view=view))
    else:
        yield "wait.read", me, with_worker(state, index, worker._replace(at=WAITING))


def _wait(state: State, config: Config, index: int, worker: Worker) -> Moves:
    me, session = index + 1, state.session
    removes_due = config.mutant is Mutant.WAIT_NOT_DUE and not config.expires
    waiting = session._replace(
        phase=WAIT,
        claim=NOBODY,
        lease=False,
        due=ABSENT if removes_due else EXPIRY,
        job_asked=session.job_asked or bool(session.job_begun),
    )
    # A request without an expiry is looked at again after thirty days, and then waits again.
    done = state._replace(session=waiting, is_expired=state.is_expired and config.expires)
    done = touch(leave(done, index), config, control=True, journal=True)
    yield "wait.made", me, done
    if state.faults.crashes:
        yield "fault.w1", me, done._replace(faults=spend(state.faults, "crashes"))
    if state.faults.replies:
        lost = with_worker(done, index, worker._replace(at=WAITED))
        yield "wait.made, reply lost", me, lost._replace(faults=spend(state.faults, "replies"))


def _waited(state: State, config: Config, index: int, worker: Worker) -> Moves:
    """Read after a lost reply: the wait took its own claim away, so there is nothing left to do."""
    if config.mutant is Mutant.WAIT_REPEATED and state.session.position == FIRST and not state.session.cancel:
        yield from _wait(state, config, index, worker)
    elif not is_mine(state.session, worker, index + 1):
        yield "wait.made already", index + 1, leave(state, index)


WAIT_RULES: Final = {WAITING: _wait, WAITED: _waited}
