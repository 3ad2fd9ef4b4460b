"""The rules of a worker: one is one round trip to Redis or to the provider."""

from __future__ import annotations

from .money import is_owed, reserve, settle, settle_end
from .values import (
    BROKEN,
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
    RESERVED,
    RUN,
    SETTLING,
    UNKNOWN,
    Config,
    Created,
    Journaled,
    Key,
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
            yield "claim.made", me, with_worker(claimed, index, _begin(claimed, config))
        return
    yield from _RULES[worker.at](state, config, index)
    if not state.faults:
        return
    spent = state._replace(faults=state.faults - 1)
    dead = spent._replace(claim=DEAD) if state.claim == me else spent
    yield "fault.crash", me, with_worker(dead, index, Worker())
    if state.claim == me and state.lease:
        yield "fault.pause", me, spent._replace(lease=False)


def _begin(state: State, config: Config) -> Worker:
    """What a worker does with the journal that it has read."""
    number = len(state.jobs) - 1
    job = state.jobs[number] if number >= 0 else None
    if job is not None and is_owed(state, config, number) and (job.why == READ or not state.stopped):
        return Worker(SETTLING, number, state.answer, job.retries)
    if state.stopped:
        return Worker(CLOSING)
    if state.answer != UNKNOWN:
        return Worker(READ, number, state.answer)
    if job is None or job.ended:
        return _next(state, number)
    at = FINDING if job.id == UNKNOWN else COLLECTING
    retries = state.retries if config.mutant is Mutant.KEY_OF_NOW else job.retries
    return Worker(at, number, job.id, retries)


def _next(state: State, number: int) -> Worker:
    """A worker that asks once more, behind the job of this number."""
    return Worker(CLAIMED, number + 1, retries=state.retries)


def _reserve(state: State, config: Config, index: int) -> Moves:
    worker, me = state.workers[index], index + 1
    if not config.capped:
        yield from _intend(state, config, index)
        return
    reserved = reserve(state, Key(worker.number, worker.retries), is_mine=state.claim == me)
    yield "money.reserved", me, with_worker(reserved, index, worker._replace(at=RESERVED))


def _intend(state: State, config: Config, index: int) -> Moves:
    worker, me = state.workers[index], index + 1
    if config.capped:
        free = state.claim == me or config.mutant is Mutant.REFUSED_IS_FREE
        kept = settle(state, Key(worker.number, worker.retries), counts=False) if free else state
        yield "job.refused", me, with_worker(kept, index, worker._replace(at=LEAVING))
    is_known = worker.number < len(state.jobs)
    intending = worker._replace(at=INTENDED, again=is_known and config.blurred)
    if config.mutant is Mutant.NO_INTENTION:
        yield "job.intended", me, with_worker(state, index, intending)
    elif state.claim != me and config.mutant is not Mutant.UNCLAIMED_INTENTION:
        yield "claim.lost", me, with_worker(state, index, Worker())
    elif state.stopped and config.mutant is not Mutant.UNCLAIMED_INTENTION:
        free = settle(state, Key(worker.number, worker.retries), counts=False)
        yield "job.not wanted", me, with_worker(free, index, worker._replace(at=LEAVING))
    else:
        jobs = [*state.jobs] if is_known else [*state.jobs, Journaled(retries=worker.retries)]
        if intending.again and config.mutant is not Mutant.FIRST_INTENTION:
            jobs[worker.number] = jobs[worker.number]._replace(again=True)
        yield "job.intended", me, with_worker(state._replace(jobs=tuple(jobs)), index, intending)


def _create(state: State, config: Config, index: int) -> Moves:
    worker, me = state.workers[index], index + 1
    known = {job.id for job in state.jobs if not job.ended}
    # An answer that is there or under way already, and of which the journal knows.
    is_second = state.answer != UNKNOWN or any(state.provider[job].status in (OPEN, DONE) for job in known - {UNKNOWN})
    is_twin = config.listed and any(each.number == worker.number for each in state.provider)
    created = state._replace(
        provider=(*state.provider, Created(worker.number, OPEN, worker.retries, worker.again)),
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
    entries = state.index if config.mutant is Mutant.ID_NOT_INDEXED else state.index | {(worker.id, worker.retries)}
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
    is_late = state.jobs[worker.number].again
    key = Key(worker.number, worker.retries)
    own = [number for number, each in enumerate(state.provider) if each.key == key and (is_late or not each.again)]
    there = [each for each in own if not config.blurred or state.provider[each].status in _RESULTS]
    is_open = any(state.provider[each].status == OPEN for each in own)
    others = [each for number, each in enumerate(state.workers) if number != index]
    is_creating = any(each.at in (INTENDED, CREATED) and each.number == worker.number for each in others)
    perhaps = "job.perhaps there", me, with_worker(state, index, worker._replace(at=LEAVING))
    if there:
        yield "job.found", me, with_worker(state, index, worker._replace(at=CREATED, id=there[0]))
    elif is_creating and config.mutant is not Mutant.SEARCH_BELIEVED:
        yield perhaps
    elif config.blurred and (is_open or state.is_blurred):
        yield perhaps
        if not is_open and config.mutant is not Mutant.ENDLESS_SEARCH:
            yield "job.search ended", me, with_worker(state, index, worker._replace(at=LOST))
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
    else:  # of one that is forgotten nobody can tell whether it had answered
        ended = worker._replace(at=LOST if status == DELETED else FAILED)
        yield "job.broken", me, with_worker(state, index, ended)


def _end_job(state: State, config: Config, index: int) -> Moves:
    """Journal that a job gives no answer; its number says whose end it is, so that no claim is needed."""
    worker, me = state.workers[index], index + 1
    if state.jobs[worker.number].ended and config.mutant is not Mutant.END_OVERLOOKED:
        # Another worker has journaled its answer, of which the copy was deleted since: the journal is read again.
        yield "job.has ended", me, with_worker(state, index, worker._replace(at=LEAVING))
        return
    ended = _ended(state, worker.number, worker.at)
    settling = Worker(SETTLING, worker.number, UNKNOWN, worker.retries)
    yield "job.ended", me, with_worker(ended, index, settling if config.capped else _next(state, worker.number))


def _journal(state: State, config: Config, index: int) -> Moves:
    worker, me = state.workers[index], index + 1
    read = worker._replace(at=SETTLING if config.capped else READ)
    if state.answer != UNKNOWN or state.jobs[worker.number].ended:
        # Another worker has journaled it, and perhaps rejected it since, or has given the job up: that decides.
        yield "answer.too late", me, with_worker(state, index, _begin(state, config))
        return
    after = state._replace(answer=worker.id)
    if config.mutant is not Mutant.ANSWER_KEEPS_JOB:
        after = _ended(after, worker.number, READ)
    yield "answer.journaled", me, with_worker(after, index, read)


def _settle(state: State, config: Config, index: int) -> Moves:
    """Settle a job whose end this worker has journaled or found."""
    worker, me = state.workers[index], index + 1
    after = worker._replace(at=READ) if worker.id != UNKNOWN else _next(state, worker.number)
    yield "money.settled", me, with_worker(settle_end(state, config, worker), index, after)


def _read(state: State, config: Config, index: int) -> Moves:
    worker, me = state.workers[index], index + 1
    if state.claim != me:
        yield "claim.lost", me, with_worker(state, index, Worker())
    elif config.rejected and not state.used:
        dropped = state._replace(answer=UNKNOWN, used=frozenset((worker.id,)))
        yield "answer.rejected", me, with_worker(_charge(dropped, worker.id), index, _begin(dropped, config))
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


_RESULTS = frozenset((DONE, BROKEN, CANCELLED))
"""Jobs that have ended, and whose results tell whose they are."""
_RULES = {
    CLAIMED: _reserve, RESERVED: _intend, SETTLING: _settle, INTENDED: _create, CREATED: _keep, FINDING: _find, COLLECTING: _collect, COLLECTED: _journal,
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


def cleaned(state: State, config: Config, job: int, retries: int) -> State:
    """The state in which a job was cancelled or its copy deleted, and left the index.

    What it had answered is charged, unless it was collected: then it is in the index of copies.
    """
    provider, status = list(state.provider), state.provider[job].status
    is_collected = any(each.id == job and each.why == READ for each in state.jobs)
    if status == DONE and (not is_collected or config.mutant is Mutant.CHARGES_ANSWERS):
        state = _charge(state, job)
    if not is_collected:
        number = provider[job].number
        state = settle(state, Key(number, retries), counts=status in (DONE, DELETED))
        if state.jobs[number].id == job and config.mutant is not Mutant.CHARGE_KEEPS_JOB:
            state = _ended(state, number, LOST)
    if status in (OPEN, DONE):
        provider[job] = provider[job]._replace(status=CANCELLED if status == OPEN else DELETED)
    return state._replace(provider=tuple(provider), index=state.index - {(job, retries)})


def with_worker(state: State, index: int, worker: Worker) -> State:
    """The state with another value of one worker."""
    workers = (worker, state.workers[1]) if index == 0 else (state.workers[0], worker)
    return state._replace(workers=workers)
