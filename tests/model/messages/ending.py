"""The ends of an execution, and what follows from inbox and queue."""

from __future__ import annotations

from .placing import deliver, in_order, start, start_queued, without_marks
from .values import (
    CALLS,
    COMPLETED,
    FAILED,
    IDLE,
    NOBODY,
    NONE,
    STOPPED,
    Config,
    Messages,
    Mutant,
    Session,
    State,
)


def complete(state: State, config: Config, inbox: Messages, queue: Messages) -> State:
    """End the execution as completed: all steering messages start the next one, else the first queued one does."""
    held = state.session.held and config.mutant is not Mutant.HOLD_ENDS
    session = _ended(state.session, COMPLETED)
    session = session._replace(
        inbox=session.inbox[len(inbox) :], queue=_unmarked(session.queue, config), interrupt=False
    )
    ghost = state.ghost._replace(stopped=())
    ended = state._replace(session=session, ghost=ghost)
    follows = bool(queue) and not session.queue_held
    if follows and inbox and config.mutant is Mutant.QUEUE_BEFORE_STEER:
        started = start_queued(ended._replace(session=session._replace(inbox=inbox)), config)
    elif inbox:
        started = start(ended, config, inbox)
    elif follows:
        started = start_queued(ended, config)
    else:
        return ended._replace(ghost=ghost._replace(is_suspended=False))
    return started._replace(session=started.session._replace(held=held))


def end_early(state: State, config: Config, outcome: int, inbox: Messages) -> State:
    """End the execution as stopped or failed: hold the queue, with the messages of the inbox at its front.

    Messages that came after the stop start the next execution, in front of the queue, which is held only if one of its
    messages came before the stop.
    """
    mutant = config.mutant
    if state.session.clears:
        state = clear(state, config)
        inbox = ()
    before, after = _divide(inbox, config, outcome)
    session, ghost = _ended(state.session, outcome), state.ghost
    rest = session.inbox[len(inbox) :]
    leaves = Mutant.STOP_LEAVES_INBOX if outcome == STOPPED else Mutant.FAILURE_LEAVES_INBOX
    if mutant is leaves:
        before, rest = (), before
    queue = session.queue + before if mutant is Mutant.MOVED_TO_THE_END else before + session.queue
    session = session._replace(
        inbox=rest,
        queue=_unmarked(queue, config),
        queue_held=_holds(queue, config) or mutant is Mutant.EMPTY_QUEUE_HELD,
        interrupt=session.interrupt and mutant is Mutant.END_KEEPS_INTERRUPT,
    )
    ghost = ghost._replace(is_suspended=False, is_queue_held=_is_held_for_observer(state, queue), stopped=())
    ended = state._replace(session=session, ghost=ghost)
    if after:
        held = session.queue_held and mutant is not Mutant.AFTER_STOP_RELEASES
        return start(ended._replace(session=session._replace(queue_held=held)), config, after)
    if queue and (not session.queue_held or mutant is Mutant.EVERY_END_STARTS):
        return start_queued(ended._replace(session=session._replace(queue_held=False)), config)
    return ended


def _holds(queue: Messages, config: Config) -> bool:
    """Whether a message of the queue came before the stop; without a stop, all did."""
    if config.mutant is Mutant.QUEUED_AFTER_STOP_HELD:
        return bool(queue)
    return any(not message.is_after_stop for message in queue)


def _is_held_for_observer(state: State, queue: Messages) -> bool:
    if not state.session.cancel:
        return bool(queue)
    return any(message.number in state.ghost.stopped for message in queue)


def _unmarked(queue: Messages, config: Config) -> Messages:
    if config.mutant is Mutant.MARKS_OUTLIVE_STOP:
        return queue
    return without_marks(queue, tuple(message.number for message in queue))


def _ended(session: Session, outcome: int) -> Session:
    return session._replace(phase=IDLE, last=outcome, claim=NOBODY, cancel=False, held=False, clears=False)


def _divide(inbox: Messages, config: Config, outcome: int) -> tuple[Messages, Messages]:
    """What came before the stop, and what came after it."""
    mutant, ordered = config.mutant, in_order(inbox, config)
    if mutant is Mutant.AFTER_STOP_HELD or (mutant is Mutant.FAILURE_HOLDS_AFTER_STOP and outcome == FAILED):
        return tuple(message._replace(is_after_stop=False) for message in ordered), ()
    if mutant is Mutant.BEFORE_STOP_STARTS and outcome == STOPPED:
        return (), ordered
    before = tuple(message for message in ordered if not message.is_after_stop)
    return before, tuple(message for message in ordered if message.is_after_stop)


def clear(state: State, config: Config) -> State:
    """Empty inbox and queue."""
    session, ghost = state.session, state.ghost
    gone = tuple(message.number for message in (*session.inbox, *session.queue))
    keeps_mark = config.mutant is Mutant.CLEARING_KEEPS_INTERRUPT
    emptied = session._replace(inbox=(), queue=(), interrupt=session.interrupt and keeps_mark, queue_held=False)
    undelivered = tuple(sorted(ghost.undelivered + gone))
    return state._replace(session=emptied, ghost=ghost._replace(undelivered=undelivered, is_queue_held=False))


def go_on(state: State, config: Config, inbox: Messages) -> State:
    """Commit a step that is not the last: the same execution goes on with the messages of the inbox."""
    session = state.session
    session = session._replace(
        inbox=session.inbox[len(inbox) :],
        has_called=session.has_called or session.answer == CALLS,
        answer=NONE,
        interrupt=False,
        claim=NOBODY,
    )
    return deliver(state._replace(session=session), config, inbox)
