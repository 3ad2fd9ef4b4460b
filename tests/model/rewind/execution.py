"""The worker's moves: a claim with the request to the model, a wait, and a commit, each one rule."""

from __future__ import annotations

from .values import IDLE, RUN, STEPS, WAIT, Config, Moves, Mutant, Past, Session, State, Step, broken, start


def moves_of_worker(state: State, config: Config) -> Moves:
    """What the worker does next."""
    session, worker = state.session, state.worker
    if worker.is_busy:
        waits = config.asks and not session.done and not session.is_answered and not session.is_stopping
        if waits and session.phase == RUN:
            freed = worker._replace(is_busy=False)
            yield "work.waited", 0, state._replace(session=session._replace(phase=WAIT), worker=freed)
        else:
            yield "work.committed", 0, _commit(state)
    elif session.phase == RUN:
        yield "work.claimed", 0, _claim(state, config)


def _claim(state: State, config: Config) -> State:
    """Load the session on from what is cached, and ask the model unless the journal has an answer."""
    session, cached = state.session, state.worker.cached
    lines = session.lines
    ignores = config.mutant is Mutant.CACHE_IGNORES_GENERATION
    if cached is not None and (cached[0] == session.generation or ignores):
        lines = (*cached[1], *lines[len(cached[1]) :])
    worker = state.worker._replace(is_busy=True, version=session.version, cached=(session.generation, lines))
    if lines != session.lines:
        state = broken(state, "W4: the model is asked with messages that were rewound")
    own = {10 * session.execution + number for number in range(1, session.done + 1)}
    if not own <= set(session.lines):
        state = broken(state, "W5: an execution goes on behind steps that the conversation lacks")
    is_asked = session.journal is None and not session.is_stopping
    after = session._replace(journal=lines) if is_asked else session
    return state._replace(session=after, worker=worker)


def _commit(state: State) -> State:
    """Commit the step; another version makes the worker apply it again, to the session that it finds then."""
    session, ghost = state.session, state.ghost
    execution, number = session.execution, session.done + 1
    is_stopped = session.is_stopping
    if session.journal is not None:
        if session.journal != session.lines:
            state = broken(state, "W5: a step is committed behind a conversation that its model has not seen")
        lines = (*session.lines, 10 * execution + number)
        spent = session.spent + 1
        step = Step(execution, number, session.generation, len(lines))
        session = session._replace(lines=lines, spent=spent, done=number, steps=(*session.steps, step))
        past = Past(lines, session.known, spent)
        ghost = state.ghost._replace(
            saved=(*ghost.saved, ((execution, number), past)), commits=ghost.commits + 1
        )  # fmt: skip
    session = session._replace(version=session.version + 1, journal=None, is_answered=False)
    ghost = ghost._replace(delivered=(*ghost.delivered, *session.inbox))
    if is_stopped or session.done >= STEPS:
        session = _end(session, is_stopped=is_stopped)
    else:
        session = session._replace(lines=(*session.lines, *session.inbox), inbox=())
    worker = state.worker._replace(is_busy=False, cached=(session.generation, session.lines))
    return state._replace(session=session, worker=worker, ghost=ghost)


def _end(session: Session, *, is_stopped: bool) -> Session:
    """End the execution; the messages that came meanwhile start the next one."""
    session = session._replace(phase=IDLE, can_retry=is_stopped, is_stopping=False)
    if not session.inbox:
        return session
    first, *others = session.inbox
    started = start(session, first)
    return started._replace(lines=(*started.lines, *others), inbox=())
