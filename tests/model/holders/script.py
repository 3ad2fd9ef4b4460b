"""The scripts of the model: what Redis does in one round trip, with holders and lines."""

from __future__ import annotations

from .values import (
    CLAIMED,
    DEAD,
    OVERDUE,
    UNCALLED,
    Call,
    Config,
    Mutant,
    Session,
    State,
    parts_of,
    put,
    with_session,
)


def holders(state: State, config: Config, part: int) -> int:
    """How many count for a part."""
    early = {DEAD} if config.mutant is Mutant.DEAD_DROPPED_EARLY else set[int]()
    return sum(len(each.held - early) for number, each in enumerate(state.sessions) if part in parts_of(config, number))


def in_line(state: State, part: int) -> list[int]:
    """The sessions in a line, the first one first."""
    found = [number for number, each in enumerate(state.sessions) if each.lines[part]]
    return sorted(found, key=lambda number: state.sessions[number].since)


def refusal(state: State, config: Config, number: int) -> int | None:
    """The first part where nothing may begin, else the first one that has no holder left; None: it may go."""
    parts = parts_of(config, number)
    full = (part for part in parts if not has_room(state, config, number, part))
    return next((part for part in parts if not state.most[part]), next(full, None))


def has_room(state: State, config: Config, number: int, part: int) -> bool:
    """Whether a part has a holder left for a session, behind those in its line who have come before it."""
    since, line = state.sessions[number].since, in_line(state, part)
    before = sum(not since or state.sessions[other].since < since for other in line)
    before = 0 if config.mutant is Mutant.NEWCOMERS_FIRST else before
    return holders(state, config, part) + before < state.most[part]


def take(state: State, config: Config, number: int, worker: int) -> tuple[State, int | None]:
    """Take a holder, or stand in the line of the part that refuses it; that part comes with the state."""
    session = state.sessions[number]
    if worker in session.held and config.mutant is not Mutant.TAKEN_AGAIN:
        return state, None
    refused_by = refusal(state, config, number)
    if refused_by is None:
        taken = session._replace(held=session.held | {worker})
        if config.mutant is not Mutant.LINE_KEPT:
            taken = _outside(taken)
        return with_session(state, number, taken), None
    since = session.since or 1 + max(each.since for each in state.sessions)
    lines, called = session.lines, session.called
    for part in parts_of(config, number):
        # It keeps its place in the lines before that of the refusal, unless nothing may begin there.
        stands = part == refused_by or (part < refused_by and bool(state.most[refused_by]))
        lines = put(lines, part, stands)
        called = put(called, part, called[part] if stands and part < refused_by else UNCALLED)
    waiting = session._replace(since=since, lines=(bool(lines[0]), bool(lines[1])), called=called)
    if session.claim == worker:  # of those who may still ask, it is the newest
        waiting = waiting._replace(outdated=_older(state, number, worker))
    return with_session(state, number, waiting), refused_by


def call(state: State, config: Config, parts: tuple[int, ...], caller: int) -> tuple[State, tuple[Call, ...]]:
    """Call those in front of the lines for whom there is room, and who were not called just now."""
    calls: list[Call] = []
    for part in parts:
        room = state.most[part] - holders(state, config, part)
        for number in in_line(state, part)[: max(0, room)]:
            session = state.sessions[number]
            again = session.called[part]
            is_overdue = again == OVERDUE and config.mutant is not Mutant.CALLED_ONCE
            if again != UNCALLED and not is_overdue:
                continue
            calls.append((number, part, again == OVERDUE))
            state = with_session(state, number, session._replace(called=put(session.called, part, caller)))
    return state, tuple(calls)


def give(state: State, config: Config, number: int, worker: int) -> tuple[State, tuple[Call, ...]]:
    """Give the holder of a claim back, and call who may go now."""
    session = state.sessions[number]
    state = with_session(state, number, session._replace(held=session.held - {worker}))
    if config.mutant is Mutant.GIVEN_UNHEARD:
        return state, ()
    return call(state, config, parts_of(config, number), worker)


def leave(session: Session, part: int) -> Session:
    """The session out of one line."""
    lines = put(session.lines, part, False)
    left = session._replace(lines=(bool(lines[0]), bool(lines[1])), called=put(session.called, part, UNCALLED))
    return left if any(left.lines) else _outside(left)


def _outside(session: Session) -> Session:
    return session._replace(since=0, lines=(False, False), called=(UNCALLED, UNCALLED), outdated=frozenset())


def _older(state: State, number: int, worker: int) -> frozenset[int]:
    """The claims of a session that were taken over, and do not know it."""
    at_work = enumerate(state.workers, start=1)
    return frozenset(me for me, each in at_work if me != worker and each.at == CLAIMED and each.session == number)
