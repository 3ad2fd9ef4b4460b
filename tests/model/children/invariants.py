"""The invariants of docs/protocol.md that children touch, asked of one state."""

from __future__ import annotations

from collections.abc import Iterator

from .changes import cost_of, is_open
from .values import END, ENDED, IDLE, WAIT, Config, State


def violations(state: State, config: Config) -> Iterator[str]:
    """The invariants that this state breaks, by name."""
    parent, ghost = state.parent, state.ghost
    if ghost.broken:
        yield ghost.broken
    if max(ghost.commits) > 1:
        yield "I1: a step is committed twice"
    if ghost.paid > 1 or max(ghost.spent) > 1:
        yield "I4: the model is asked again"
    if max(ghost.made) > 1:
        yield "I14: a child is made twice"
    if max(ghost.ended) > 1:
        yield "I14: a child ends twice"
    if max(ghost.heard) > 1:
        yield "I14: the end of a child reaches its parent twice"
    if parent.phase == WAIT and parent.claim:
        yield "I13: a waiting session has a claim"
    if (parent.phase == END) == bool(parent.due):
        yield "I13: active and due are not the same"
    if 0 <= ghost.charged < sum(_owed(state, number) for number in range(len(state.calls))):
        yield "I15: a child has spent what nobody was charged"
    if config.budget is not None and _spent(state) > config.budget + min(sum(ghost.over), config.at_once):
        yield "I15: a tree spends more than its budget and the calls in flight"
    yield from _child_violations(state)


def _owed(state: State, number: int) -> int:
    """What the parent has to be charged for a child: all that it spent, or its reservation when it gave no end."""
    return cost_of(state, number) if state.calls[number].reply == ENDED else min(1, cost_of(state, number))


def _spent(state: State) -> int:
    """What the children and the parent's final step have spent."""
    return sum(cost_of(state, number) for number in range(len(state.calls))) + state.ghost.commits[1]


def _child_violations(state: State) -> Iterator[str]:
    for number, child in enumerate(state.children):
        if child is None:
            continue
        if not state.calls[number].is_made:
            yield "I14: there is a child that its parent does not know"
        if (child.phase == END) == bool(child.due):
            yield "I13: active and due are not the same"
        if child.phase != END and not child.cancel and not is_open(state, number):
            yield "I14: a child works on, and nobody waits for it"
        if child.phase == END and child.claim:
            yield "I11: an execution that ended keeps a claim"


def has_ended(state: State, config: Config) -> bool:
    """Parent and children have ended, and nobody is at work."""
    del config
    idle = all(worker.at == IDLE for worker in state.workers)
    return idle and state.parent.phase == END and all(each is None or each.phase == END for each in state.children)
