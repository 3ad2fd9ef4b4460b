"""The two operations of a bucket, each one round trip: reserve and settle."""

from __future__ import annotations

from .values import (
    AWAY,
    LATER,
    NO_APPOINTMENT,
    NOBODY,
    NOW,
    REFUSED,
    Bucket,
    Config,
    Ghost,
    Mutant,
    Session,
    State,
    put,
)


def may_go(bucket: Bucket, config: Config, number: int) -> tuple[bool, bool]:
    """Whether a request may go now, and whether it is the probe."""
    if bucket.limit == 0:
        return False, False
    if bucket.is_away:
        is_free = bucket.probe == NOBODY or config.mutant is Mutant.TWO_PROBES
        return is_free and bucket.may_probe, is_free and bucket.may_probe
    if bucket.is_narrow and config.mutant is not Mutant.WINDOW_FORGOTTEN and (any(bucket.held) or bucket.orphans):
        return False, False
    others = any(each for place, each in enumerate(bucket.line) if place != number)
    must_leave_room = others and bucket.line[number] != NOW and config.mutant is not Mutant.NEWCOMERS_FIRST
    return bucket.debt + 1 + must_leave_room <= bucket.limit, False


def admit(state: State, number: int, *, is_probe: bool) -> State:
    """Count a request, and let it go."""
    bucket, ghost = state.bucket, state.ghost
    broken = "" if is_probe else _broken_by(state, number)
    # A probe goes whatever the debt is; so that there is an end of states, it adds to it only once.
    more = int(not is_probe or bucket.debt <= bucket.limit)
    bucket = bucket._replace(
        debt=bucket.debt + more,
        held=put(bucket.held, number, True),
        line=put(bucket.line, number, NO_APPOINTMENT),
        closed_by=NOBODY if bucket.closed_by == number else bucket.closed_by,
    )
    if is_probe:
        bucket = bucket._replace(probe=number, may_probe=False)
    ghost = ghost._replace(debt=ghost.debt + more, broken=ghost.broken or broken)
    return state._replace(bucket=bucket, ghost=ghost)


def _broken_by(state: State, number: int) -> str:
    """What an admission breaks."""
    bucket, debt = state.bucket, state.ghost.debt
    if debt + 1 > bucket.limit:
        return "L1: more are admitted than the limit allows"
    if bucket.is_narrow and any(bucket.held):
        return "L4: after a refusal more than one request is in flight"
    waits = any(each == NOW for place, each in enumerate(bucket.line) if place != number)
    if waits and bucket.line[number] != NOW and debt + 2 > bucket.limit:
        return "L5: a newcomer goes before one whose appointment has come"
    return ""


def reserve(state: State, config: Config, number: int) -> tuple[State, bool, bool]:
    """Reserve: the state, whether the request was admitted, and whether as the probe."""
    bucket = state.bucket
    if bucket.held[number] and config.mutant is Mutant.RESERVED_AGAIN:
        return state._replace(bucket=bucket._replace(debt=bucket.debt + 1)), True, bucket.probe == number
    if bucket.held[number]:
        return state, True, bucket.probe == number
    is_admitted, is_probe = may_go(bucket, config, number)
    if is_admitted:
        return admit(state, number, is_probe=is_probe), True, is_probe
    bucket = bucket._replace(line=put(bucket.line, number, LATER))
    return state._replace(bucket=bucket), False, False


def settle(state: State, config: Config, number: int) -> tuple[State, bool]:
    """Settle: the state, and whether the request is told that it closed the breaker."""
    session, bucket, ghost = state.sessions[number], state.bucket, state.ghost
    is_fresh = bucket.held[number]
    if is_fresh or config.mutant is Mutant.SETTLED_AGAIN:
        bucket = bucket._replace(debt=bucket.debt + session.is_dear, held=put(bucket.held, number, False))
        session = session._replace(settled=session.settled + 1)
    if is_fresh:
        ghost = ghost._replace(debt=ghost.debt + session.is_dear)
    if is_fresh and session.answer != AWAY:
        bucket = bucket._replace(is_narrow=session.answer == REFUSED)
    bucket, is_closed = _hear(bucket, config, number, session)
    changed = state._replace(bucket=bucket, ghost=ghost, sessions=put(state.sessions, number, session))
    return changed, is_closed


def _hear(bucket: Bucket, config: Config, number: int, session: Session) -> tuple[Bucket, bool]:
    """Open or close the breaker."""
    is_probe = bucket.probe == number
    if session.answer == AWAY:
        if not bucket.is_away:
            return bucket._replace(is_away=True, may_probe=False, probe=NOBODY), False
        if is_probe and config.mutant is not Mutant.PROBE_FORGOTTEN:
            bucket = bucket._replace(probe=NOBODY)
        return bucket, False
    if is_probe and bucket.is_away:
        line = bucket.line if config.mutant is Mutant.CLOSED_KEEPS_LINE else (NO_APPOINTMENT,) * len(bucket.line)
        closed = bucket._replace(is_away=False, probe=NOBODY, may_probe=False, closed_by=number, line=line)
        return closed, True
    return bucket, bucket.closed_by == number and config.mutant is not Mutant.CLOSED_TOLD_ONCE


def set_limit(state: State, limit: int) -> State:
    """Set a limit: what was counted and who waits begins again."""
    bucket = state.bucket
    bucket = bucket._replace(limit=limit, debt=0, is_narrow=False, line=(NO_APPOINTMENT,) * len(bucket.line))
    ghost: Ghost = state.ghost._replace(debt=0)
    return state._replace(bucket=bucket, ghost=ghost, is_set=True, forwards=True)


def refill(state: State) -> State:
    """Time makes room for one request."""
    bucket, ghost = state.bucket, state.ghost
    bucket = bucket._replace(debt=max(0, bucket.debt - 1))
    return state._replace(bucket=bucket, ghost=ghost._replace(debt=max(0, ghost.debt - 1)))
