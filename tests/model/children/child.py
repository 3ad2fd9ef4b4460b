"""The rules of a worker on a child: it works, and its end answers the parent."""

from __future__ import annotations

from typing import Final

from .changes import add, end_child, is_mine, leave, session_of, spend_fault, tell_parent, with_session, with_worker
from .values import ENDING, FINISHING, TELLING, WORK, Config, Moves, Mutant, State, Worker


def _work(state: State, config: Config, index: int, worker: Worker) -> Moves:
    """Ask the model and journal its answer, unless that was done or the child was stopped."""
    me, child = index + 1, session_of(state, worker.on)
    if not is_mine(state, worker, me):
        yield "leg.claim lost", me, leave(state, index)
    elif child.cancel or child.answered:
        yield "child.closed", me, with_worker(state, index, worker._replace(at=ENDING))
    else:
        ghost = state.ghost._replace(spent=add(state.ghost.spent, worker.on))
        worked = with_session(state, worker.on, child._replace(answered=True))._replace(ghost=ghost)
        yield "child.worked", me, worked
        if config.budget is not None:
            dearer = ghost._replace(over=add(ghost.over, worker.on))
            yield "child.worked, for more", me, worked._replace(ghost=dearer)


def _read_for_end(state: State, config: Config, index: int, worker: Worker) -> Moves:
    """Watch the child, and the parent's control fields and journal."""
    if is_mine(state, worker, index + 1):
        reading = worker._replace(at=FINISHING, saw=state.parent.phase)
        yield "child.read", index + 1, with_worker(state, index, reading)
    else:
        yield "leg.claim lost", index + 1, leave(state, index)


def _end(state: State, config: Config, index: int, worker: Worker) -> Moves:
    me = index + 1
    done = end_child(state, config, worker.on, worker.saw)
    if config.mutant is Mutant.END_TOLD_LATER:
        yield "child.ended", me, with_worker(done, index, worker._replace(at=TELLING))
    else:
        yield "child.ended", me, leave(done, index)
    if state.faults.crashes:
        yield "fault.w5", me, spend_fault(leave(done, index), "crashes")
    if state.faults.replies:
        in_doubt = with_worker(done, index, worker._replace(at=ENDING))
        yield "child.ended, reply lost", me, spend_fault(in_doubt, "replies")


def _tell(state: State, config: Config, index: int, worker: Worker) -> Moves:
    told = tell_parent(state, config, worker.on, state.parent.phase)
    yield "child.told its parent", index + 1, leave(told, index)


CHILD_RULES: Final = {WORK: _work, ENDING: _read_for_end, FINISHING: _end, TELLING: _tell}
