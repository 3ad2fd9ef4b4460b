"""The rules of a worker: one is one round trip to Redis, or one thing that happens outside.

The model of the step searches claim, journal, begin and commit in detail. Here a claim and a model call are one rule
each, so that the search has room for what waiting adds.
"""

from __future__ import annotations

from typing import Final

from ..changes import push, spend
from .calls import CALL_RULES, next_call
from .changes import is_at, is_mine, leave, touch, view_of, with_broken, with_worker
from .ending import COMMIT_RULES
from .values import (
    ASKED_ARGUMENTS,
    CRASH,
    END,
    FIRST,
    HOLD_OVER,
    IDLE,
    LEG,
    NOT_STOPPED,
    NOW,
    OTHER_ARGUMENTS,
    RUN,
    STOPPED,
    WAIT,
    Config,
    Moves,
    Mutant,
    State,
    Worker,
)
from .waits import WAIT_RULES, is_open_for, start_wait


def moves_of_worker(state: State, config: Config, index: int) -> Moves:
    worker, me = state.workers[index], index + 1
    if worker.at == IDLE:
        for position, count in enumerate(state.queue):
            if count:
                taken = state._replace(queue=push(state.queue, position, -1))
                yield from _claim(taken, config, index, position)
        return
    yield from _RULES[worker.at](state, config, index, worker)
    if state.faults.crashes:
        dead = leave(state._replace(faults=spend(state.faults, "crashes")), index)
        yield _crash_point(worker), me, dead
    if state.session.claim == me:
        yield from _lease(state, config, me)


def _crash_point(worker: Worker) -> str:
    if worker.at != LEG:
        return CRASH[worker.at]
    return "fault.w0" if worker.asked else "fault.w3" if worker.is_woken else "fault.c1"


def _lease(state: State, config: Config, me: int) -> Moves:
    session = state.session
    if session.lease and state.faults.pauses:
        faults = spend(state.faults, "pauses")
        yield "fault.pause", me, state._replace(session=session._replace(lease=False), faults=faults)
    if not session.lease:
        renewed = state._replace(session=session._replace(lease=True))
        yield "heartbeat.renewed", me, touch(renewed, config, control=True)


def _claim(state: State, config: Config, index: int, position: int) -> Moves:
    me, session, mutant = index + 1, state.session, config.mutant
    refused = _refusal(state, config, position)
    if refused:
        yield f"claim.{refused}", me, state
        return
    begins_held = session.held and not session.cancel and not state.is_hold_over
    if begins_held:
        state = with_broken(state, "I13: a held session is claimed")
    claimed = session._replace(claim=me, lease=True, phase=RUN, due=NOW)
    if mutant is Mutant.CLAIM_KEEPS_WAIT:
        claimed = claimed._replace(phase=session.phase)
    if mutant is Mutant.MODEL_ASKED_AGAIN and session.asked:
        claimed = claimed._replace(answer=0)
    ending = STOPPED if session.cancel else HOLD_OVER if session.held and state.is_hold_over else NOT_STOPPED
    is_woken = position == FIRST and bool(session.asked or session.job_asked)
    worker = Worker(LEG, position, view_of(state, config), ending=ending, is_woken=is_woken)
    state = state._replace(session=claimed, ghost=state.ghost._replace(news=False))
    yield (
        "claim.woken" if is_woken else "claim.made",
        me,
        with_worker(touch(state, config, control=True), index, worker),
    )


def _refusal(state: State, config: Config, position: int) -> str:
    """Why the message is dropped, and "" when the step may be claimed."""
    session, mutant = state.session, config.mutant
    hold_is_over = session.held and state.is_hold_over and mutant is not Mutant.HOLD_WITHOUT_END
    if session.phase == END or position < session.position:
        return "stale"
    if position > session.position:
        return "ahead"
    if session.claim and session.lease:
        return "busy"
    stops = session.cancel and mutant is not Mutant.HOLD_REFUSES_STOP
    if session.held and not (stops or hold_is_over) and mutant is not Mutant.HELD_CLAIMED:
        return "held"
    its_time = state.is_expired or hold_is_over
    return "waiting" if session.phase == WAIT and not its_time else ""


def _leg(state: State, config: Config, index: int, worker: Worker) -> Moves:
    """Do the next thing that the journal lacks; without one, wait or commit."""
    session, me = state.session, index + 1
    if not is_mine(session, worker, me):
        if config.mutant is Mutant.WAIT_WITHOUT_CLAIM and is_at(session, FIRST) and is_open_for(session, worker):
            yield from start_wait(state, config, index, worker)
        else:
            yield "leg.claim lost", me, leave(state, index)
        return
    if session.cancel and not worker.ending:
        yield "leg.told of the stop", me, with_worker(state, index, worker._replace(ending=STOPPED))
    if worker.ending or worker.position != FIRST:
        yield from start_wait(state, config, index, worker)
        return
    if not session.answer:
        yield "infer.called", me, _asked_model(state, worker)
        return
    moves = list(next_call(state, config, index, worker))
    if moves:
        yield from moves
    else:
        yield from start_wait(state, config, index, worker)


def _asked_model(state: State, worker: Worker) -> State:
    """Ask the model and journal its answer; asked again, it wants other arguments."""
    session, ghost = state.session, state.ghost
    answer = OTHER_ARGUMENTS if ghost.paid else ASKED_ARGUMENTS
    return state._replace(session=session._replace(answer=answer), ghost=ghost._replace(paid=ghost.paid + 1))


_RULES: Final = {LEG: _leg, **CALL_RULES, **WAIT_RULES, **COMMIT_RULES}
