"""The invariants of docs/protocol.md, asked of one state."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from .values import ACKNOWLEDGED, FIRST, FOREIGN, LAST, NEXT, NOT_RUN, OK, RUNNING, STOP_DONE, Config, Effect, State


def violations(state: State, config: Config) -> Iterator[str]:
    """The invariants of PROTOCOL.md that this state breaks, by name."""
    session, ghost = state.session, state.ghost
    positions = [position for position, _ in ghost.history]
    if any(later <= earlier for earlier, later in pairwise(positions)):
        yield "I1: a step is committed twice"
    if ghost.denied:
        yield "I1: a worker denies a step that it committed"
    yield from _effect_violations(state, config)
    if ghost.paid > 1:
        yield "I4: the model is asked again without a crash or a lost lease inside c2"
    if ghost.late_begin:
        yield "I6: a call began after the stop"
    if ghost.over_budget:
        yield "I7: the model is asked although the budget is used up"
    yield from _deletion_violations(state)
    if not session.deleted:
        yield from _action_violations(state)
    if session.due == session.over:
        yield "D: runnable and due are not the same"
    if any(state.queue[position] for position in range(session.position + 1, 3)):
        yield "D: a message is ahead of its session"
    if session.over and (session.claim or ghost.leaked):
        yield "I11: a session that is over keeps a claim or a key without TTL"


def _effect_violations(state: State, config: Config) -> Iterator[str]:
    ghost = state.ghost
    if max(ghost.effects) > 1:
        yield f"I3: a call of the class {config.effect} has two effects"
    for position, outcome in ghost.history:
        effects = ghost.effects[position] if position < NEXT else 0
        if outcome == NOT_RUN and effects:
            yield "I5: the history says 'not run', and the effect is there"
        if outcome == OK and not effects and config.effect is not Effect.PURE:
            yield "I3: the history says 'ok', and there is no effect"
    if any(worker.answer == FOREIGN and worker.at == RUNNING for worker in state.workers):
        yield "I5: a tool runs for an answer that is not the journaled one"
    answered = {position for position, _ in ghost.history}
    for position in (FIRST, LAST):
        passed = position < state.session.position or state.session.over
        running = any(worker.at == RUNNING and worker.position == position for worker in state.workers)
        if passed and position not in answered and (ghost.effects[position] or running):
            yield "I5: an effect, or a call that runs, is missing from the history"


def _deletion_violations(state: State) -> Iterator[str]:
    if state.ghost.deleted and not state.session.deleted:
        yield "I16: a deleted session is there again"
    if state.ghost.cut_off:
        yield "I16: a session is deleted while an execution of it runs"


def _action_violations(state: State) -> Iterator[str]:
    session, ghost = state.session, state.ghost
    copies = session.inbox + session.applied
    if copies > 1:
        yield "I8: a message is applied twice"
    if state.message == ACKNOWLEDGED and not copies:
        yield "I8: an acknowledged message is lost"
    if session.over and session.inbox:
        yield "I8: a message is stranded in the inbox"
    ended_early = ghost.stopped and session.position < NEXT
    if session.over and state.message == ACKNOWLEDGED and not (ghost.answered or ended_early):
        yield "I8: the execution is over, and no answer has seen the acknowledged message"
    if state.stop == STOP_DONE and session.position < NEXT and not (session.over or session.cancel):
        yield "I8: an acknowledged stop is lost"


def is_prefix(before: State, after: State) -> bool:
    """Whether the history seen before is a prefix of the one seen after (I1)."""
    history = before.ghost.history
    return after.ghost.history[: len(history)] == history
