"""The commit of a step, with what it does for a hold, a stop and what waits for the end of the execution."""

from __future__ import annotations

from typing import Final

from ..changes import push, spend
from .changes import end_execution, has_result, is_asking, is_job_open, is_mine, leave, touch, with_broken, with_worker
from .values import (
    APPROVED,
    CLOSING,
    COMMITTING,
    FIRST,
    HOLD_END,
    HOLD_OVER,
    LAST,
    LEG,
    NOT_STOPPED,
    NOW,
    UNKNOWN,
    Config,
    Moves,
    Mutant,
    Session,
    State,
    Worker,
)


def _read(state: State, config: Config, index: int, worker: Worker) -> Moves:
    session, me = state.session, index + 1
    if not is_mine(session, worker, me):
        yield "commit.claim lost", me, leave(state, index)
    elif worker.ending == HOLD_OVER and not session.held and not session.cancel:
        yield "commit.resumed", me, with_worker(state, index, worker._replace(at=LEG, ending=NOT_STOPPED))
    else:
        yield "commit.read", me, with_worker(state, index, worker._replace(at=COMMITTING))


def _commit(state: State, config: Config, index: int, worker: Worker) -> Moves:
    session, me = state.session, index + 1
    is_stopped = bool(worker.ending) or session.cancel
    if worker.position == FIRST:
        state = _judged(state, is_stopped)
    following = None
    if is_stopped or worker.position != FIRST:
        done = end_execution(state, config, session)
    else:
        done = _went_on(state, config, me)
        following = Worker(LEG, LAST) if done.session.claim else None
    done = touch(done, config, control=True, journal=True, inbox=True)
    yield "commit.made", me, leave(done, index) if following is None else with_worker(done, index, following)
    if state.faults.crashes:
        yield "fault.c7", me, leave(done, index)._replace(faults=spend(state.faults, "crashes"))
    if state.faults.replies:
        in_doubt = with_worker(done, index, worker._replace(at=CLOSING))
        yield "commit.made, reply lost", me, in_doubt._replace(faults=spend(state.faults, "replies"))


def _judged(state: State, is_stopped: bool) -> State:
    """Look at the calls of the step as they are committed."""
    session, ghost = state.session, state.ghost
    is_approved = session.reply == APPROVED
    if is_approved:
        state = state._replace(ghost=ghost._replace(used=ghost.used + 1))
    if is_stopped:
        return state
    if (is_asking(session) and not has_result(session)) or is_job_open(session):
        state = with_broken(state, "I12: a step is committed with an open request")
    if is_approved and not has_result(session):
        state = with_broken(state, "I12: an approved call is not run")
    if is_approved and session.result == UNKNOWN and not ghost.begun:
        state = with_broken(state, "I12: an approved call that nobody began is unknown")
    return state


def _went_on(state: State, config: Config, me: int) -> State:
    """Make the next step due: with this claim, at the end of the hold, or with a message."""
    session = state.session
    ghost = state.ghost._replace(taken=state.ghost.taken + session.inbox, news=False)
    left = Session(position=LAST, held=session.held)
    state = state._replace(ghost=ghost, is_expired=False)
    if config.carries and (not session.held or config.mutant is Mutant.HELD_CARRIED):
        state = with_broken(state, "I13: a held session goes on") if session.held else state
        return state._replace(session=left._replace(claim=me, lease=session.lease, due=NOW))
    if session.held:
        return state._replace(session=left._replace(due=HOLD_END))
    return state._replace(session=left._replace(due=NOW), queue=push(state.queue, LAST))


COMMIT_RULES: Final = {CLOSING: _read, COMMITTING: _commit}
