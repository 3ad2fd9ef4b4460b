"""The rules of all that is not a worker: time, the sweep, faults of the queue, and what users do."""

from __future__ import annotations

from collections.abc import Iterator

from .changes import push, spend, touch
from .values import (
    ACKNOWLEDGED,
    DEAD,
    IN_DOUBT,
    NEXT,
    NOT_ASKED,
    READING,
    STOP_DONE,
    WILL_CANCEL,
    WILL_END,
    Config,
    Moves,
    Mutant,
    Session,
    State,
)


def moves_of_time(state: State) -> Moves:
    session = state.session
    if session.claim == DEAD and session.lease:
        yield "lease.ended", 0, state._replace(session=session._replace(lease=False))


def moves_of_sweep(state: State, config: Config) -> Moves:
    session = state.session
    if not session.due or config.mutant is Mutant.NO_SWEEPER:
        return
    if state.neighbour:
        moved = config.mutant is not Mutant.SWEEP_DOES_NOT_MOVE
        yield "sweep.neighbour", 0, state._replace(neighbour=not moved)
    elif session.claim and session.lease:
        yield "sweep.live", 0, state
    elif any(state.queue):
        yield "sweep.queued", 0, state
    else:
        # It notes in ctl when it published, and so disturbs whoever watches.
        published = state._replace(queue=push(state.queue, session.position))
        yield "sweep.published", 0, touch(published, config=config)


def moves_of_queue(state: State) -> Moves:
    if not state.faults.messages:
        return
    faults = spend(state.faults, "messages")
    for position, count in enumerate(state.queue):
        if count:
            yield "fault.message lost", 0, state._replace(queue=push(state.queue, position, -1), faults=faults)
        if position <= state.session.position:
            yield "fault.message repeated", 0, state._replace(queue=push(state.queue, position), faults=faults)


def moves_of_user(state: State, config: Config) -> Moves:
    """One message. Its transaction is one step here: only the lease, which it does not watch, may change under it."""
    if state.message == ACKNOWLEDGED:
        return
    recognised = config.mutant not in (Mutant.NO_OPERATION_ID, Mutant.PLAIN_TRANSACTION)
    if state.message == IN_DOUBT and recognised:
        yield "user.known already", 0, state._replace(message=ACKNOWLEDGED)
        return
    for event, accepted in _accepted(state, config):
        yield event, 0, accepted._replace(message=ACKNOWLEDGED)
        if state.faults.replies:
            lost = accepted._replace(message=IN_DOUBT, faults=spend(state.faults, "replies"))
            yield "user.reply lost", 0, lost


def _accepted(state: State, config: Config) -> Iterator[tuple[str, State]]:
    session = state.session
    if session.claim:
        queued = state._replace(session=session._replace(inbox=session.inbox + 1))
        yield "user.queued", touch(queued, inbox=True, config=config)
    if session.over:
        started = state._replace(session=Session(position=NEXT, applied=session.applied + 1))
        if config.fused:
            started = started._replace(queue=push(state.queue, NEXT))
        yield "user.started", touch(started, config=config)
    elif not session.claim or not session.lease:
        applied = state._replace(session=session._replace(applied=session.applied + 1))
        yield "user.applied", touch(applied, config=config)


def moves_of_stop(state: State, config: Config) -> Moves:
    """A stop of the first execution: it reads, watching session, ctl, inbox and journal, and then writes."""
    session = state.session
    if state.stop in (NOT_ASKED, READING):
        if session.over or session.position == NEXT:
            yield "stop.nothing", 0, state._replace(stop=STOP_DONE)
            return
        journaled = session.answer and config.mutant is not Mutant.STOP_DROPS_JOURNAL
        held = session.claim and session.lease
        yield "stop.read", 0, state._replace(stop=WILL_CANCEL if held or journaled else WILL_END)
    elif state.stop == WILL_CANCEL:
        cancelled = state._replace(session=session._replace(cancel=True), stop=STOP_DONE)
        yield "stop.cancelled", 0, touch(cancelled, config=config)
    elif state.stop == WILL_END:
        without_journal = None if session.journal else session.position
        leaked = session.journal and config.mutant is Mutant.STOP_LEAVES_JOURNAL
        ghost = state.ghost._replace(stopped=True, paid=0, without_journal=without_journal, leaked=leaked)
        left = Session(position=session.position, over=True, due=False, applied=session.applied)
        if session.inbox:
            left = Session(position=NEXT, applied=session.applied + session.inbox)
        ended = state._replace(session=left, ghost=ghost, stop=STOP_DONE)
        yield "stop.ended", 0, touch(ended, config=config)
