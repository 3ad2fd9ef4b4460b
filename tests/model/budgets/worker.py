"""The rules of a worker: one is one round trip to Redis, or one thing that happens outside."""

from __future__ import annotations

from .values import (
    ANSWERED,
    ASKING,
    CLAIMED,
    CLAIMING,
    CLEAR,
    CLOSING,
    COMMITTING,
    DEAD,
    END,
    HELD,
    IDLE,
    NOBODY,
    NOTHING,
    PARKING,
    READING,
    RUN,
    STEPS,
    WAIT,
    WRITING,
    Client,
    Config,
    Moves,
    Mutant,
    Session,
    State,
    Worker,
    limit_of,
)


def moves_of_worker(state: State, config: Config, index: int) -> Moves:
    """What a worker does next, its death, and what becomes of its lease."""
    worker, session, me = state.workers[index], state.session, index + 1
    if worker.at == IDLE:
        yield from _claim(state, config, index)
        return
    yield from _RULES[worker.at](state, config, index)
    if not state.faults:
        return
    spent = state._replace(faults=state.faults - 1)
    dead = session._replace(claim=DEAD) if session.claim == me else session
    yield "fault.crash", me, with_worker(spent._replace(session=dead), index, Worker())
    if session.claim == me and session.lease:
        yield "fault.pause", me, spent._replace(session=session._replace(lease=False))


def _claim(state: State, config: Config, index: int) -> Moves:
    session, me = state.session, index + 1
    is_free = session.claim == NOBODY or not session.lease
    if session.phase != RUN or session.held or not is_free:
        return
    is_plain = session.cancel == CLEAR or config.mutant is Mutant.CLAIM_IGNORES_MARK
    if session.claim == NOBODY and is_plain and not session.answer:
        claimed = _claimed(state, config, index, session.limit)
        yield "claim.by script", me, claimed
    else:
        yield "claim.read", me, with_worker(state, index, Worker(CLAIMING, limit_of(session)))


def _claimed(state: State, config: Config, index: int, limit: int) -> State:
    session = state.session._replace(claim=index + 1, lease=True)
    under = list(state.claimed_under)
    under[index] = state.truth
    claimed = state._replace(session=session, claimed_under=(under[0], under[1]))
    return touch(with_worker(claimed, index, Worker(CLAIMED, limit)), config, but=index)


def _finish_claim(state: State, config: Config, index: int) -> Moves:
    yield "claim.made", index + 1, _claimed(state, config, index, state.workers[index].limit)


def _guard(state: State, config: Config, index: int) -> Moves:
    del config
    session, worker, me = state.session, state.workers[index], index + 1
    if session.claim != me:
        yield "claim.lost", me, with_worker(state, index, Worker())
    elif session.done >= worker.limit:
        yield "guard.limit", me, with_worker(state, index, worker._replace(at=ANSWERED, stops=True))
    elif session.answer:
        yield "journal.replayed", me, with_worker(state, index, worker._replace(at=ANSWERED, has_answer=True))
    else:
        over = state.over_budget or session.done >= state.claimed_under[index]
        yield "model.asked", me, with_worker(state._replace(over_budget=over), index, worker._replace(at=ASKING))


def _journal(state: State, config: Config, index: int) -> Moves:
    del config
    worker, me = state.workers[index], index + 1
    if state.session.claim != me:
        yield "claim.lost", me, with_worker(state, index, Worker())
        return
    journaled = state._replace(session=state.session._replace(answer=True))
    yield "answer.journaled", me, with_worker(journaled, index, worker._replace(at=ANSWERED, has_answer=True))


def _finish_step(state: State, config: Config, index: int) -> Moves:
    session, worker, me = state.session, state.workers[index], index + 1
    if session.claim != me:
        yield "claim.lost", me, with_worker(state, index, Worker())
    elif config.waits and session.done == 0 and not session.reply and not worker.stops:
        yield from _read_for_wait(state, config, index)
    elif session.cancel == CLEAR or config.mutant is Mutant.COMMIT_IGNORES_MARK:
        for carried in (False, True):
            yield from _commit(state, config, index, worker.limit, by_script=True, carried=carried)
    else:
        yield "commit.declined", me, with_worker(state, index, worker._replace(at=COMMITTING))


def _read_for_wait(state: State, config: Config, index: int) -> Moves:
    session, worker, me = state.session, state.workers[index], index + 1
    found = limit_of(session)
    if found == worker.limit or config.mutant is Mutant.WAITS_ALL_THE_SAME:
        yield "wait.read", me, with_worker(state, index, worker._replace(at=PARKING, limit=found))
    else:  # it goes on with what it has found, and looks at the new limit before it waits
        yield "wait.refused", me, with_worker(state, index, worker._replace(at=CLAIMED, limit=found))


def _read_for_commit(state: State, config: Config, index: int) -> Moves:
    session, worker, me = state.session, state.workers[index], index + 1
    if session.claim != me:
        yield "claim.lost", me, with_worker(state, index, Worker())
        return
    found = worker.limit if config.mutant is Mutant.TAKEN_IN_BLINDLY else limit_of(session)
    is_over = session.done >= found
    if worker.stops and not is_over and config.mutant is not Mutant.NOT_GIVEN_BACK:
        freed = touch(state._replace(session=session._replace(claim=NOBODY, lease=False)), config, but=index)
        yield "commit.given back", me, with_worker(freed, index, Worker())
        return
    decided = worker.limit if config.mutant is Mutant.NOT_DECIDED_AGAIN else found
    # What it decides is in `limit` from here on; the mutant saves another one than it decides by.
    yield "commit.read", me, with_worker(state, index, worker._replace(at=CLOSING, limit=decided))


def _commit_watched(state: State, config: Config, index: int) -> Moves:
    """Write what was read; without a watch, the field may have changed since."""
    worker = state.workers[index]
    for carried in (False, True):
        yield from _commit(
            state, config, index, worker.limit, carried=carried and not state.session.held,
            saved=limit_of(state.session) if config.mutant is Mutant.NOT_DECIDED_AGAIN else worker.limit,
        )  # fmt: skip


def _commit(
    state: State,
    config: Config,
    index: int,
    limit: int,
    *,
    by_script: bool = False,
    carried: bool = False,
    saved: int | None = None,
) -> Moves:
    session, worker, me = state.session, state.workers[index], index + 1
    done = session.done + worker.has_answer
    is_complete, is_over = done == STEPS, done >= limit or worker.stops
    has_ended = is_complete or is_over
    if carried and has_ended:
        return
    keeps_field = has_ended and config.mutant is Mutant.FIELD_STAYS
    cancel = session.cancel if by_script else HELD if session.held and not has_ended else CLEAR
    after = Session(
        limit=session.limit if by_script else limit if saved is None else saved,
        done=done,
        phase=END if has_ended else RUN,
        claim=me if carried else NOBODY,
        lease=carried,
        cancel=cancel,
        field=session.field if by_script or keeps_field else NOTHING,
        held=session.held and not has_ended,
        reply=session.reply,
    )
    wrongly = state.ended_wrongly or (is_over and not is_complete and done < state.truth)
    committed = touch(state._replace(session=after, ended_wrongly=wrongly), config, but=index)
    if carried:
        under = list(state.claimed_under)
        under[index] = state.truth
        kept = committed._replace(claimed_under=(under[0], under[1]))
        yield "commit.carried on", me, with_worker(kept, index, Worker(CLAIMED, after.limit))
        return
    yield ("commit.by script" if by_script else "commit.made"), me, with_worker(committed, index, Worker())
    if state.faults:
        lost = committed._replace(faults=state.faults - 1)
        yield "commit.made, reply lost", me, with_worker(lost, index, worker._replace(at=COMMITTING))


def _wait(state: State, config: Config, index: int) -> Moves:
    session, worker, me = state.session, state.workers[index], index + 1
    after = session._replace(
        limit=worker.limit, field=NOTHING, cancel=HELD if session.held else CLEAR,
        phase=WAIT, claim=NOBODY, lease=False,
    )  # fmt: skip
    waiting = touch(state._replace(session=after), config, but=index)
    yield "wait.made", me, with_worker(waiting, index, Worker())


_RULES = {
    CLAIMING: _finish_claim, CLAIMED: _guard, ASKING: _journal, ANSWERED: _finish_step,
    COMMITTING: _read_for_commit, CLOSING: _commit_watched, PARKING: _wait,
}  # fmt: skip


def with_worker(state: State, index: int, worker: Worker) -> State:
    """The state with another value of one worker."""
    workers = (worker, state.workers[1]) if index == 0 else (state.workers[0], worker)
    return state._replace(workers=workers)


def touch(state: State, config: Config, *, but: int | None = None) -> State:
    """Somebody has written the control fields: who watches them reads again.

    Args:
        but: The worker who has written.
    """
    mutant = config.mutant
    if state.client.at == WRITING and mutant is not Mutant.CHANGE_UNWATCHED:
        state = state._replace(client=Client(READING, state.client.number))
    for index, worker in enumerate(state.workers):
        if index == but:
            continue
        if worker.at == CLAIMING:
            state = with_worker(state, index, Worker())
        elif worker.at == CLOSING and mutant is not Mutant.COMMIT_UNWATCHED:
            state = with_worker(state, index, worker._replace(at=COMMITTING))
        elif worker.at == PARKING and mutant is not Mutant.WAIT_UNWATCHED:
            state = with_worker(state, index, worker._replace(at=ANSWERED))
    return state
