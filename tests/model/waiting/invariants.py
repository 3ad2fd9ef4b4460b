"""The invariants of docs/protocol.md that waiting touches, asked of one state."""

from __future__ import annotations

from collections.abc import Iterator

from .changes import has_result, is_asking, is_job_open
from .values import (
    ABSENT,
    APPROVED,
    END,
    FIRST,
    IDLE,
    NEXT,
    WAIT,
    Config,
    Note,
    State,
)


def violations(state: State, config: Config) -> Iterator[str]:
    """The invariants that this state breaks, by name."""
    session, ghost = state.session, state.ghost
    if ghost.broken:
        yield ghost.broken
    if ghost.effects > 1:
        yield "I3: an approved call has two effects"
    if ghost.jobs > 1:
        yield "I3: an external call is started twice"
    if ghost.paid > 1:
        yield "I4: the model is asked again"
    if max(ghost.opened) > 1:
        yield "I12: a request is opened twice"
    if max(ghost.decided) > 1:
        yield "I12: a request is answered twice"
    if ghost.used > 1:
        yield "I12: an answer is used twice"
    if ghost.effects and not ghost.approved:
        yield "I12: a call runs that nobody approved"
    if session.phase == WAIT and session.claim:
        yield "I13: a waiting session has a claim"
    if (session.phase == END) == (session.due != ABSENT):
        yield "I13: active and due are not the same"
    if any(state.queue[position] for position in range(session.position + 1, 3)):
        yield "D: a message is ahead of its session"
    yield from _end_violations(state)


def _end_violations(state: State) -> Iterator[str]:
    session = state.session
    if session.phase == END and (session.claim or session.cancel):
        yield "I11: an execution that ended keeps a claim or a stop"
    if session.phase == END and session.held:
        yield "I13: a hold outlives the execution"
    if session.phase == END and session.inbox:
        yield "I8: a message is stranded in the inbox"
    if state.note and session.inbox + state.ghost.taken != 1:
        yield "I8: an acknowledged message is lost or taken twice"
    if state.stop and session.position < NEXT and not (session.phase == END or session.cancel):
        yield "I8: an acknowledged stop is lost"


def has_ended(state: State, config: Config) -> bool:
    """Everything has ended. Without an expiry, a step that rests may rest for ever."""
    idle = state.workers[0].at == IDLE == state.workers[1].at
    return (idle and state.session.phase == END) or (not config.expires and rests(state, config))


def rests(state: State, config: Config) -> bool:
    """Nobody works on the session, and nobody should: it has ended, is held, or waits for somebody."""
    session = state.session
    if any(worker.at != IDLE for worker in state.workers) or any(state.queue):
        return False
    if session.phase == END:
        return True
    if session.held and not session.cancel and not state.is_hold_over:
        return True
    return _waits(state, config)


def _waits(state: State, config: Config) -> bool:
    """The step waits for an answer that can come, and everything that came was looked at."""
    session = state.session
    asks = is_asking(session) and not has_result(session)
    is_owed = (session.reply == APPROVED and not has_result(session)) or state.ghost.news
    unread = session.inbox and (config.note is Note.INTERRUPT or (config.note is Note.DENY and asks))
    waits = session.phase == WAIT and session.position == FIRST and (asks or is_job_open(session))
    return bool(waits and not is_owed and not unread and not session.cancel and not state.is_expired)
