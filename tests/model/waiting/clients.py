"""The rules of a stop, of a hold and of a message."""

from __future__ import annotations

from ..changes import push
from .changes import end_execution, touch, wake
from .values import (
    END,
    EXPIRY,
    HOLD_END,
    NEXT,
    NOT_HELD,
    NOW,
    RESUMED,
    SUSPENDED,
    WAIT,
    Config,
    Moves,
    Mutant,
    Note,
    Session,
    State,
)


def moves_of_stop(state: State, config: Config) -> Moves:
    """Somebody stops the first execution."""
    if state.stop:
        return
    if state.session.phase == END or state.session.position == NEXT:
        yield "stop.nothing", 0, state._replace(stop=True)
    else:
        event, stopped = _stopped(state, config)
        yield event, 0, stopped._replace(stop=True)


def _stopped(state: State, config: Config) -> tuple[str, State]:
    """Leave the stop, and bring forward a session that nobody works on. A hold does not hinder a stop."""
    session, mutant = state.session, config.mutant
    has_worker = session.claim and session.lease
    if not has_worker and not session.answer:
        return "stop.ended", touch(end_execution(state, config, session), config, control=True, inbox=True)
    stopped = state._replace(session=session._replace(cancel=True))
    if has_worker:
        return "stop.left", touch(stopped, config, control=True)
    woken = wake(stopped, config)
    if mutant is Mutant.STOP_KEEPS_WAIT:
        woken = woken._replace(session=woken.session._replace(phase=session.phase))
    if mutant is Mutant.STOP_FORGETS_DUE:
        woken = woken._replace(session=woken.session._replace(due=session.due))
    return "stop.woke", touch(woken, config, control=True)


def moves_of_hold(state: State, config: Config) -> Moves:
    session = state.session
    refuses = session.cancel and config.mutant is not Mutant.SUSPENDED_UNDER_STOP
    if state.hold == NOT_HELD and session.phase != END and refuses:
        yield "hold.refused", 0, state._replace(hold=RESUMED)
    elif state.hold == NOT_HELD and session.phase != END:
        # The due entry of a claim stays at the end of its lease.
        due = session.due if session.claim else HOLD_END
        held = state._replace(session=session._replace(held=True, due=due), hold=SUSPENDED)
        yield "hold.suspended", 0, touch(held, config, control=True)
    elif state.hold == SUSPENDED and session.held:
        yield "hold.resumed", 0, touch(_resumed(state, config), config, control=True)


def _resumed(state: State, config: Config) -> State:
    session = state.session
    resumed = state._replace(session=session._replace(held=False), hold=RESUMED, is_hold_over=False)
    if session.phase == END:
        return resumed
    if session.claim and session.lease:
        # The sweep may have moved the entry to the end of the hold before the worker restored its lease.
        due = session.due if config.mutant is Mutant.RESUME_LEAVES_DUE else NOW
        return resumed._replace(session=resumed.session._replace(due=due))
    if config.mutant is Mutant.RESUME_DOES_NOT_WAKE and session.phase == WAIT:
        return resumed._replace(session=resumed.session._replace(due=EXPIRY))
    return wake(resumed, config)


def moves_of_note(state: State, config: Config) -> Moves:
    """A message comes."""
    session = state.session
    if state.note:
        return
    sent = state._replace(note=True)
    if session.phase == END:
        started = Session(position=NEXT)
        ghost = state.ghost._replace(taken=state.ghost.taken + 1)
        moved = sent._replace(session=started, ghost=ghost, queue=push(state.queue, NEXT))
        yield "note.started", 0, touch(moved, config, control=True)
        return
    queued = sent._replace(session=session._replace(inbox=session.inbox + 1))
    if config.note is Note.INTERRUPT and session.position < NEXT and config.mutant is not Mutant.INTERRUPT_TWICE:
        _, stopped = _stopped(queued, config)
        yield "note.interrupted", 0, touch(stopped, config, inbox=True)
    elif config.note is Note.DENY and session.phase == WAIT and not session.held:
        yield "note.woke", 0, touch(wake(queued, config), config, control=True, inbox=True)
    elif session.phase == WAIT or session.claim or session.asked or session.job_asked:
        # A woken step that nobody has claimed yet still has open calls, and no message may come before them.
        yield "note.queued", 0, touch(queued, config, inbox=True)
    else:
        taken = sent._replace(ghost=state.ghost._replace(taken=state.ghost.taken + 1))
        yield "note.applied", 0, touch(taken, config, control=True)
