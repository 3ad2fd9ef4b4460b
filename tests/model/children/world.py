"""The rules of claims, time, the sweep, the queue's faults, and of a client that stops the tree."""

from __future__ import annotations

from collections.abc import Iterator

from .changes import leave, push, session_of, spend_fault, stop_session, touch, wake, with_session, with_worker
from .child import CHILD_RULES
from .parent import PARENT_RULES
from .values import (
    COMMITTING,
    DEAD,
    END,
    ENDING,
    EXPIRY,
    FINISHING,
    FIRST,
    IDLE,
    LEG,
    NOW,
    OPEN,
    PARENT,
    RUN,
    WAIT,
    WAITING,
    WORK,
    Config,
    Moves,
    Mutant,
    Session,
    State,
    Worker,
)

_RULES = {**PARENT_RULES, **CHILD_RULES}
_CRASH = {WAITING: "fault.w0", WORK: "fault.c1", ENDING: "fault.c6", FINISHING: "fault.c6", COMMITTING: "fault.c6"}


def moves_of_worker(state: State, config: Config, index: int) -> Moves:
    worker, me = state.workers[index], index + 1
    if worker.at == IDLE:
        yield from _claims(state, config, index)
        return
    yield from _RULES[worker.at](state, config, index, worker)
    if state.faults.crashes:
        event = _CRASH.get(worker.at, "fault.w3")
        yield event, me, leave(spend_fault(state, "crashes"), index)
    session = session_of(state, worker.on)
    if session.claim != me:
        return
    if session.lease and state.faults.pauses:
        paused = with_session(state, worker.on, session._replace(lease=False))
        yield "fault.pause", me, spend_fault(paused, "pauses")
    if not session.lease:
        renewed = with_session(state, worker.on, session._replace(lease=True))
        yield "heartbeat.renewed", me, touch(renewed, config, worker.on, control=True)


def _claims(state: State, config: Config, index: int) -> Moves:
    me = index + 1
    for place, count in enumerate(state.queue):
        if not count:
            continue
        on = PARENT if place < 2 else place - 2
        taken = state._replace(queue=(*state.queue[:place], count - 1, *state.queue[place + 1 :]))
        session = session_of(taken, on)
        position = place if on == PARENT else FIRST
        refused = _refusal(taken, session, position)
        if refused:
            yield f"claim.{refused}", me, taken
            continue
        claimed = with_session(taken, on, session._replace(claim=me, lease=True, phase=RUN, due=NOW))
        worker = Worker(LEG if on == PARENT else WORK, on, position)
        yield "claim.made", me, with_worker(touch(claimed, config, on, control=True), index, worker)


def _refusal(state: State, session: Session, position: int) -> str:
    """Why the message is dropped, and "" when the step may be claimed."""
    if session.phase == END or position < session.position:
        return "stale"
    if session.claim and session.lease:
        return "busy"
    its_time = state.is_expired or state.is_lapsed
    return "waiting" if session.phase == WAIT and not its_time else ""


def _all(state: State) -> Iterator[tuple[int, Session]]:
    """Every session that exists, by its number."""
    yield PARENT, state.parent
    for number, child in enumerate(state.children):
        if child is not None:
            yield number, child


def moves_of_time(state: State, config: Config) -> Moves:
    for on, session in _all(state):
        if session.claim == DEAD and session.lease:
            yield "lease.ended", 0, with_session(state, on, session._replace(lease=False))
    parent = state.parent
    asks = parent.position == FIRST and parent.phase != END and state.calls[0].is_asked
    if asks and not state.is_expired and (config.expires or parent.phase == WAIT):
        yield "time.expired", 0, state._replace(is_expired=True)
    if asks and not state.is_lapsed and any(call.is_told and call.reply == OPEN for call in state.calls):
        yield "time.lapsed", 0, state._replace(is_lapsed=True)


def moves_of_sweep(state: State, config: Config) -> Moves:
    for on, session in _all(state):
        is_time = session.due == NOW or (session.due == EXPIRY and (state.is_expired or state.is_lapsed))
        queued = any(state.queue[:2]) if on == PARENT else state.queue[2 + on]
        if session.phase == END or not is_time or (session.claim and session.lease) or queued:
            continue
        published = push(with_session(state, on, session._replace(due=NOW)), on)
        yield "sweep.published", 0, touch(published, config, on, control=True)


def moves_of_queue(state: State) -> Moves:
    if not state.faults.messages:
        return
    for place, count in enumerate(state.queue):
        before, after = state.queue[:place], state.queue[place + 1 :]
        exists = place <= state.parent.position if place < 2 else state.children[place - 2] is not None
        if count:
            yield "fault.message lost", 0, spend_fault(state._replace(queue=(*before, count - 1, *after)), "messages")
        elif exists:
            yield "fault.message repeated", 0, spend_fault(state._replace(queue=(*before, 1, *after)), "messages")


def moves_of_stop(state: State, config: Config) -> Moves:
    """Somebody stops the tree: the parent, then each child; he may die before any of these."""
    if state.stop > len(state.children):
        return
    following = state._replace(stop=state.stop + 1)
    if state.stop:
        number = state.stop - 1
        if state.children[number] is not None:
            yield "stop.child", 0, stop_session(following, config, number)
        else:
            yield "stop.no child", 0, following
        return
    parent = state.parent
    if parent.phase == END:
        yield "stop.nothing", 0, following
    elif not (parent.claim and parent.lease) and not parent.answered and parent.position == FIRST:
        over = following._replace(parent=Session(phase=END, due=0))
        yield "stop.ended", 0, touch(over, config, PARENT, control=True)
    else:
        yield "stop.parent", 0, _stopped(following, config)


def _stopped(state: State, config: Config) -> State:
    if config.mutant is not Mutant.WAIT_IGNORES_STOP:
        return stop_session(state, config, PARENT)
    parent = state.parent._replace(cancel=True)
    stopped = state._replace(parent=parent)
    return stopped if parent.claim and parent.lease else wake(stopped, PARENT)
