"""Everything that can happen: to a session with its worker, to the provider, by time, and by people."""

from __future__ import annotations

from .bucket import admit, may_go, refill, reserve, set_limit, settle
from .values import (
    ADDING,
    ASKING,
    AT_WORK,
    AWAY,
    DEAD,
    DONE,
    DUE,
    GOT,
    LATER,
    NO_APPOINTMENT,
    NOBODY,
    NOW,
    OFF,
    OK,
    PUTTING,
    REFUSED,
    SENT,
    SOMEBODY_DEAD,
    TELLING,
    Config,
    Moves,
    Mutant,
    Session,
    State,
    put,
)


def moves_of_session(state: State, config: Config, number: int) -> Moves:
    """What the worker of a session does next, or what befalls it."""
    session = state.sessions[number]
    yield from _STEPS[session.at](state, config, number, session)
    if session.at in AT_WORK and state.faults.crashes:
        dead = with_session(state, number, session._replace(at=DEAD))
        if session.at == TELLING or (session.at == GOT and state.bucket.closed_by == number):
            dead = dead._replace(ghost=dead.ghost._replace(is_excused=True))
        yield "fault.crash", 0, spend(dead, "crashes")


def _claim(state: State, config: Config, number: int, session: Session) -> Moves:
    yield (
        "step.claimed",
        0,
        with_session(state, number, Session(at=PUTTING, by_pause=True) if state.is_paused else Session(at=ASKING)),
    )


def _ask(state: State, config: Config, number: int, session: Session) -> Moves:
    if config.mutant is Mutant.CHECK_APART and may_go(state.bucket, config, number)[0]:
        yield "reserve.looked", 0, with_session(state, number, session._replace(at=ADDING))
        return
    asked, is_admitted, is_probe = reserve(state, config, number)
    after = session._replace(at=SENT, is_probe=is_probe)
    if not is_admitted:
        after = session._replace(at=PUTTING, by_breaker=state.bucket.is_away)
    name = "reserve.probe" if is_probe else "reserve.admitted" if is_admitted else "reserve.refused"
    yield name, 0, with_session(asked, number, after)
    if state.faults.replies and not state.bucket.held[number]:
        yield f"{name}, reply lost", 0, spend(asked, "replies")


def _add(state: State, config: Config, number: int, session: Session) -> Moves:
    added = admit(state, number, is_probe=False)
    yield "reserve.added", 0, with_session(added, number, session._replace(at=SENT))


def _send(state: State, config: Config, number: int, session: Session) -> Moves:
    if state.is_gone:
        yield "provider.away", 0, with_session(state, number, session._replace(at=GOT, answer=AWAY))
        return
    yield "provider.answered", 0, with_session(state, number, session._replace(at=GOT, answer=OK))
    yield "provider.answered, dearer", 0, with_session(state, number, session._replace(at=GOT, answer=OK, is_dear=True))
    if state.refusals:
        refused = with_session(state, number, session._replace(at=GOT, answer=REFUSED))
        yield "provider.refused", 0, refused._replace(refusals=state.refusals - 1)


def _settle(state: State, config: Config, number: int, session: Session) -> Moves:
    settled, is_closed = settle(state, config, number)
    session = settled.sessions[number]._replace(is_journaled=session.answer == OK)
    after = TELLING if is_closed else DONE if session.answer == OK else ASKING
    again = session if after in (TELLING, DONE) else Session()
    yield "settle.closed" if is_closed else "settle.made", 0, with_session(settled, number, again._replace(at=after))
    if state.faults.replies and state.bucket.held[number]:
        in_doubt = with_session(settled, number, session._replace(is_journaled=False))
        yield "settle.made, reply lost", 0, spend(in_doubt, "replies")
    if state.faults.crashes:
        dead = with_session(settled, number, session._replace(at=DEAD))
        dead = dead._replace(ghost=dead.ghost._replace(is_excused=dead.ghost.is_excused or is_closed))
        yield "fault.settled, then dead", 0, spend(dead, "crashes")


def _tell(state: State, config: Config, number: int, session: Session) -> Moves:
    after = session._replace(at=DONE) if session.answer == OK else Session(at=ASKING)
    yield "forward.by the probe", 0, with_session(bring_forward(state, by_pause=False), number, after)


def _put_off(state: State, config: Config, number: int, session: Session) -> Moves:
    is_free = not state.is_paused if session.by_pause else state.bucket.line[number] == NO_APPOINTMENT
    if is_free and config.mutant is not Mutant.RELEASE_WITHOUT_LOOK:
        yield "release.free again", 0, with_session(state, number, Session(at=DUE))
    else:
        yield "release.put off", 0, with_session(state, number, session._replace(at=OFF))


def _come_back(state: State, config: Config, number: int, session: Session) -> Moves:
    if config.mutant is Mutant.NO_OWN_TIME:
        return
    bucket = state.bucket
    if bucket.line[number] == LATER:
        bucket = bucket._replace(line=put(bucket.line, number, NOW))
    yield "time.due again", 0, with_session(state._replace(bucket=bucket), number, Session(at=DUE))


def _lose_lease(state: State, config: Config, number: int, session: Session) -> Moves:
    bucket = state.bucket
    if bucket.held[number]:
        bucket = bucket._replace(held=put(bucket.held, number, False))
        if config.mutant is Mutant.DEAD_HOLDS:
            probe = SOMEBODY_DEAD if bucket.probe == number else bucket.probe
            bucket = bucket._replace(orphans=bucket.orphans + 1, probe=probe)
        elif bucket.probe == number:
            bucket = bucket._replace(probe=NOBODY)
    after = Session(at=DONE) if session.is_journaled else Session(at=DUE)
    yield "lease.ended", 0, with_session(state._replace(bucket=bucket), number, after)


def _rest(state: State, config: Config, number: int, session: Session) -> Moves:
    yield from ()


_STEPS = {
    DUE: _claim, ASKING: _ask, ADDING: _add, SENT: _send, GOT: _settle, PUTTING: _put_off, TELLING: _tell,
    OFF: _come_back, DEAD: _lose_lease, DONE: _rest,
}  # fmt: skip


def moves_of_world(state: State, config: Config) -> Moves:
    """What the provider, time and people do."""
    bucket = state.bucket
    if bucket.debt:
        yield "time.refilled", 0, refill(state)
    if bucket.is_away and not bucket.may_probe:
        yield "time.probe", 0, state._replace(bucket=bucket._replace(may_probe=True))
    if state.outages:
        yield "provider.went away", 0, state._replace(outages=0, is_gone=True)
    if state.is_gone:
        yield "provider.came back", 0, state._replace(is_gone=False)
    if not state.is_set and config.new_limit is not None:
        yield "limit.set", 0, set_limit(state, config.new_limit)
    if state.is_paused:
        yield "pause.ended", 0, state._replace(is_paused=False, forwards=True)
    if state.forwards and config.mutant is not Mutant.SET_WITHOUT_FORWARD:
        freed = (
            bring_forward(bring_forward(state, by_pause=True), by_pause=False)
            if state.is_set
            else bring_forward(state, by_pause=True)
        )
        yield "forward.by the client", 0, freed._replace(forwards=False)


def bring_forward(state: State, *, by_pause: bool) -> State:
    """Let the steps become due that were put off by the bucket, or by the pause."""
    sessions = tuple(
        Session(at=DUE) if each.at == OFF and each.by_pause == by_pause else each for each in state.sessions
    )
    return state._replace(sessions=sessions)


def with_session(state: State, number: int, session: Session) -> State:
    return state._replace(sessions=put(state.sessions, number, session))


def spend(state: State, kind: str) -> State:
    faults = state.faults
    left = faults._replace(**{"any": faults.any - 1, kind: getattr(faults, kind) - 1})
    return state._replace(faults=left if left.any else left._replace(crashes=0, replies=0))
