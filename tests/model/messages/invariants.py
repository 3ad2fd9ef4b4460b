"""The invariants of messages with a mode, asked of one state and of the way from one to the next."""

from __future__ import annotations

from collections.abc import Iterator

from .values import (
    ASKS,
    COMPLETED,
    FINAL,
    IDLE,
    INTERRUPT,
    NOBODY,
    QUEUE,
    RESTING,
    WAIT,
    Config,
    Receipt,
    Session,
    State,
)


def violations(state: State, config: Config) -> Iterator[str]:
    """The invariants that this state breaks, by name."""
    session, ghost = state.session, state.ghost
    if ghost.broken:
        yield ghost.broken
    places = _places(state)
    if len(set(places)) < len(places):
        yield "M1: a message is in two places"
    if {receipt.number for receipt in ghost.receipts} != set(places):
        yield "M1: an accepted message is in no place, or a refused one is in one"
    if session.phase == IDLE and session.inbox:
        yield "M2: a message waits in the inbox of an idle session"
    if session.phase == IDLE and session.queue and not session.queue_held:
        yield "M2: a message waits in the queue of an idle session, and nothing holds it"
    if session.queue_held and not session.queue:
        yield "M2: an empty queue is held"
    if session.phase == IDLE and any(message.number in ghost.cleared for message in session.queue):
        yield "M12: a stop was told to clear a message, which is held"
    if config.yields and session.phase == WAIT:
        yield from _yield_violations(session)
    yield from _order_violations(state)
    yield from _interrupt_violations(state)


def _places(state: State) -> list[int]:
    session, ghost = state.session, state.ghost
    waiting = [message.number for message in (*session.inbox, *session.queue)]
    return [*waiting, *ghost.withdrawn, *ghost.undelivered, *(delivery.number for delivery in ghost.delivered)]


def _order_violations(state: State) -> Iterator[str]:
    receipts = state.ghost.receipts
    queued = [delivery for delivery in state.ghost.delivered if delivery.mode == QUEUE]
    if len({delivery.execution for delivery in queued}) < len(queued):
        yield "M4: an execution takes two queued messages"
    queue = state.session.queue
    waiting = [message.number for message in queue if message.mode == QUEUE]
    if not _is_by_arrival([*(delivery.number for delivery in queued), *waiting], receipts):
        yield "M3: queued messages are delivered, or wait, in another order than that of their arrival"
    are_queued = [message.mode == QUEUE for message in queue]
    if are_queued != sorted(are_queued):
        yield "M5: a steering message stands in the queue behind a queued one"


def _is_by_arrival(numbers: list[int], receipts: tuple[Receipt, ...]) -> bool:
    return numbers == [receipt.number for receipt in receipts if receipt.number in numbers]


def _yield_violations(session: Session) -> Iterator[str]:
    if session.answer == ASKS and session.inbox and not session.cancel:
        yield "M19: a session waits for an answer although a message has come that takes its place"
    if session.answer != ASKS and not session.held:
        yield "M20: a session waits for nothing, and nobody wakes it"


def _interrupt_violations(state: State) -> Iterator[str]:
    session = state.session
    waits = any(message.mode == INTERRUPT for message in session.inbox)
    if waits and not session.interrupt:
        yield "M9: an interrupting message waits without its mark"
    if session.interrupt and not waits:
        yield "M15: a call can be cut for a message that is gone"
    if session.phase == WAIT and session.interrupt and not session.held:
        yield "M9: an interrupting message does not wake a wait"


def change_violations(before: State, after: State) -> Iterator[str]:
    """The invariants that the way from one state to the next breaks."""
    old, new = before.session, after.session
    if old.answer == FINAL != new.answer and old.execution == new.execution:
        yield "M18: a last answer is dropped, or its execution goes on behind it"
    if old.phase != IDLE and (new.phase == IDLE or new.execution != old.execution):
        yield from _end_violations(before, after)
    if new.queue_held and not after.ghost.is_queue_held:
        yield "M14: a queue stays held although a release or a retry let it go"


def _end_violations(before: State, after: State) -> Iterator[str]:
    """What the end of an execution breaks."""
    old, new = before.session, after.session
    cleared = set(after.ghost.undelivered) - set(before.ghost.undelivered)
    if old.cancel and not cleared <= set(before.ghost.cleared):
        yield "M10: a stop clears a message that came after it"
    if new.last == COMPLETED:
        return
    if old.cancel and new.queue_held and not any(message.number in before.ghost.stopped for message in new.queue):
        yield "M10: a stop holds a queue whose messages all came after it"
    held = {message.number for message in new.queue}
    delivered = {delivery.number for delivery in after.ghost.delivered}
    for message in old.inbox:
        came_after = old.cancel and message.number not in before.ghost.stopped
        if came_after and message.number in held:
            yield "M10: a stop holds a message that came after it"
        if not came_after and message.number in delivered:
            yield "M16: a message starts an execution although a stop or a failure came after it"


def rests(state: State, config: Config) -> bool:
    """The worker has nothing to do: the session is idle, waits, or is held."""
    del config
    session = state.session
    if state.worker.at != RESTING or session.claim != NOBODY or session.cancel:
        return False
    waits = session.phase == WAIT and session.answer == ASKS and not session.interrupt
    return session.phase == IDLE or session.held or waits
