"""The rules of clients: send, withdraw, change a mode, stop, release, retry, suspend, resume, answer."""

from __future__ import annotations

from typing import Final, assert_never

from .ending import clear, end_early
from .placing import find_message, place, put_by_arrival, start_queued, take_out, with_broken, without_marks
from .values import (
    AT_REST,
    CALLS,
    CLOSING,
    COMMITTING,
    COMPLETED,
    HELD,
    IDLE,
    JOINS,
    NOBODY,
    NONE,
    QUEUE,
    QUEUED,
    REFUSE,
    RUN,
    STARTS,
    STEER,
    STOPPED,
    WAIT,
    Act,
    Config,
    Message,
    Moves,
    Mutant,
    Other,
    Receipt,
    Send,
    Session,
    SetMode,
    State,
    Stop,
    Withdraw,
)

_SENT: Final = {STARTS: "send.started", JOINS: "send.joined", QUEUED: "send.queued", HELD: "send.held"}
_MOVED: Final = {STARTS: "mode.started", JOINS: "mode.joined", QUEUED: "mode.queued"}


def moves_of_clients(state: State, config: Config) -> Moves:
    """Each act that is left, where it can be done."""
    seen: set[Act] = set()
    for index in state.left:
        act = config.acts[index]
        if act in seen:
            continue
        seen.add(act)
        left = tuple(other for other in state.left if other != index)
        for event, who, done in _moves_of_act(state._replace(left=left), config, act):
            yield event, who, _throw_back(state, done, config)


def _moves_of_act(state: State, config: Config, act: Act) -> Moves:
    match act:
        case Send():
            return _send(state, config, act)
        case Withdraw():
            return _withdraw(state, config, act)
        case SetMode():
            return _set_mode(state, config, act)
        case Stop():
            return _stop(state, config, act)
        case Other():
            return _OTHERS[act](state, config)
    assert_never(act)


def _throw_back(before: State, after: State, config: Config) -> State:
    """A write to a watched key makes the EXEC of the commit fail, which then reads again."""
    if after.worker.at != COMMITTING:
        return after
    session = after.session
    if config.mutant is Mutant.INBOX_UNWATCHED:
        session = session._replace(inbox=before.session.inbox)
    if config.mutant is Mutant.QUEUE_UNWATCHED:
        session = session._replace(queue=before.session.queue)
    if session == before.session:
        return after
    return after._replace(worker=AT_REST._replace(at=CLOSING, fails=after.worker.fails))


def _send(state: State, config: Config, act: Send) -> Moves:
    session, mutant = state.session, config.mutant
    receipt = next((receipt for receipt in state.ghost.receipts if receipt.number == act.number), None)
    if receipt is not None and _is_recognised(state, config, act.number):
        if (
            mutant is Mutant.PLACED_AGAIN
            and place(state, config, Message(receipt.number, receipt.mode))[1] != receipt.placement
        ):
            state = with_broken(state, "M11: a message that is sent again gets another placement")
        yield "send.known already", 0, state
        return
    if act.mode == REFUSE and session.phase != IDLE:
        if mutant is Mutant.REFUSED_IS_KEPT:
            state, _ = place(state, config, Message(act.number, STEER, session.cancel))
        yield "send.refused", 0, state
        return
    if receipt is not None:
        state = with_broken(state, "M8: a message that is sent again is applied again")
    mode = STEER if act.mode == REFUSE else act.mode
    placed, placement = place(state, config, Message(act.number, mode, session.cancel))
    ghost = placed.ghost
    receipts = (*ghost.receipts, Receipt(act.number, mode, placement))
    yield _SENT[placement], 0, placed._replace(ghost=ghost._replace(receipts=receipts))


def _is_recognised(state: State, config: Config, number: int) -> bool:
    ghost = state.ghost
    match config.mutant:
        case Mutant.NOT_RECOGNISED:
            return False
        case Mutant.DELIVERED_FORGOTTEN:
            return all(delivery.number != number for delivery in ghost.delivered)
        case Mutant.QUEUED_FORGOTTEN:
            return all(message.number != number for message in state.session.queue)
        case Mutant.WITHDRAWN_FORGOTTEN:
            return number not in ghost.withdrawn + ghost.undelivered
        case _:
            return True


def _withdraw(state: State, config: Config, act: Withdraw) -> Moves:
    if find_message(state.session, act.number) is None:
        return
    taken = take_out(state, config, act.number)
    withdrawn = tuple(sorted((*taken.ghost.withdrawn, act.number)))
    yield "withdraw.made", 0, taken._replace(ghost=taken.ghost._replace(withdrawn=withdrawn))


def _set_mode(state: State, config: Config, act: SetMode) -> Moves:
    session, mutant = state.session, config.mutant
    message = find_message(session, act.number)
    if message is None or _is_as_asked(state, message, act.mode):
        return
    if message in session.queue and act.mode == QUEUE and mutant is not Mutant.DEMOTED_STARTS:
        yield "mode.queued", 0, put_by_arrival(state, config, message)
        return
    taken = take_out(state, config, act.number)
    if mutant is Mutant.MODE_IN_TWO:
        yield "mode.taken out", 0, taken
    if mutant is Mutant.PROMOTED_WAITS and session.phase == IDLE:
        waiting = taken.session._replace(inbox=(Message(act.number, act.mode),))
        yield "mode.joined", 0, taken._replace(session=waiting)
        return
    # Who promotes a message after a stop wants it delivered in spite of the stop.
    is_after_stop = message.is_after_stop if act.mode == QUEUE else session.cancel
    moved, placement = place(taken, config, Message(act.number, act.mode, is_after_stop))
    if placement == STARTS and act.mode == QUEUE:
        moved = with_broken(moved, "M13: a held queue goes on without a release or a retry")
    if act.mode != QUEUE:
        stopped = tuple(number for number in moved.ghost.stopped if number != act.number)
        moved = moved._replace(ghost=moved.ghost._replace(stopped=stopped))
        if mutant is Mutant.PROMOTED_BEFORE_STOP:
            moved = moved._replace(session=_unmarked(moved, (act.number,)))
    yield _MOVED[placement], 0, moved


def _is_as_asked(state: State, message: Message, mode: int) -> bool:
    session = state.session
    if message in session.queue:
        return message.mode == mode == QUEUE
    return mode != QUEUE and (message.is_after_stop if session.cancel else message.mode == mode)


def _unmarked(state: State, numbers: tuple[int, ...]) -> Session:
    session = state.session
    return session._replace(inbox=without_marks(session.inbox, numbers), queue=without_marks(session.queue, numbers))


def _stop(state: State, config: Config, act: Stop) -> Moves:
    session, mutant = state.session, config.mutant
    if session.phase == IDLE:
        if act.clears and session.queue:
            asked = _told(state, act)
            yield "stop.cleared", 0, asked if mutant is Mutant.IDLE_STOP_CLEARS_NOTHING else clear(asked, config)
    elif session.cancel:
        yield "stop.asked again", 0, _stop_again(state, config, act)
    else:
        yield from _stop_first(state, config, act)


def _stop_first(state: State, config: Config, act: Stop) -> Moves:
    asked = _told(state, act)
    if act.clears:
        waits = asked.session._replace(clears=True)
        asked = asked._replace(session=waits) if config.mutant is Mutant.CLEARED_AT_END else clear(asked, config)
    session = asked.session
    if session.claim == NOBODY and session.answer == NONE and session.phase == RUN:
        yield "stop.ended", 0, end_early(asked, config, STOPPED, session.inbox)
    elif session.phase == WAIT:
        phase = WAIT if config.mutant is Mutant.STOP_KEEPS_WAIT else RUN
        yield "stop.woke", 0, asked._replace(session=session._replace(cancel=True, phase=phase, answer=CALLS))
    else:
        yield "stop.left", 0, asked._replace(session=session._replace(cancel=True))


def _stop_again(state: State, config: Config, act: Stop) -> State:
    """Hold, or clear, what has come since the first stop."""
    asked = _told(state, act)
    if config.mutant is not Mutant.SECOND_STOP_KEEPS_MARKS:
        asked = asked._replace(session=_unmarked(asked, asked.ghost.stopped))
    return clear(asked, config) if act.clears and config.mutant is not Mutant.SECOND_STOP_CLEARS_NOTHING else asked


def _told(state: State, act: Stop) -> State:
    """The observer remembers what was there when a stop was asked for."""
    session, ghost = state.session, state.ghost
    there = tuple(sorted(message.number for message in (*session.inbox, *session.queue)))
    cleared = tuple(sorted({*ghost.cleared, *there})) if act.clears else ghost.cleared
    return state._replace(ghost=ghost._replace(stopped=there, cleared=cleared))


def _release(state: State, config: Config) -> Moves:
    session, ghost = state.session, state.ghost
    if session.release_known and config.mutant is not Mutant.RELEASE_NOT_RECOGNISED:
        if session.queue_held and not ghost.is_released:
            state = with_broken(state, "M14: a release is known already, and has released nothing")
        yield "release.known already", 0, state
        return
    if not session.queue_held:
        # Nothing is remembered: the same release, sent again when the queue is held, releases it.
        known = config.mutant is Mutant.IDLE_RELEASE_REMEMBERED
        yield "release.nothing", 0, state._replace(session=session._replace(release_known=known))
        return
    if ghost.is_released:
        state = with_broken(state, "M8: a release that is sent again releases a later hold")
    ghost = state.ghost._replace(is_released=True, is_queue_held=False)
    lifted = state._replace(session=session._replace(queue_held=False, release_known=True), ghost=ghost)
    if session.phase == IDLE and session.queue:
        yield "release.started", 0, start_queued(lifted, config)
    else:
        yield "release.made", 0, lifted


def _retry(state: State, config: Config) -> Moves:
    session = state.session
    if session.phase != IDLE or session.last == COMPLETED or not session.execution:
        return
    held = session.queue_held and config.mutant is Mutant.RETRY_KEEPS_HELD
    ghost = state.ghost._replace(is_queue_held=False, cleared=())
    yield "retry.made", 0, state._replace(session=session._replace(phase=RUN, queue_held=held), ghost=ghost)


def _suspend(state: State, config: Config) -> Moves:
    del config
    session = state.session
    if session.phase == IDLE or session.cancel or session.held:
        return
    ghost = state.ghost._replace(is_suspended=True)
    yield "suspend.made", 0, state._replace(session=session._replace(held=True), ghost=ghost)


def _resume(state: State, config: Config) -> Moves:
    session = state.session
    if not session.held:
        return
    keeps = session.interrupt and config.mutant is not Mutant.RESUME_FORGETS_INTERRUPT
    resumed = session._replace(held=False, interrupt=keeps)
    is_over = keeps or (session.answer == CALLS and config.mutant is not Mutant.RESUME_DOES_NOT_WAKE)
    if session.phase == WAIT and is_over:
        resumed = resumed._replace(phase=RUN, answer=CALLS)
    ghost = state.ghost._replace(is_suspended=False)
    yield "resume.made", 0, state._replace(session=resumed, ghost=ghost)


def _answer(state: State, config: Config) -> Moves:
    del config
    session = state.session
    if session.phase == WAIT and session.answer != CALLS:
        answered = session._replace(answer=CALLS, phase=WAIT if session.held else RUN)
        yield "answer.given", 0, state._replace(session=answered)


_OTHERS: Final = {
    Other.RELEASE: _release,
    Other.RETRY: _retry,
    Other.SUSPEND: _suspend,
    Other.RESUME: _resume,
    Other.ANSWER: _answer,
}
