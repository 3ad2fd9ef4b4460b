"""The calls of the step: the one that asks for an approval, and the one whose result comes later."""

from __future__ import annotations

from typing import Final

from ..values import Effect
from .changes import (
    has_result,
    is_asking,
    is_at,
    is_job_open,
    is_mine,
    leave,
    touch,
    view_of,
    with_broken,
    with_round,
    with_worker,
)
from .values import (
    APPROVED,
    ASKING,
    DENIED,
    EXPIRED,
    FIRST,
    LEG,
    NO_RESULT,
    NOBODY,
    OK,
    OPEN,
    OTHER_ARGUMENTS,
    RAN,
    RUNNING,
    STARTED,
    STARTING,
    STOPPED,
    SUPERSEDED,
    UNKNOWN,
    Config,
    Moves,
    Mutant,
    State,
    Worker,
)
from .waits import sees_expiry


def next_call(state: State, config: Config, index: int, worker: Worker) -> Moves:
    session, me, view = state.session, index + 1, worker.view
    if config.external and _is_job_next(state, config, index):
        yield from _job(state, config, index, worker)
    elif session.result == SUPERSEDED and session.asked:
        dropped = touch(state._replace(session=session._replace(result=NO_RESULT)), config, journal=True)
        yield "leg.dropped a failure", me, with_worker(dropped, index, worker)
    elif config.approval and not session.asked and not session.result:
        yield from _ask(state, config, index, worker)
    elif view.denied and is_asking(session):
        denied = touch(state._replace(session=session._replace(reply=DENIED)), config, journal=True)
        yield "leg.denied", me, with_worker(denied, index, worker._replace(view=view_of(denied, config)))
    elif sees_expiry(state, config, worker):
        yield from _expire(state, config, index, worker)
    elif config.approval and view.reply == APPROVED and not has_result(session):
        yield from _begin(state, config, index, worker)


def _is_job_next(state: State, config: Config, index: int) -> bool:
    session, me = state.session, index + 1
    if not session.job_begun:
        return True
    unfinished = session.job_begun != me and not session.job_started and session.job_reply == OPEN
    again = config.effect is Effect.KEYED or config.mutant is Mutant.EXTERNAL_STARTED_AGAIN
    return unfinished and again


def _job(state: State, config: Config, index: int, worker: Worker) -> Moves:
    """Begin the external call: request and begin record in one transaction, before the tool runs."""
    session, me = state.session, index + 1
    if session.cancel:
        yield "tool.forbidden", me, with_worker(state, index, worker._replace(ending=STOPPED))
        return
    opens = config.mutant is not Mutant.EXTERNAL_OPENED_LATE
    begun = session._replace(job_begun=me, job_asked=session.job_asked or opens)
    touched = touch(state._replace(session=begun), config, journal=True)
    event = "external.taken over" if session.job_begun else "external.begun"
    yield event, me, with_worker(touched, index, worker._replace(at=STARTING, asked=not session.job_begun))


def _start(state: State, config: Config, index: int, worker: Worker) -> Moves:
    ghost = state.ghost
    jobs = 1 if config.effect is Effect.KEYED else ghost.jobs + 1
    started = state._replace(ghost=ghost._replace(jobs=jobs))
    yield "external.started", index + 1, with_worker(started, index, worker._replace(at=STARTED))


def _started(state: State, config: Config, index: int, worker: Worker) -> Moves:
    if is_at(state.session, FIRST):
        state = touch(state._replace(session=state.session._replace(job_started=True)), config, journal=True)
    yield "external.journaled", index + 1, with_worker(state, index, worker._replace(at=LEG))


def _ask(state: State, config: Config, index: int, worker: Worker) -> Moves:
    """Ask by policy at once; a tool that asks is begun first."""
    session, me = state.session, index + 1
    if not config.asked_by_tool:
        yield from _opened(state, config, index, worker)
    elif session.cancel:
        yield "tool.forbidden", me, with_worker(state, index, worker._replace(ending=STOPPED))
    elif session.begun in (NOBODY, me) or config.effect is Effect.KEYED:
        begun = touch(state._replace(session=session._replace(begun=me)), config, journal=True)
        yield "tool.begun to ask", me, with_worker(begun, index, worker._replace(at=ASKING))
    else:
        yield "tool.unknown", me, _with_result(state, config, UNKNOWN)


def _opened(state: State, config: Config, index: int, worker: Worker) -> Moves:
    """Journal the request: it watches ctl, and removes the begin record of the tool that asked."""
    session, me = state.session, index + 1
    if not is_mine(session, worker, me):
        yield "leg.claim lost", me, leave(state, index)
        # Or its tool fails, as one does that was paused past its timeout; a result needs no claim.
        counts = config.mutant is Mutant.LATE_FAILURE_COUNTS
        failed = _with_result(state, config, UNKNOWN if counts else SUPERSEDED)
        yield "tool.failed late", me, leave(failed, index)
        return
    keeps_record = config.mutant is Mutant.BEGIN_RECORD_KEPT
    opened = session._replace(asked=session.answer, begun=session.begun if keeps_record else NOBODY)
    ghost = state.ghost._replace(opened=with_round(state.ghost.opened, session.round))
    state = touch(state._replace(session=opened, ghost=ghost), config, journal=True)
    yield "request.opened", me, with_worker(state, index, worker._replace(at=LEG, asked=True))


def _expire(state: State, config: Config, index: int, worker: Worker) -> Moves:
    """Journal the expiry. An answer that came before it stays: HSETNX."""
    session, me = state.session, index + 1
    overwrites = config.mutant is Mutant.EXPIRY_OVERWRITES
    if overwrites and session.reply == APPROVED:
        state = with_broken(state, "I12: an expiry replaces an accepted answer")
    job_reply = EXPIRED if is_job_open(session) else session.job_reply
    if config.passes_on and session.round == 0 and is_asking(session):
        passed = session._replace(round=1, job_reply=job_reply)
        ghost = state.ghost._replace(opened=with_round(state.ghost.opened, 1))
        moved = touch(state._replace(session=passed, ghost=ghost, is_expired=False), config, journal=True)
        yield "leg.passed on", me, with_worker(moved, index, worker._replace(view=view_of(moved, config)))
        return
    reply = EXPIRED if is_asking(session) or overwrites else session.reply
    expired = touch(state._replace(session=session._replace(reply=reply, job_reply=job_reply)), config, journal=True)
    yield "leg.expired", me, with_worker(expired, index, worker._replace(view=view_of(expired, config)))


def _begin(state: State, config: Config, index: int, worker: Worker) -> Moves:
    """Begin the approved call, in the transaction that also reads claim and stop."""
    session, me = state.session, index + 1
    if session.cancel and config.mutant is not Mutant.BEGUN_UNDER_STOP:
        yield "tool.forbidden", me, with_worker(state, index, worker._replace(ending=STOPPED))
    elif session.begun not in (NOBODY, me) and config.effect is Effect.UNSAFE:
        yield "tool.unknown", me, _with_result(state, config, UNKNOWN)
    else:
        state = with_broken(state, "I6: a call begins after the stop") if session.cancel else state
        begun = state._replace(session=session._replace(begun=me), ghost=state.ghost._replace(begun=True))
        event = "tool.rerun" if session.begun else "tool.begun"
        yield event, me, with_worker(touch(begun, config, journal=True), index, worker._replace(at=RUNNING))


def _run(state: State, config: Config, index: int, worker: Worker) -> Moves:
    session, ghost, mutant = state.session, state.ghost, config.mutant
    arguments = session.edited or session.asked
    if mutant is Mutant.EDITS_IGNORED:
        arguments = session.asked
    elif mutant is Mutant.ARGUMENTS_MADE_AGAIN and worker.is_woken:
        arguments = OTHER_ARGUMENTS
    effects = 1 if config.effect is Effect.KEYED else ghost.effects + 1
    if is_at(session, FIRST) and arguments != ghost.approved:
        state = with_broken(state, "I12: a call runs with arguments that nobody approved")
    ran = state._replace(ghost=state.ghost._replace(effects=effects, ran=arguments))
    yield "tool.run", index + 1, with_worker(ran, index, worker._replace(at=RAN))


def _end(state: State, config: Config, index: int, worker: Worker) -> Moves:
    yield "tool.ended", index + 1, with_worker(_with_result(state, config, OK), index, worker._replace(at=LEG))


def _with_result(state: State, config: Config, result: int) -> State:
    """Journal a result; the first one counts."""
    session = state.session
    if not is_at(session, FIRST) or session.result != NO_RESULT:
        return state
    return touch(state._replace(session=session._replace(result=result)), config, journal=True)


CALL_RULES: Final = {
    ASKING: _opened,
    STARTING: _start,
    STARTED: _started,
    RUNNING: _run,
    RAN: _end,
}
