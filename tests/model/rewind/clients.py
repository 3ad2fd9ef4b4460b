"""The moves of clients: who rewinds, sends, stops, retries, answers and reads."""

from __future__ import annotations

from .values import (
    ASKED,
    DEAD,
    ENDING,
    IDLE,
    LOOKED,
    OVER,
    READ,
    REWIND,
    RUN,
    SAVED,
    WAIT,
    Config,
    Copy,
    Moves,
    Mutant,
    State,
    broken,
    start,
)


def moves_of_clients(state: State, config: Config) -> Moves:
    """What any client does next."""
    session, ghost = state.session, state.ghost
    if ghost.decided is None and session.steps:
        decided = (session.version, session.execution, session.lines)
        yield "rewind.decided", 0, state._replace(ghost=ghost._replace(decided=decided))
    if ghost.decided is not None:
        for number in range(len(state.copies)):
            yield from _moves_of_copy(state, config, number)
    for number, times in enumerate(state.sent):
        if times < 2:
            sent = (*state.sent[:number], times + 1, *state.sent[number + 1 :])
            yield "message.sent", 0, _send(state._replace(sent=sent), number + 2)
    if session.phase == WAIT:
        yield "answer.given", 0, state._replace(session=session._replace(phase=RUN, is_answered=True))
    if config.stops:
        yield from _moves_of_stops(state, config)
    told = session.told
    shown = (
        session.lines if told != state.reader.told else (*state.reader.shown, *session.lines[len(state.reader.shown) :])
    )
    after = state._replace(reader=state.reader._replace(shown=shown, told=told))
    yield "reader.read", 0, after if shown == session.lines else broken(after, "W6: a cursor shows what was rewound")


def _send(state: State, message: int) -> State:
    """Send a message; one that is known has no second effect."""
    session, ghost = state.session, state.ghost
    ghost = ghost._replace(accepted=ghost.accepted | {message})
    if message in session.known:
        return state._replace(ghost=ghost)
    session = session._replace(known=session.known | {message})
    if session.phase != IDLE:
        return state._replace(session=session._replace(inbox=(*session.inbox, message)), ghost=ghost)
    session = start(session, message)._replace(version=session.version + 1)
    return state._replace(session=session, ghost=ghost._replace(delivered=(*ghost.delivered, message)))


def _moves_of_stops(state: State, config: Config) -> Moves:
    session = state.session
    if session.phase == RUN and not state.has_stopped and not session.is_stopping:
        yield "stop.asked", 0, state._replace(session=session._replace(is_stopping=True), has_stopped=True)
    may_retry = not session.is_rewound or config.mutant is Mutant.RETRIED
    if session.phase == IDLE and session.can_retry and may_retry and not state.has_retried:
        again = session._replace(phase=RUN, can_retry=False, is_rewound=False, version=session.version + 1)
        yield "retry.asked", 0, state._replace(session=again, has_retried=True)


# --- the request to rewind --------------------------------------------------------------------------------------------


def _at(state: State, number: int, at: int, /, **facts: object) -> State:
    copies = list(state.copies)
    copies[number] = copies[number]._replace(at=at, **facts)  # type: ignore[arg-type]
    return state._replace(copies=tuple(copies))


def _moves_of_copy(state: State, config: Config, number: int) -> Moves:
    session, copy = state.session, state.copies[number]
    if state.faults and copy.at in (ENDING, LOOKED, READ, SAVED):
        yield "fault.client died", 0, _at(state, number, DEAD)._replace(faults=state.faults - 1)
    if copy.at == ASKED:
        yield _look(state, config, number)
    elif copy.at == ENDING and session.phase == IDLE:
        if config.mutant is Mutant.VERSION_BEHIND_END or session.execution == copy.noted:
            yield "rewind.wait has ended", 0, _at(state, number, LOOKED, version=session.version, noted=0)
        else:
            yield "rewind.another has begun", 0, _at(state, number, OVER if config.is_expected else ASKED)
    elif copy.at == LOOKED:
        yield _read(state, config, number)
    elif copy.at == READ:
        yield from _write(state, config, number)
    elif copy.at == SAVED:
        noted = state._replace(session=session._replace(known=session.known | {REWIND}))
        yield "rewind.noted", 0, _at(noted, number, OVER)


def _look(state: State, config: Config, number: int) -> tuple[str, int, State]:
    """Read version, status and the state at the step, and end a wait; a request that is known is answered."""
    session, decided = state.session, state.ghost.decided
    assert decided is not None
    place = (session.execution, 1) if config.is_relative else (1, 1)
    if REWIND in session.known:
        told = _at(state, number, OVER)
        is_same = config.mutant is not Mutant.RESOLVED_AGAIN or session.place == place
        return "rewind.known", 0, told if is_same else broken(told, "W3: a request that comes again is told otherwise")
    if place not in dict(state.ghost.saved):
        return "rewind.no such step", 0, _at(state, number, OVER)
    version = decided[0] if config.is_expected else session.version
    if session.phase != WAIT or version != session.version or config.mutant is Mutant.WAIT_REWOUND:
        return "rewind.looked", 0, _at(state, number, LOOKED, version=version, place=place)
    stopped = state._replace(session=session._replace(phase=RUN, is_stopping=True))
    return "rewind.stopped", 0, _at(stopped, number, ENDING, place=place, noted=session.execution)


def _read(state: State, config: Config, number: int) -> tuple[str, int, State]:
    """Read the session under WATCH, and decide."""
    session, copy = state.session, state.copies[number]
    if REWIND in session.known:
        return "rewind.known in time", 0, _at(state, number, OVER)
    if session.version != copy.version and config.mutant is not Mutant.VERSION_IGNORED:
        return "rewind.conflict", 0, _at(state, number, OVER if config.is_expected else ASKED)
    allowed = {IDLE}
    allowed |= {RUN, WAIT} if config.mutant is Mutant.RUNNING_REWOUND else set()
    allowed |= {WAIT} if config.mutant is Mutant.WAIT_REWOUND else set()
    if session.phase not in allowed:
        return "rewind.refused", 0, _at(state, number, OVER)
    return "rewind.read", 0, _at(state, number, READ, noted=session.version)


def _write(state: State, config: Config, number: int) -> Moves:
    copy = state.copies[number]
    if state.session.version != copy.noted and config.mutant is not Mutant.UNWATCHED:
        yield "rewind.changed meanwhile", 0, _at(state, number, LOOKED)
        return
    saved = _save(state, config, copy)
    yield "rewind.saved", 0, _at(saved, number, SAVED if config.mutant is Mutant.ID_BEHIND_SAVE else OVER)
    if state.faults:
        yield "fault.reply lost", 0, _at(saved, number, LOOKED)._replace(faults=state.faults - 1)


def _save(state: State, config: Config, copy: Copy) -> State:
    """Make the earlier state the next version."""
    session, ghost, mutant = state.session, state.ghost, config.mutant
    past = dict(ghost.saved)[copy.place]
    state = _check_what_goes(state, config, copy)
    changes = past.lines != session.lines[: len(past.lines)] or len(session.lines) > len(past.lines)
    if changes and mutant is not Mutant.SAME_GENERATION:
        old = (*session.old, () if mutant is Mutant.MESSAGES_DROPPED else session.lines)
        steps = session.steps
        if mutant is not Mutant.STEPS_STAY_PACKED:
            steps = tuple(each._replace(is_packed=False) for each in steps)
        session = session._replace(generation=session.generation + 1, old=old, steps=steps)
    known = past.known if mutant is Mutant.OPERATIONS_TAKEN_BACK else session.known
    if mutant not in (Mutant.NO_OPERATION_ID, Mutant.ID_BEHIND_SAVE):
        known |= {REWIND}
    session = session._replace(
        version=session.version + 1,
        lines=past.lines,
        is_rewound=True,
        known=known,
        spent=past.spent if mutant is Mutant.SPENT_TAKEN_BACK else session.spent,
        place=copy.place,
        told=session.told + (mutant is not Mutant.NO_EVENT),
    )
    return state._replace(session=session, ghost=state.ghost._replace(rewinds=ghost.rewinds + 1))


def _check_what_goes(state: State, config: Config, copy: Copy) -> State:
    """Whether all that goes was there when the caller decided, or belongs to the execution that was stopped for it."""
    session, decided = state.session, state.ghost.decided
    assert decided is not None
    if session.version != copy.noted:
        return broken(state, "W2: what came between look and write is lost")
    _, execution, lines = decided
    if config.is_expected and any(line not in lines and line // 10 != execution for line in session.lines):
        return broken(state, "W2: what goes was not there when its caller decided")
    return state
