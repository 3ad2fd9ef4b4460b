"""The rules of a worker on the parent: it asks, makes children with its wait, stops them, and commits."""

from __future__ import annotations

from typing import Final

from .changes import (
    cost_of,
    is_covered,
    is_mine,
    is_open,
    leave,
    make_child,
    push,
    spend_fault,
    stop_session,
    touch,
    with_broken,
    with_call,
    with_worker,
)
from .values import (
    CLOSED,
    CLOSING,
    COMMITTING,
    END,
    ENDED,
    EXPIRY,
    FIRST,
    LAST,
    LEG,
    NOBODY,
    OPEN,
    PARENT,
    STOPPING,
    WAIT,
    WAITED,
    WAITING,
    Config,
    Moves,
    Mutant,
    Session,
    State,
    Worker,
)


def _leg(state: State, config: Config, index: int, worker: Worker) -> Moves:
    """Do the next thing that the journal lacks; without one, wait or commit."""
    me, parent = index + 1, state.parent
    if not is_mine(state, worker, me):
        yield "leg.claim lost", me, leave(state, index)
    elif worker.position == LAST or (parent.cancel and not any(call.is_asked for call in state.calls)):
        yield "leg.closed", me, with_worker(state, index, worker._replace(at=CLOSING))
    elif not parent.answered:
        ghost = state.ghost._replace(paid=state.ghost.paid + 1)
        yield "infer.called", me, state._replace(parent=parent._replace(answered=True), ghost=ghost)
    elif not state.calls[0].is_asked:
        asked = tuple(call._replace(is_asked=True) for call in state.calls)
        yield "request.opened", me, state._replace(calls=asked)
    else:
        yield from _go_on(state, config, index, worker)


def _go_on(state: State, config: Config, index: int, worker: Worker) -> Moves:
    me = index + 1
    if _is_stopping(state, config, worker):
        moves = list(_stop_open(state, config, index, worker))
        if moves:
            yield from moves
            return
    elif config.mutant is Mutant.MADE_BEFORE_WAIT and None in state.children:
        yield "child.made early", me, make_child(state, config, state.children.index(None))
        return
    elif (refused := _unaffordable(state, config)) is not None:
        closed = with_call(state, refused, state.calls[refused]._replace(reply=CLOSED))
        yield "child.refused", me, touch(closed, config, PARENT, journal=True)
        return
    replies = tuple(call.reply for call in state.calls)
    if OPEN not in replies or (config.mutant is Mutant.OPEN_AT_COMMIT and _is_stopping(state, config, worker)):
        yield "leg.closed", me, with_worker(state, index, worker._replace(at=CLOSING))
    elif replies != worker.replies:
        yield "wait.sees news", me, with_worker(state, index, worker._replace(replies=replies))
    else:
        yield "wait.read", me, with_worker(state, index, worker._replace(at=WAITING))


def _unaffordable(state: State, config: Config) -> int | None:
    """The first call whose child nothing is left for, when no child works that may leave something."""
    opened = [number for number, call in enumerate(state.calls) if call.reply == OPEN]
    if not opened or is_covered(state, config) or any(state.calls[number].is_made for number in opened):
        return None
    return opened[0]


def _is_stopping(state: State, config: Config, worker: Worker) -> bool:
    """Whether the children that are open have to be stopped, as this leg knows it."""
    return (
        state.parent.cancel
        or (config.first and ENDED in worker.replies)
        or (config.expires and state.is_expired)
        or any(call.is_told for call in state.calls)
    )


def _stop_open(state: State, config: Config, index: int, worker: Worker) -> Moves:
    """Close calls whose child was never made; note each open child, and tell it, once for each claim."""
    me = index + 1
    for number, call in enumerate(state.calls):
        if call.reply != OPEN:
            continue
        closed = with_call(state, number, call._replace(reply=CLOSED))
        unheard = config.mutant is Mutant.ONLY_STOP_STOPS and not state.parent.cancel
        if not call.is_made or unheard:
            yield "call.closed", me, touch(closed, config, PARENT, journal=True)
            return
        repeats = config.mutant is not Mutant.STOP_NOT_REPEATED or not call.is_told
        if number not in worker.told and repeats:
            noted = with_call(state, number, call._replace(is_told=True))
            yield "child.noted", me, with_worker(noted, index, worker._replace(at=STOPPING, target=number))
            return
        if call.is_told and state.is_lapsed:
            yield "call.closed late", me, touch(closed, config, PARENT, journal=True)
            return


def _tell(state: State, config: Config, index: int, worker: Worker) -> Moves:
    told = worker._replace(at=LEG, told=worker.told | {worker.target})
    yield "child.told", index + 1, stop_session(with_worker(state, index, told), config, worker.target)


def _wait(state: State, config: Config, index: int, worker: Worker) -> Moves:
    """Give claim and message back, and make the children that may be made now, in one transaction."""
    me = index + 1
    waiting = state.parent._replace(phase=WAIT, claim=NOBODY, lease=False, due=EXPIRY)
    # A request without an expiry is looked at again after thirty days, and then waits again.
    done = state._replace(parent=waiting, is_expired=state.is_expired and config.expires)
    if not _is_stopping(state, config, worker):
        done = _with_children(done, config)
    done = _with_rest(state, done, config, worker)
    done = touch(leave(done, index), config, PARENT, control=True, journal=True)
    yield "wait.made", me, done
    if state.faults.crashes:
        yield "fault.w4", me, spend_fault(done, "crashes")
    if state.faults.replies:
        yield "wait.made, reply lost", me, spend_fault(with_worker(done, index, worker._replace(at=WAITED)), "replies")


def _with_rest(before: State, state: State, config: Config, worker: Worker) -> State:
    """Sleep through all ends but the last one, where all children are made and each of them is waited for."""
    opened = [call for call in state.calls if call.reply == OPEN]
    waits_for_all = (
        not config.first and not _is_stopping(before, config, worker) and all(call.is_made for call in opened)
    )
    rest = max(0, len(opened) - (config.mutant is not Mutant.RESTS_TOO_LONG)) if waits_for_all else 0
    return state._replace(parent=state.parent._replace(rest=rest))


def _with_children(state: State, config: Config) -> State:
    working = sum(call.is_made and call.reply == OPEN for call in state.calls)
    for number, call in enumerate(state.calls):
        again = config.mutant is Mutant.MADE_AT_EVERY_WAIT
        if call.reply != OPEN or (call.is_made and not again) or working >= config.at_once:
            continue
        if not is_covered(state, config):
            break
        if state.children[number] is None or again:
            state = make_child(state, config, number)
            state = with_broken(state, "I6: a child is made under a stop") if state.parent.cancel else state
        state = with_call(state, number, call._replace(is_made=True))
        working += 1
    return state


def _waited(state: State, config: Config, index: int, worker: Worker) -> Moves:
    """Read after a lost reply: the wait took its own claim away, so there is nothing left to do."""
    if not is_mine(state, worker, index + 1):
        yield "wait.made already", index + 1, leave(state, index)


def _read_for_commit(state: State, config: Config, index: int, worker: Worker) -> Moves:
    if is_mine(state, worker, index + 1):
        yield "commit.read", index + 1, with_worker(state, index, worker._replace(at=COMMITTING))
    else:
        yield "commit.claim lost", index + 1, leave(state, index)


def _commit(state: State, config: Config, index: int, worker: Worker) -> Moves:
    me, parent = index + 1, state.parent
    ghost = state.ghost
    commits = (ghost.commits[0] + 1, ghost.commits[1]) if worker.position == FIRST else (ghost.commits[0], 1)
    done = state._replace(ghost=ghost._replace(commits=commits))
    if worker.position == FIRST:
        done = _with_charges(done, config)
    if parent.cancel or worker.position == LAST:
        over = Session(phase=END, position=parent.position, due=0)
        done = done._replace(parent=over, is_expired=False, is_lapsed=False)
    else:
        done = push(done._replace(parent=Session(position=LAST), is_expired=False, is_lapsed=False), PARENT)
    done = touch(done, config, PARENT, control=True, journal=True)
    yield "commit.made", me, leave(done, index)
    if state.faults.crashes:
        yield "fault.c7", me, spend_fault(leave(done, index), "crashes")
    if state.faults.replies:
        in_doubt = with_worker(done, index, worker._replace(at=CLOSING))
        yield "commit.made, reply lost", me, spend_fault(in_doubt, "replies")


def _with_charges(state: State, config: Config) -> State:
    """Charge the step: what ended children have spent, and the whole reservation of one that was closed."""
    if any(is_open(state, number) for number in range(len(state.calls))):
        state = with_broken(state, "I14: a step is committed with an open child")
    ghost, charged = state.ghost, 0
    for number, call in enumerate(state.calls):
        if call.reply == ENDED:
            charged += cost_of(state, number)
        elif call.is_made and config.mutant is not Mutant.CLOSED_WITHOUT_CHARGE:
            charged += 1
    return state._replace(ghost=ghost._replace(charged=charged))


PARENT_RULES: Final = {
    LEG: _leg,
    STOPPING: _tell,
    WAITING: _wait,
    WAITED: _waited,
    CLOSING: _read_for_commit,
    COMMITTING: _commit,
}
