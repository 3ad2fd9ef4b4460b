"""The rules of a worker: one is one round trip to Redis or to the provider."""

from __future__ import annotations

from .values import (
    CANCELLED,
    CLAIMED,
    CLOSING,
    COLLECTED,
    COLLECTING,
    CREATED,
    DEAD,
    DELETED,
    DONE,
    END,
    FAILED,
    FINDING,
    IDLE,
    INTENDED,
    LATER,
    LEAVING,
    LOST,
    NEVER,
    NOBODY,
    NOW,
    OPEN,
    READ,
    RUN,
    UNKNOWN,
    Config,
    Created,
    Journaled,
    Moves,
    Mutant,
    State,
    Worker,
)


def moves_of_worker(state: State, config: Config, index: int) -> Moves:
    """What a worker does next, its death, and what becomes of its lease."""
    worker, me = state.workers[index], index + 1
    if worker.at == IDLE:
        is_free = state.claim == NOBODY or not state.lease
        if state.phase == RUN and is_free and (state.due == NOW or state.claim != NOBODY):
            claimed = state._replace(claim=me, lease=True, due=NEVER)
            yield "claim.made", me, with_worker(claimed, index, _begin(claimed))
        return
    yield from _RULES[worker.at](state, config, index)
    if not state.faults:
        return
    spent = state._replace(faults=state.faults - 1)
    dead = spent._replace(claim=DEAD) if state.claim == me else spent
    yield "fault.crash", me, with_worker(dead, index, Worker())
    if state.claim == me and state.lease:
        yield "fault.pause", me, spent._replace(lease=False)


def _begin(state: State) -> Worker:
    """What a worker does with the journal that it has read."""
    if state.stopped:
        return Worker(CLOSING)
    if state.answer != UNKNOWN:
        return Worker(READ, len(state.jobs) - 1, state.answer)
    number = len(state.jobs) - 1
    if number < 0 or state.jobs[number].ended:
        return Worker(CLAIMED, number + 1)
    job = state.jobs[number]
    return Worker(FINDING, number) if job.id == UNKNOWN else Worker(COLLECTING, number, job.id)


def _intend(state: State, config: Config, index: int) -> Moves:
    worker, me = state.workers[index], index + 1
    is_known = worker.number < len(state.jobs)
    if config.mutant is Mutant.NO_INTENTION:
        yield "job.intended", me, with_worker(state, index, worker._replace(at=INTENDED))
    elif state.claim != me and config.mutant is not Mutant.UNCLAIMED_INTENTION:
        yield "claim.lost", me, with_worker(state, index, Worker())
    else:
        jobs = state.jobs if is_known else (*state.jobs, Journaled())
        yield "job.intended", me, with_worker(state._replace(jobs=jobs), index, worker._replace(at=INTENDED))


def _create(state: State, config: Config, index: int) -> Moves:
    worker, me = state.workers[index], index + 1
    known = {job.id for job in state.jobs if not job.ended}
    # An answer that is there or under way already, and of which the journal knows.
    is_second = state.answer != UNKNOWN or any(state.provider[job].status in (OPEN, DONE) for job in known - {UNKNOWN})
    is_twin = config.listed and any(each.number == worker.number for each in state.provider)
    created = state._replace(
        provider=(*state.provider, Created(worker.number)),
        paid_twice=state.paid_twice or ((is_second or is_twin) and state.phase == RUN and state.claim == me),
    )
    yield "job.created", me, with_worker(created, index, worker._replace(at=CREATED, id=len(state.provider)))
    if state.faults:
        lost = created._replace(faults=state.faults - 1)
        yield "job.created, reply lost", me, with_worker(lost, index, worker._replace(at=LEAVING))


def _keep(state: State, config: Config, index: int) -> Moves:
    worker, me = state.workers[index], index + 1
    jobs = list(state.jobs)
    while len(jobs) <= worker.number:  # only where its intention was not journaled
        jobs.append(Journaled())
    jobs[worker.number] = jobs[worker.number]._replace(id=worker.id)
    entries = state.index if config.mutant is Mutant.ID_NOT_INDEXED else state.index | {worker.id}
    yield (
        "job.kept",
        me,
        with_worker(state._replace(jobs=tuple(jobs), index=entries), index, worker._replace(at=LEAVING)),
    )


def _find(state: State, config: Config, index: int) -> Moves:
    worker, me = state.workers[index], index + 1
    if config.mutant is Mutant.UNKNOWN_IS_FINAL:
        yield "job.perhaps there", me, with_worker(state, index, worker._replace(at=LEAVING))
        return
    if not config.listed:
        yield "job.asked again", me, with_worker(state, index, worker._replace(at=LOST))
        return
    there = [number for number, each in enumerate(state.provider) if each.number == worker.number]
    others = [each for number, each in enumerate(state.workers) if number != index]
    is_creating = any(each.at in (INTENDED, CREATED) and each.number == worker.number for each in others)
    if there:
        yield "job.found", me, with_worker(state, index, worker._replace(at=CREATED, id=there[0]))
    elif is_creating and config.mutant is not Mutant.SEARCH_BELIEVED:
        yield "job.perhaps there", me, with_worker(state, index, worker._replace(at=LEAVING))
    else:
        yield "job.not there", me, with_worker(state, index, worker._replace(at=CLAIMED))


def _collect(state: State, config: Config, index: int) -> Moves:
    del config
    worker, me = state.workers[index], index + 1
    status = state.provider[worker.id].status
    if status == OPEN:
        yield "job.open", me, with_worker(state, index, worker._replace(at=LEAVING))
    elif status == DONE:
        yield "job.collected", me, with_worker(state, index, worker._replace(at=COLLECTED))
    else:
        yield "job.broken", me, with_worker(state, index, worker._replace(at=FAILED))


def _end_job(state: State, config: Config, index: int) -> Moves:
    """Journal that a job gives no answer; its number says whose end it is, so that no claim is needed."""
    worker, me = state.workers[index], index + 1
    if state.jobs[worker.number].ended and config.mutant is not Mutant.END_OVERLOOKED:
        # Another worker has journaled its answer, of which the copy was deleted since: the journal is read again.
        yield "job.has ended", me, with_worker(state, index, worker._replace(at=LEAVING))
        return
    ended = _ended(state, worker.number, worker.at)
    yield "job.ended", me, with_worker(ended, index, Worker(CLAIMED, worker.number + 1))


def _journal(state: State, config: Config, index: int) -> Moves:
    worker, me = state.workers[index], index + 1
    read = worker._replace(at=READ)
    if state.answer != UNKNOWN or state.jobs[worker.number].ended:
        # Another worker has journaled it, and perhaps rejected it since, or has given the job up: that decides.
        yield "answer.too late", me, with_worker(state, index, _begin(state))
        return
    after = state._replace(answer=worker.id)
    if config.mutant is not Mutant.ANSWER_KEEPS_JOB:
        after = _ended(after, worker.number, READ)
    yield "answer.journaled", me, with_worker(after, index, read)


def _read(state: State, config: Config, index: int) -> Moves:
    worker, me = state.workers[index], index + 1
    if state.claim != me:
        yield "claim.lost", me, with_worker(state, index, Worker())
    elif config.rejected and not state.used:
        dropped = state._replace(answer=UNKNOWN, used=frozenset((worker.id,)))
        yield "answer.rejected", me, with_worker(_charge(dropped, worker.id), index, _begin(dropped))
    else:
        yield "step.ended", me, with_worker(_charge(_over(state), worker.id), index, Worker())


def _leave(state: State, config: Config, index: int) -> Moves:
    me = index + 1
    del config
    if state.claim != me:
        yield "claim.lost", me, with_worker(state, index, Worker())
        return
    free = state._replace(claim=NOBODY, lease=False, due=NOW if state.stopped else LATER)
    yield "step.put off", me, with_worker(free, index, Worker())


def _stop(state: State, config: Config, index: int) -> Moves:
    del config
    me = index + 1
    if state.claim != me:
        yield "claim.lost", me, with_worker(state, index, Worker())
    else:
        yield "step.stopped", me, with_worker(_over(state), index, Worker())


_RULES = {
    CLAIMED: _intend, INTENDED: _create, CREATED: _keep, FINDING: _find, COLLECTING: _collect, COLLECTED: _journal,
    FAILED: _end_job, LOST: _end_job, READ: _read, LEAVING: _leave, CLOSING: _stop,
}  # fmt: skip


def _over(state: State) -> State:
    return state._replace(phase=END, claim=NOBODY, lease=False, due=NEVER)


def _ended(state: State, number: int, why: int) -> State:
    jobs = list(state.jobs)
    if not jobs[number].ended:
        jobs[number] = jobs[number]._replace(ended=True, why=why)
    return state._replace(jobs=tuple(jobs))


def _charge(state: State, job: int) -> State:
    is_again = state.charged_twice or job in state.charged
    return state._replace(charged=state.charged | {job}, charged_twice=is_again)


def cleaned(state: State, config: Config, job: int) -> State:
    """The state in which a job was cancelled or its copy deleted, and left the index.

    What it had answered is charged, unless it was collected: then it is in the index of copies.
    """
    provider, status = list(state.provider), state.provider[job].status
    is_collected = any(each.id == job and each.why == READ for each in state.jobs)
    if status == DONE and (not is_collected or config.mutant is Mutant.CHARGES_ANSWERS):
        state = _charge(state, job)
    if status in (OPEN, DONE):
        provider[job] = provider[job]._replace(status=CANCELLED if status == OPEN else DELETED)
    return state._replace(provider=tuple(provider), index=state.index - {job})


def with_worker(state: State, index: int, worker: Worker) -> State:
    """The state with another value of one worker."""
    workers = (worker, state.workers[1]) if index == 0 else (state.workers[0], worker)
    return state._replace(workers=workers)
