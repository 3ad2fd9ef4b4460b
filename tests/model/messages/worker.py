"""The rules of the worker: claim, model call, wait, commit, and its crashes."""

from __future__ import annotations

from typing import Final

from .ending import complete, end_early, go_on
from .placing import deliver, with_broken
from .values import (
    ASKING,
    ASKS,
    AT_REST,
    CALLING,
    CALLS,
    CLOSING,
    COMMITTING,
    DEAD,
    FAILED,
    FINAL,
    IN_DOUBT,
    INTERRUPTED,
    NOBODY,
    NONE,
    RESTING,
    RUN,
    STOPPED,
    WAIT,
    WORKER,
    Config,
    Moves,
    Mutant,
    Session,
    State,
    Worker,
)


def moves_of_worker(state: State, config: Config) -> Moves:
    """What the worker does next, or its death; and the end of a dead worker's lease."""
    worker = state.worker
    yield from _RULES[worker.at](state, config)
    if state.crashes and worker.at not in (RESTING, IN_DOUBT):
        dead = state._replace(session=state.session._replace(claim=DEAD), worker=AT_REST, crashes=state.crashes - 1)
        yield "fault.crash", 1, dead
    if state.session.claim == DEAD:
        yield "lease.ended", 0, state._replace(session=state.session._replace(claim=NOBODY))


def _claim(state: State, config: Config) -> Moves:
    session = state.session
    is_stopped = session.cancel and config.mutant is not Mutant.HOLD_REFUSES_STOP
    if session.phase != RUN or session.claim != NOBODY or (session.held and not is_stopped):
        return
    if state.ghost.is_suspended and not session.cancel:
        state = with_broken(state, "M6: a suspended session begins")
    claimed = session._replace(claim=WORKER)
    if session.cancel:
        yield "claim.stopped", 1, _at(state, claimed, CLOSING)
    elif session.answer != NONE and not (session.interrupt and config.mutant is Mutant.INTERRUPT_DROPS_ANSWER):
        yield "claim.journaled", 1, _at(state, claimed, ASKING if session.answer == ASKS else CLOSING)
    elif session.interrupt:
        yield "claim.interrupted", 1, _at(state, claimed._replace(answer=INTERRUPTED), CLOSING)
    else:
        yield "claim.made", 1, _at(state, claimed, CALLING)


def _call(state: State, config: Config) -> Moves:
    """The model answers, or its call is cut or fails."""
    session = state.session
    if session.cancel:
        yield "model.stopped", 1, _at(state, session, CLOSING)
    if session.interrupt:
        yield "model.cut", 1, _at(state, session._replace(answer=INTERRUPTED), CLOSING)
    yield "model.final", 1, _at(state, session._replace(answer=FINAL), CLOSING)
    if not session.has_called:
        yield "model.calls", 1, _at(state, session._replace(answer=CALLS), CLOSING)
        if config.asks:
            yield "model.asks", 1, _at(state, session._replace(answer=ASKS), ASKING)
    if state.fails:
        yield "model.failed", 1, state._replace(worker=Worker(CLOSING, fails=True), fails=state.fails - 1)


def _ask(state: State, config: Config) -> Moves:
    """Give the claim back and wait, unless a stop or an interrupt withdraws what is asked."""
    session = state.session
    if session.cancel or (session.interrupt and config.mutant is not Mutant.WAIT_IGNORES_INTERRUPT):
        yield "wait.withdrawn", 1, _at(state, session._replace(answer=CALLS), CLOSING)
    elif config.yields and session.inbox and config.mutant is not Mutant.WAIT_IGNORES_MESSAGES:
        yield "wait.yielded", 1, _at(state, session._replace(answer=CALLS), CLOSING)
    else:
        yield "wait.made", 1, _at(state, session._replace(phase=WAIT, claim=NOBODY), RESTING)


def _read(state: State, config: Config) -> Moves:
    """Read for the commit: it watches control fields, inbox and queue."""
    del config
    session = state.session
    read = state.worker._replace(at=COMMITTING, inbox=session.inbox, queue=session.queue)
    yield "commit.read", 1, state._replace(worker=read)


def _commit(state: State, config: Config) -> Moves:
    for event, done in _committed(state, config):
        yield event, 1, done._replace(worker=AT_REST)
        if state.replies:
            in_doubt = state.worker._replace(at=IN_DOUBT)
            yield f"{event}, reply lost", 1, done._replace(worker=in_doubt, replies=state.replies - 1)


def _committed(state: State, config: Config) -> list[tuple[str, State]]:
    session, worker = state.session, state.worker
    inbox, queue = worker.inbox, worker.queue
    if worker.fails:
        return [("commit.failed", end_early(state, config, FAILED, inbox))]
    if session.cancel:
        stopped = ("commit.stopped", end_early(state, config, STOPPED, inbox))
        if session.answer != FINAL:
            return [stopped]
        return [stopped, ("commit.completed under a stop", complete(state, config, inbox, queue))]
    if session.answer == FINAL and not (session.interrupt and config.mutant is Mutant.INTERRUPT_BEHIND_FINAL):
        return [("commit.completed", complete(state, config, inbox, queue))]
    if session.answer == INTERRUPTED and not inbox and config.mutant is Mutant.INTERRUPTED_IS_FINAL:
        state = with_broken(state, "M7: an interrupted answer ends its execution as completed")
        return [("commit.completed", complete(state, config, inbox, queue))]
    return [("commit.made", go_on(state, config, inbox))]


def _find_commit(state: State, config: Config) -> Moves:
    """Read after a lost reply: the step is committed, so nothing is left to do."""
    found = state._replace(worker=AT_REST)
    if config.mutant is Mutant.COMMIT_REPEATED:
        found = deliver(found, config, state.worker.inbox)
    yield "commit.found", 1, found


def _at(state: State, session: Session, place: int) -> State:
    return state._replace(session=session, worker=Worker(place))


_RULES: Final = {
    RESTING: _claim,
    CALLING: _call,
    ASKING: _ask,
    CLOSING: _read,
    COMMITTING: _commit,
    IN_DOUBT: _find_commit,
}
