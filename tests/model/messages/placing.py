"""The places of a message: the inbox, the queue, or an execution that it starts."""

from __future__ import annotations

from typing import Final

from .values import (
    ASKS,
    CALLS,
    HELD,
    IDLE,
    INTERRUPT,
    JOINS,
    NOBODY,
    NONE,
    QUEUE,
    QUEUED,
    RUN,
    STARTS,
    STEER,
    WAIT,
    Config,
    Delivery,
    Message,
    Messages,
    Mutant,
    Session,
    State,
)

_BEHIND: Final = "M5: a steering message is delivered behind one that it goes in front of"


def place(state: State, config: Config, message: Message) -> tuple[State, int]:
    """Put a message where its mode says; the state and the placement."""
    session, mutant = state.session, config.mutant
    if session.phase == IDLE:
        if message.mode == QUEUE and session.queue and mutant is not Mutant.QUEUE_OVERTAKES_HELD:
            return _queue(state, config, message), HELD
        releases = mutant is Mutant.STEER_RELEASES
        state = state._replace(session=session._replace(queue_held=session.queue_held and not releases))
        return start(state, config, (message._replace(is_after_stop=False),)), STARTS
    if message.mode == QUEUE:
        return _queue(state, config, message), QUEUED
    return _join(state, config, message), JOINS


def _join(state: State, config: Config, message: Message) -> State:
    """Put a message into the inbox. Under a stop, nothing is left to interrupt."""
    session = state.session
    if session.cancel:
        message = message._replace(mode=STEER)
    session = session._replace(inbox=(*session.inbox, message))
    if message.mode == INTERRUPT:
        session = session._replace(interrupt=True)
        if session.phase == WAIT and not session.held and config.mutant is not Mutant.INTERRUPT_DOES_NOT_WAKE:
            session = session._replace(phase=RUN, answer=CALLS)
    if config.yields and config.mutant is not Mutant.MESSAGE_LEAVES_REQUEST:
        session = _close_request(session, config)
    return state._replace(session=session)


def _close_request(session: Session, config: Config) -> Session:
    """Close what the session waits for, since a message takes its place, and wake it unless it is held."""
    if session.phase != WAIT or session.answer != ASKS or session.cancel:
        return session
    wakes = not session.held and config.mutant is not Mutant.MESSAGE_DOES_NOT_WAKE
    return session._replace(answer=CALLS, phase=RUN if wakes else WAIT)


def _queue(state: State, config: Config, message: Message) -> State:
    """Put a message into the queue, by its arrival among those whose mode is queue."""
    session = state.session
    arrival = _arrival(state, message.number)
    place = len(session.queue)
    for index, other in enumerate(session.queue):
        if _counts(state, config, other) and _arrival(state, other.number) > arrival:
            place = index
            break
    if config.mutant is Mutant.DEMOTED_LAST:
        place = len(session.queue)
    queued = message._replace(mode=QUEUE)
    return state._replace(session=session._replace(queue=(*session.queue[:place], queued, *session.queue[place:])))


def _counts(state: State, config: Config, other: Message) -> bool:
    if config.mutant is Mutant.DEMOTED_BY_FIRST_MODE:
        return next(receipt.mode for receipt in state.ghost.receipts if receipt.number == other.number) == QUEUE
    return other.mode == QUEUE


def _arrival(state: State, number: int) -> int:
    receipts = state.ghost.receipts
    return next((index for index, receipt in enumerate(receipts) if receipt.number == number), len(receipts))


def find_message(session: Session, number: int) -> Message | None:
    """The message of this number, if it is neither delivered nor gone."""
    return next((message for message in (*session.inbox, *session.queue) if message.number == number), None)


def take_out(state: State, config: Config, number: int) -> State:
    """Take a message out of inbox or queue, with the marks that are there for it alone."""
    session, ghost = state.session, state.ghost
    inbox = _without(session.inbox, number)
    queue = _without(session.queue, number)
    interrupts = any(message.mode == INTERRUPT for message in inbox)
    keeps_mark = interrupts or config.mutant is Mutant.WITHDRAWAL_KEEPS_INTERRUPT
    keeps_held = bool(queue) or config.mutant is Mutant.EMPTY_QUEUE_HELD
    session = session._replace(
        inbox=inbox,
        queue=queue,
        interrupt=session.interrupt and keeps_mark,
        queue_held=session.queue_held and keeps_held,
    )
    return state._replace(session=session, ghost=ghost._replace(is_queue_held=ghost.is_queue_held and bool(queue)))


def _without(messages: Messages, number: int) -> Messages:
    return tuple(message for message in messages if message.number != number)


def put_by_arrival(state: State, config: Config, message: Message) -> State:
    """Give a message in the queue the mode queue, and its place among those of this mode. The queue stays held."""
    queue = _without(state.session.queue, message.number)
    return _queue(state._replace(session=state.session._replace(queue=queue)), config, message)


def start(state: State, config: Config, messages: Messages) -> State:
    """Start an execution with messages."""
    session = state.session
    started = session._replace(
        phase=RUN,
        execution=session.execution + 1,
        has_called=False,
        answer=NONE,
        claim=NOBODY,
        interrupt=False,
        cancel=False,
    )
    ghost = state.ghost._replace(stopped=(), cleared=())
    return deliver(state._replace(session=started, ghost=ghost), config, messages)


def start_queued(state: State, config: Config) -> State:
    """Start an execution with the first message of the queue."""
    session = state.session
    if state.ghost.is_queue_held:
        state = with_broken(state, "M13: a held queue goes on without a release or a retry")
    if session.inbox:
        state = with_broken(state, "M5: a queued message starts in front of a steering one")
    count = len(session.queue) if config.mutant is Mutant.QUEUE_TAKEN_WHOLE else 1
    rest = state._replace(session=session._replace(queue=session.queue[count:]))
    return start(rest, config, session.queue[:count])


def deliver(state: State, config: Config, messages: Messages) -> State:
    """Give messages to the active execution."""
    ordered = in_order(messages, config)
    modes = [message.mode for message in ordered]
    if modes != sorted(modes):
        state = with_broken(state, _BEHIND)
    ghost, execution = state.ghost, state.session.execution
    deliveries = tuple(Delivery(message.number, message.mode, execution) for message in ordered)
    return state._replace(ghost=ghost._replace(delivered=ghost.delivered + deliveries))


def without_marks(messages: Messages, numbers: tuple[int, ...]) -> Messages:
    """The messages; those of these numbers count as such that came before a stop."""
    return tuple(
        message._replace(is_after_stop=False) if message.number in numbers else message for message in messages
    )


def in_order(messages: Messages, config: Config) -> Messages:
    """Interrupting messages in front of steering ones, then as they came."""
    if config.mutant is Mutant.INTERRUPT_NOT_FIRST:
        return messages
    return tuple(sorted(messages, key=lambda message: message.mode))


def with_broken(state: State, name: str) -> State:
    """Remember the first invariant that a move broke."""
    return state if state.ghost.broken else state._replace(ghost=state.ghost._replace(broken=name))
