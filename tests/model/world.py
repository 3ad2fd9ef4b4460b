"""The rules of all that is not a worker: time, the sweep, faults of the queue, and what users do."""

from __future__ import annotations

from collections.abc import Iterator

from .changes import push, spend, touch
from .values import (
    ACKNOWLEDGED,
    DEAD,
    DELETE_DONE,
    IN_DOUBT,
    NEXT,
    NOT_ASKED,
    READING,
    STOP_DONE,
    WILL_CANCEL,
    WILL_DELETE,
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
    if state.session.deleted:
        yield "user.deleted", 0, state._replace(message=ACKNOWLEDGED)
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


def moves_of_delete(state: State, config: Config) -> Moves:
    """A deletion: it reads, watching session and ctl, and deletes a session of which no execution runs.

    A client that submitted the session and had no reply submits it again: at any moment, and after its end as well.
    """
    session = state.session
    if session.deleted:
        if config.mutant is Mutant.NO_TOMBSTONE:
            yield "submit.again", 0, state._replace(session=Session())
        else:
            yield "submit.deleted", 0, state
    if state.delete in (NOT_ASKED, READING):
        if session.over or config.mutant is Mutant.DELETED_WHILE_IT_RUNS:
            yield "delete.read", 0, state._replace(delete=WILL_DELETE)
        elif state.delete == READING:
            yield "delete.refused", 0, state._replace(delete=NOT_ASKED)
    elif state.delete == WILL_DELETE:
        gone = Session(position=session.position, over=True, due=False, deleted=True)
        if config.mutant is Mutant.DELETED_BUT_DUE:
            gone = gone._replace(due=True)
        ghost = state.ghost._replace(deleted=True, cut_off=not session.over)
        deleted = touch(state._replace(session=gone, ghost=ghost, delete=DELETE_DONE), config=config)
        yield "delete.made", 0, deleted
        if state.faults.replies:
            # It asks again, and finds the mark.
            yield "delete.made, reply lost", 0, deleted._replace(faults=spend(state.faults, "replies"))
