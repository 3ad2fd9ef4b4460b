"""The rules of the model of holders: what workers, the sweep, clients and time do, one round trip each."""

from __future__ import annotations

from .script import call, give, has_room, in_line, leave, refusal, take
from .values import (
    CALLING,
    CLAIMED,
    DEAD,
    DONE,
    DUE,
    GIVING,
    IDLE,
    LOOKING,
    NOBODY,
    NONE,
    OFF,
    OVERDUE,
    PARTS,
    REFUSED,
    RUNNING,
    SWEEP,
    UNCALLED,
    WORK,
    Call,
    Config,
    Moves,
    Mutant,
    Session,
    State,
    Worker,
    put,
    with_session,
    with_worker,
)


def moves_of_worker(state: State, config: Config, index: int) -> Moves:
    """What a worker does next, its death, and a pause in which its lease and its holder end."""
    worker, me = state.workers[index], index + 1
    if worker.at == IDLE:
        for number, session in enumerate(state.sessions):
            if session.has_message:
                yield "message.taken", me, _claim(state, index, number)
        return
    yield from _RULES[worker.at](state, config, index)
    if state.faults:
        spent = state._replace(faults=state.faults - 1)
        yield "fault.crash", me, _die(spent, index)
        session = state.sessions[worker.session] if worker.session != NONE else None
        if session is not None and session.claim == me and session.lease:
            paused = session._replace(lease=False, held=session.held - {me})
            yield "fault.pause", me, with_session(spent, worker.session, paused)


def _claim(state: State, index: int, number: int) -> State:
    session = state.sessions[number]._replace(has_message=False)
    if session.at in (OFF, DONE) or session.lease:  # put off, over, or another worker has it
        return with_session(state, number, session)
    taken = session._replace(at=WORK, claim=index + 1, lease=True, outdated=session.outdated - {index + 1})
    return with_worker(with_session(state, number, taken), index, Worker(CLAIMED, number))


def _die(state: State, index: int) -> State:
    me = index + 1
    for number, session in enumerate(state.sessions):
        claim = DEAD if session.claim == me else session.claim
        held = session.held - {me} | {DEAD} if me in session.held else session.held
        state = with_session(state, number, session._replace(claim=claim, held=held))
    return with_worker(state, index, Worker())


def _has_lost(state: State, index: int) -> bool:
    worker = state.workers[index]
    return state.sessions[worker.session].claim != index + 1


def _lost(state: State, index: int) -> Moves:
    yield "claim.lost", index + 1, with_worker(state, index, Worker(GIVING, state.workers[index].session))


def _enter(state: State, config: Config, index: int) -> Moves:
    """Take a holder, unless the step was asked to stop. Who was taken over does not know it, and asks too."""
    worker, me = state.workers[index], index + 1
    session = state.sessions[worker.session]
    if me in session.outdated and config.mutant is not Mutant.OLD_CLAIM_TAKES:
        yield from _lost(state, index)
    elif session.claim == me and session.stop and config.mutant is not Mutant.STOP_WAITS:
        yield "stop.passes", me, _end_step(state, config, index, session._replace(left=1))
    elif config.mutant is Mutant.CHECK_APART and not worker.saw_room:
        if refusal(state, config, worker.session) is None:
            yield "holder.free", me, with_worker(state, index, worker._replace(saw_room=True))
        else:
            yield from _ask(state, config, index)
    elif worker.saw_room:
        taken = session._replace(held=session.held | {me})
        yield (
            "holder.taken",
            me,
            with_worker(with_session(state, worker.session, taken), index, Worker(RUNNING, worker.session)),
        )
    else:
        yield from _ask(state, config, index)


def _ask(state: State, config: Config, index: int) -> Moves:
    worker, me = state.workers[index], index + 1
    asked, refused_by = take(state, config, worker.session, me)
    if refused_by is None:
        yield "holder.taken", me, with_worker(asked, index, Worker(RUNNING, worker.session))
    else:
        yield "holder.refused", me, with_worker(asked, index, Worker(REFUSED, worker.session, refused_by))


def _put_off(state: State, config: Config, index: int) -> Moves:
    worker, me = state.workers[index], index + 1
    session = state.sessions[worker.session]
    if session.claim != me:
        yield from _lost(state, index)
        return
    if session.stop and config.mutant is not Mutant.STOP_PUT_OFF:
        due = session._replace(at=DUE, has_message=True, claim=NOBODY, lease=False)
        yield "release.stop", me, with_worker(with_session(state, worker.session, due), index, Worker())
        return
    off = session._replace(at=OFF, by=worker.part, claim=NOBODY, lease=False)
    after = IDLE if config.mutant is Mutant.NO_LOOK else LOOKING
    looking = Worker(after, worker.session, worker.part) if after else Worker()
    yield "release.put off", me, with_worker(with_session(state, worker.session, off), index, looking)


def _look(state: State, config: Config, index: int) -> Moves:
    """Who gave a holder back a moment before may have called this session, or passed it over."""
    worker, me = state.workers[index], index + 1
    session = state.sessions[worker.session]
    if not session.lines[worker.part] or has_room(state, config, worker.session, worker.part):
        looked = _wake(state, worker.session, worker.part)
    elif config.mutant is Mutant.LOOK_KEEPS_CALL:
        looked = state
    else:  # whoever has called it a moment before could not wake it
        uncalled = session._replace(called=put(session.called, worker.part, UNCALLED))
        looked = with_session(state, worker.session, uncalled)
    yield "release.looked", me, with_worker(looked, index, Worker())


def _wake(state: State, number: int, part: int) -> State:
    session = state.sessions[number]
    if session.at != OFF or session.by != part:
        return state
    return with_session(state, number, session._replace(at=DUE, by=NONE, has_message=True))


def _work(state: State, config: Config, index: int) -> Moves:
    """The step commits, and its claim is carried on or not; before that, a lease that has ended is taken back."""
    worker, me = state.workers[index], index + 1
    session = state.sessions[worker.session]
    if session.claim != me:
        yield from _lost(state, index)
        return
    if not session.lease:
        yield from _restore(state, config, index)
        return
    if me not in session.held and not session.stop and config.mutant is not Mutant.RESTORED_ALONE:
        yield from _retake(state, config, index)
        return
    others_wait = any(in_line(state, part) for part in PARTS)
    if session.left > 1 and (not others_wait or config.mutant is Mutant.CARRIED_ON):
        carried = session._replace(left=session.left - 1)
        kept = with_worker(with_session(state, worker.session, carried), index, Worker(CLAIMED, worker.session))
        yield "commit.carried on", me, kept
    yield "commit.made", me, _end_step(state, config, index, session)


def _end_step(state: State, config: Config, index: int, session: Session) -> State:
    number, left = state.workers[index].session, session.left - 1
    at = DUE if left else DONE
    after = session._replace(at=at, left=left, has_message=left > 0, claim=NOBODY, lease=False)
    committed = with_session(state, number, after)
    if config.mutant is Mutant.KEPT_BY_COMMIT:
        return with_worker(committed, index, Worker())
    return with_worker(committed, index, Worker(GIVING, number))


def _restore(state: State, config: Config, index: int) -> Moves:
    worker, me = state.workers[index], index + 1
    session = state.sessions[worker.session]._replace(lease=True)
    if config.mutant is Mutant.RESTORED_ALONE:
        session = session._replace(held=session.held | {me})
    yield "lease.restored", me, with_session(state, worker.session, session)


def _retake(state: State, config: Config, index: int) -> Moves:
    """Take the holder again that has ended meanwhile; where there is none left, the step is given up."""
    worker, me = state.workers[index], index + 1
    session = state.sessions[worker.session]
    if refusal(state, config, worker.session) is None:
        yield "holder.taken back", me, take(state, config, worker.session, me)[0]
        return
    given_up = session._replace(at=DUE, has_message=True, claim=NOBODY, lease=False)
    yield (
        "step.given up",
        me,
        with_worker(with_session(state, worker.session, given_up), index, Worker(GIVING, worker.session)),
    )


def _give(state: State, config: Config, index: int) -> Moves:
    worker, me = state.workers[index], index + 1
    given, calls = give(state, config, worker.session, me)
    yield "holder.given", me, with_worker(given, index, Worker(CALLING, calls=calls) if calls else Worker())


def _call_next(state: State, config: Config, index: int) -> Moves:
    worker, me = state.workers[index], index + 1
    called, left = _call(state, config, worker.calls, me)
    yield "call.made", me, with_worker(called, index, Worker(CALLING, calls=left) if left else Worker())


def _call(state: State, config: Config, calls: tuple[Call, ...], caller: int) -> tuple[State, tuple[Call, ...]]:
    """Wake the first session that was called, or take it out of the line where it will not come, and call another."""
    (number, part, again), rest = calls[0], calls[1:]
    session = state.sessions[number]
    if session.at == OFF and session.by == part:
        return _wake(state, number, part), rest
    # It is on its way, or was refused a moment ago and is about to be put off; called again, it will not come.
    waits_elsewhere = session.at == OFF
    comes = session.at == DUE or waits_elsewhere or (session.at == WORK and not again)
    # The mark of the call is gone where the session has come meanwhile, and stands in the line anew.
    is_answered = session.called[part] != caller and config.mutant is not Mutant.GONE_BLINDLY
    if comes or is_answered or config.mutant is Mutant.GONE_STAY:
        return state, rest
    left = with_session(state, number, leave(session, part))
    if config.mutant is Mutant.GONE_UNHEARD:
        return left, rest
    called, more = call(left, config, (part,), caller)
    return called, (*rest, *more)


def moves_of_world(state: State, config: Config) -> Moves:
    """What the sweep, clients and time do."""
    for number, session in enumerate(state.sessions):
        if session.has_message and state.faults:
            lost = with_session(state, number, session._replace(has_message=False))
            yield "fault.message lost", 0, lost._replace(faults=state.faults - 1)
        is_due = session.at == DUE or (session.at == WORK and not session.lease)
        if is_due and not session.has_message:
            yield "sweep.found lost", 0, with_session(state, number, session._replace(has_message=True))
        if session.claim == DEAD and session.lease:
            yield "time.lease ended", 0, with_session(state, number, session._replace(lease=False))
        if DEAD in session.held and config.mutant is not Mutant.DEAD_COUNT:
            yield "time.holder ended", 0, with_session(state, number, session._replace(held=session.held - {DEAD}))
        # A call is forgotten after many times the time between two round trips of a worker.
        is_being_put_off = any(each.at == REFUSED and each.session == number for each in state.workers)
        for part in PARTS:
            if session.called[part] not in (UNCALLED, OVERDUE) and not is_being_put_off:
                overdue = session._replace(called=put(session.called, part, OVERDUE))
                yield "time.call forgotten", 0, with_session(state, number, overdue)
    yield from _sweep(state, config)
    if config.raised is not None and not state.is_raised:
        yield "limit.raised", 0, state._replace(most=(state.most[0], config.raised), is_raised=True)
    stopped = state.sessions[1] if config.stops else None
    if stopped is not None and not stopped.stop and stopped.at != DONE:
        yield "stop.asked", 0, with_session(state, 1, _stop(stopped))


def _stop(session: Session) -> Session:
    if session.at == WORK:
        return session._replace(stop=True)
    return session._replace(at=DONE, by=NONE, stop=True, has_message=False)  # nobody works: it ends in this transaction


def _sweep(state: State, config: Config) -> Moves:
    if state.sweep:
        called, left = _call(state, config, state.sweep, SWEEP)
        yield "sweep.wakes", 0, called._replace(sweep=left)
    elif config.mutant is not Mutant.SWEEP_DEAF:
        called, calls = call(state, config, PARTS, SWEEP)
        if calls:
            yield "sweep.calls", 0, called._replace(sweep=calls)


_RULES = {
    CLAIMED: _enter, REFUSED: _put_off, LOOKING: _look, RUNNING: _work, GIVING: _give, CALLING: _call_next,
}  # fmt: skip
