"""The rules of a worker: one is one round trip to Redis, or one thing that happens outside."""

from __future__ import annotations

from typing import Final

from .changes import is_cancelled, is_mine, leave, push, spend, touch, with_worker
from .values import (
    ASKING,
    ASKING_LATE,
    BEGUN,
    BLIND,
    CLAIMED,
    CLAIMING,
    CLOSING,
    COMMITTING,
    CRASH,
    ENDED,
    FIRST,
    FOREIGN,
    FRESH,
    GOT,
    IDLE,
    JOURNALED,
    LAST,
    LOOKING_AT_CLOCK,
    NEXT,
    NO_ANSWER,
    NO_CALL,
    NOBODY,
    NOT_RUN,
    OK,
    PUBLISHING,
    RAN,
    RUNNING,
    SEEING,
    TAKING,
    UNDOING,
    UNKNOWN,
    Config,
    Effect,
    Moves,
    Mutant,
    Session,
    State,
    Worker,
)


def moves_of_worker(state: State, config: Config, index: int) -> Moves:
    worker = state.workers[index]
    me = index + 1
    if worker.at == IDLE:
        for position, count in enumerate(state.queue):
            if count:
                taken = state._replace(queue=push(state.queue, position, -1))
                yield "message.taken", me, with_worker(taken, index, Worker(GOT, position))
        return
    yield from _RULES[worker.at](state, config, index, worker)
    if state.faults.crashes:
        yield CRASH[worker.at], me, _crashed(state, index)
    if state.session.claim == me:
        yield from _lease(state, config, index, worker)


def _crashed(state: State, index: int) -> State:
    worker, ghost = state.workers[index], state.ghost
    if worker.at == ASKING:
        ghost = ghost._replace(paid=ghost.paid - 1)
    return leave(state._replace(ghost=ghost, faults=spend(state.faults, "crashes")), index)


def _lease(state: State, config: Config, index: int, worker: Worker) -> Moves:
    session, me = state.session, index + 1
    if session.lease and state.faults.pauses:
        paused = state._replace(session=session._replace(lease=False), faults=spend(state.faults, "pauses"))
        if worker.at == ASKING:
            paused = paused._replace(ghost=paused.ghost._replace(paid=paused.ghost.paid - 1))
            paused = with_worker(paused, index, worker._replace(at=ASKING_LATE))
        yield "fault.pause", me, paused
    if not session.lease:
        # It rewrites ctl.claim, so that a rival which has read the old lease as dead fails.
        renewed = touch(state._replace(session=session._replace(lease=True)), config=config)
        yield "heartbeat.renewed", me, renewed


def _claim_read(state: State, config: Config, index: int, worker: Worker) -> Moves:
    session, me = state.session, index + 1
    if session.deleted:
        yield "claim.missing", me, leave(state, index)
    elif session.over or worker.position < session.position:
        yield "claim.stale", me, leave(state, index)
    elif worker.position > session.position:
        yield "claim.ahead", me, leave(state, index)
    elif session.claim == me:
        yield "claim.held", me, with_worker(state, index, _loaded(session, worker, CLAIMED))
    elif session.claim and session.lease and config.mutant is not Mutant.LEASE_IGNORED:
        yield "claim.busy", me, leave(state, index)
    else:
        yield "claim.read", me, with_worker(state, index, _loaded(session, worker, CLAIMING))


def _loaded(session: Session, worker: Worker, at: int) -> Worker:
    call = ENDED if session.ended else BEGUN if session.begun else FRESH
    return Worker(at, worker.position, session.answer, NO_CALL, session.applied, noted=call)


def _claim(state: State, config: Config, index: int, worker: Worker) -> Moves:
    me = index + 1
    session = state.session._replace(
        claim=me,
        lease=True,
        due=config.mutant is not Mutant.DUE_REMOVED_EARLY,
        journal=state.session.journal or config.mutant is not Mutant.LATE_TRY,
    )
    # Its own watch ends with its EXEC; a rival's fails.
    claimed = with_worker(state._replace(session=session), index, worker._replace(at=CLAIMED))
    claimed = touch(claimed, config=config)
    yield "claim.made", me, claimed
    if state.faults.replies:
        lost = with_worker(claimed, index, Worker(GOT, worker.position))
        yield "claim.made, reply lost", me, lost._replace(faults=spend(state.faults, "replies"))


def _infer(state: State, config: Config, index: int, worker: Worker) -> Moves:
    session, ghost, me = state.session, state.ghost, index + 1
    if not is_mine(session, worker, me):
        if config.mutant is Mutant.LATE_TRY:
            state = _late_write(state, config, worker)
        yield "tool.claim lost", me, leave(state, index)
    elif is_cancelled(session, config):
        yield "guard.cancelled", me, with_worker(state, index, worker._replace(at=CLOSING))
    elif worker.answer:
        answer = 1 + worker.loaded if config.mutant is Mutant.LOADED_IS_SEEN else worker.answer
        yield "journal.replayed", me, with_worker(state, index, worker._replace(at=JOURNALED, answer=answer))
    elif _is_exhausted(ghost.history, worker, config) and config.mutant is not Mutant.BUDGET_NOT_CHECKED:
        yield "guard.budget", me, with_worker(state, index, worker._replace(at=CLOSING))
    elif session.lease:
        # A worker whose own clock says that the lease may be over asks nothing before it has renewed it.
        over_budget = ghost.over_budget or _is_exhausted(ghost.history, worker, config)
        called = state._replace(
            session=session._replace(journal=True),
            ghost=ghost._replace(paid=ghost.paid + 1, over_budget=over_budget),
        )
        asking = worker._replace(at=ASKING, answer=SEEING if worker.loaded else BLIND)
        event = "infer.called in vain" if session.answer else "infer.called"
        yield event, me, with_worker(called, index, asking)


def _is_exhausted(history: tuple[tuple[int, int], ...], worker: Worker, config: Config) -> bool:
    return worker.position < NEXT and len(history) >= config.budget


def _late_write(state: State, config: Config, worker: Worker) -> State:
    """A write to the journal of a step that is over: a key without TTL, if the end found no key to give one to.

    The journal of a deleted session is gone; who revives it looks for the session afterwards, and removes it.
    """
    if state.session.deleted:
        leaked = state.ghost.leaked or config.mutant is Mutant.LATE_WRITER_STAYS
        return state._replace(ghost=state.ghost._replace(leaked=leaked))
    if state.ghost.without_journal != worker.position:
        return state
    return state._replace(ghost=state.ghost._replace(leaked=True))


def _journal(state: State, config: Config, index: int, worker: Worker) -> Moves:
    session, me, mutant = state.session, index + 1, config.mutant
    current = session.position == worker.position and not session.over
    if mutant is Mutant.JOURNAL_AFTER_PARSE and config.unusable and worker.position == FIRST:
        yield "journal.unusable", me, _released(state, config, index)
        return
    if mutant is Mutant.NO_JOURNAL:
        yield "journal.written", me, with_worker(state, index, worker._replace(at=JOURNALED))
    elif not current:
        yield (
            "journal.written",
            me,
            with_worker(_late_write(state, config, worker), index, worker._replace(at=JOURNALED)),
        )
    elif session.answer:
        adopted = FOREIGN if mutant is Mutant.OWN_ANSWER_KEPT else session.answer
        yield "journal.adopted", me, with_worker(state, index, worker._replace(at=JOURNALED, answer=adopted))
    else:
        written = state._replace(session=session._replace(answer=worker.answer))
        written = touch(written, journal=True, config=config)
        yield "journal.written", me, with_worker(written, index, worker._replace(at=JOURNALED))
    if current and session.claim == me and session.cancel:
        yield "infer.cancelled", me, with_worker(state, index, worker._replace(at=CLOSING, answer=NO_ANSWER))
    if not is_mine(session, worker, me):
        yield "infer.given up", me, leave(state, index)


def _released(state: State, config: Config, index: int) -> State:
    """The step given back in one transaction; the session stays due."""
    me = index + 1
    if state.session.claim == me:
        state = state._replace(session=state.session._replace(claim=NOBODY, lease=False))
        state = touch(state, config=config)
    return leave(state, index)


def _begin(state: State, config: Config, index: int, worker: Worker) -> Moves:
    session, me = state.session, index + 1
    if config.unusable and worker.position == FIRST:
        yield "journal.unusable", me, with_worker(state, index, worker._replace(at=CLOSING))
    elif worker.position == NEXT:
        # The second execution calls no tool.
        yield from _close(state, config, index, worker)
    elif config.effect is Effect.PURE:
        if not session.cancel:
            yield "tool.pure", me, with_worker(state, index, worker._replace(at=CLOSING, outcome=OK))
        else:
            yield from _close(state, config, index, worker)
    elif session.position != worker.position or session.over:
        yield "tool.claim lost", me, leave(_late_write(state, config, worker), index)
    elif session.ended:
        yield "tool.replayed", me, with_worker(state, index, worker._replace(at=CLOSING, outcome=OK))
    elif session.begun in (NOBODY, me):
        yield from _begin_new(state, config, index, worker)
    elif session.claim != me:
        yield "tool.claim lost", me, leave(state, index)
    elif is_cancelled(session, config):
        yield "tool.forbidden", me, with_worker(state, index, worker._replace(at=CLOSING, outcome=UNKNOWN))
    else:
        yield from _begun_by_another(state, config, index, worker)


def _begin_new(state: State, config: Config, index: int, worker: Worker) -> Moves:
    session, me = state.session, index + 1
    begun = touch(state._replace(session=session._replace(begun=me)), journal=True, config=config)
    if state.faults.replies:
        yield "tool.begun, reply lost", me, begun._replace(faults=spend(state.faults, "replies"))
    if session.claim != me:
        yield "tool.begun too late", me, with_worker(begun, index, worker._replace(at=UNDOING))
    elif is_cancelled(session, config):
        yield "tool.begun too late", me, with_worker(begun, index, worker._replace(at=UNDOING, outcome=NOT_RUN))
    else:
        yield "tool.begun", me, _allowed(begun, config, index, worker)


def _allowed(state: State, config: Config, index: int, worker: Worker) -> State:
    """The transaction said yes; with a clock that can be trusted the worker looks at it once more."""
    if state.session.cancel:
        state = state._replace(ghost=state.ghost._replace(late_begin=True))
    return with_worker(state, index, worker._replace(at=LOOKING_AT_CLOCK if config.clock else RUNNING))


def _look_at_clock(state: State, config: Config, index: int, worker: Worker) -> Moves:
    session, me = state.session, index + 1
    if not is_mine(session, worker, me):
        yield "tool.claim lost", me, leave(state, index)
    elif session.lease:
        yield "tool.in time", me, with_worker(state, index, worker._replace(at=RUNNING))


def _begun_by_another(state: State, config: Config, index: int, worker: Worker) -> Moves:
    me = index + 1
    if config.effect is Effect.KEYED or config.mutant is Mutant.RERUN_UNSAFE:
        yield "tool.rerun", me, with_worker(state, index, worker._replace(at=TAKING))
    elif config.effect is Effect.LOOKUP:
        yield from _look_up(state, config, index, worker)
    else:
        yield "tool.unknown", me, with_worker(state, index, worker._replace(at=CLOSING, outcome=UNKNOWN))


def _look_up(state: State, config: Config, index: int, worker: Worker) -> Moves:
    me, session = index + 1, state.session
    other = state.workers[1 - index]
    # 'It did not happen' counts only after the begin record's time, the tool's timeout and a margin: by then whoever
    # wrote the record does not run any more.
    still_running = session.begun == 2 - index and other.at == RUNNING and other.position == worker.position
    yield "lookup.failed", me, with_worker(state, index, worker._replace(at=CLOSING, outcome=UNKNOWN))
    if state.ghost.effects[worker.position]:
        yield "lookup.happened", me, with_worker(state, index, worker._replace(at=RAN))
    elif still_running:
        yield "lookup.too early", me, _released(state, config, index)
    else:
        yield "lookup.did not happen", me, with_worker(state, index, worker._replace(at=TAKING))


def _take_over(state: State, config: Config, index: int, worker: Worker) -> Moves:
    """Own begin record over the old one, watching ctl: a worker that lost its claim would hide a running call.

    It is never taken back, for the old record meant that the effect may be there.
    """
    session, me = state.session, index + 1
    if not is_mine(session, worker, me):
        if config.mutant is Mutant.TAKEN_OVER_BLINDLY and session.begun:
            state = state._replace(session=session._replace(begun=me))
        yield "tool.claim lost", me, leave(state, index)
    elif is_cancelled(session, config):
        yield "tool.forbidden", me, with_worker(state, index, worker._replace(at=CLOSING, outcome=UNKNOWN))
    elif session.ended:
        yield "tool.replayed", me, with_worker(state, index, worker._replace(at=CLOSING, outcome=OK))
    else:
        if config.mutant is not Mutant.RECORD_NOT_RENEWED:
            state = touch(state._replace(session=session._replace(begun=me)), journal=True, config=config)
        yield "tool.taken over", me, _allowed(state, config, index, worker)


def _undo(state: State, config: Config, index: int, worker: Worker) -> Moves:
    session, me = state.session, index + 1
    current = session.position == worker.position and not session.over
    event = "tool.not undone"
    if current and (session.begun == me or config.mutant is Mutant.BLIND_UNDO):
        state = touch(state._replace(session=session._replace(begun=NOBODY)), journal=True, config=config)
        event = "tool.undone"
    if worker.outcome == NOT_RUN:
        yield event, me, with_worker(state, index, worker._replace(at=CLOSING))
    else:
        yield event, me, leave(state, index)


def _run(state: State, config: Config, index: int, worker: Worker) -> Moves:
    me, ghost = index + 1, state.ghost
    count = ghost.effects[worker.position]
    if config.effect is not Effect.KEYED or config.mutant is Mutant.ATTEMPT_IN_KEY or not count:
        # A keyed effect that is there already is not had twice.
        count += 1
    effects = (count, ghost.effects[1]) if worker.position == FIRST else (ghost.effects[0], count)
    ran = state._replace(ghost=ghost._replace(effects=effects))
    yield "tool.run", me, with_worker(ran, index, worker._replace(at=RAN))
    if state.session.cancel and is_mine(state.session, worker, me):
        yield "tool.cancelled", me, with_worker(state, index, worker._replace(at=CLOSING, outcome=UNKNOWN))


def _end(state: State, config: Config, index: int, worker: Worker) -> Moves:
    session, me = state.session, index + 1
    if session.position == worker.position and not session.over:
        state = touch(state._replace(session=session._replace(ended=True)), journal=True, config=config)
    yield "tool.ended", me, with_worker(state, index, worker._replace(at=CLOSING, outcome=OK))


def _close(state: State, config: Config, index: int, worker: Worker) -> Moves:
    """The commit's first round trip."""
    session, me, mutant = state.session, index + 1, config.mutant
    if worker.committed:
        if mutant is Mutant.NO_COMMIT_ID:
            denied = state._replace(ghost=state.ghost._replace(denied=True))
            yield "commit.claim lost", me, leave(denied, index)
        elif mutant is Mutant.PLAIN_TRANSACTION:
            yield "commit.read", me, with_worker(state, index, worker._replace(at=COMMITTING))
        else:
            yield "commit.committed already", me, _after_commit(state, config, index, worker.position)
        return
    if not is_mine(session, worker, me):
        yield "commit.claim lost", me, leave(state, index)
        return
    closed = worker._replace(at=COMMITTING)
    if closed.outcome == NO_CALL and closed.answer and worker.position < NEXT and not _is_unusable(config, worker):
        closed = closed._replace(outcome=_journaled_outcome(config, worker))
    event = "commit.read"
    if worker.loaded != session.applied and mutant is not Mutant.NO_VERSION_CHECK:
        event, closed = "commit.re-applied", closed._replace(loaded=session.applied)
    if mutant is Mutant.INBOX_UNWATCHED:
        closed = closed._replace(noted=session.inbox)
    if mutant is Mutant.PUBLISH_BEFORE_COMMIT and worker.position == FIRST and not session.cancel:
        state = state._replace(queue=push(state.queue, LAST))
    yield event, me, with_worker(state, index, closed)


def _is_unusable(config: Config, worker: Worker) -> bool:
    return config.unusable and worker.position == FIRST


def _journaled_outcome(config: Config, worker: Worker) -> int:
    """Under a stop: what was known of the call at the claim, after which nobody else may begin it."""
    if worker.noted == ENDED:
        return OK
    if worker.noted == BEGUN and config.mutant is not Mutant.BEGUN_IS_NOT_RUN:
        return UNKNOWN
    return NOT_RUN


def _commit(state: State, config: Config, index: int, worker: Worker) -> Moves:
    me = index + 1
    done = _committed(state, config, worker)
    done = touch(done, config=config)
    published = config.fused and not done.session.over and config.mutant is not Mutant.PUBLISH_BEFORE_COMMIT
    if published:
        done = done._replace(queue=push(done.queue, done.session.position))
    yield "commit.made", me, _after_commit(done, config, index, worker.position)
    if state.faults.crashes:
        dead = done._replace(faults=spend(state.faults, "crashes"))
        yield "fault.c7", me, leave(dead, index)
    if state.faults.replies:
        in_doubt = worker._replace(at=CLOSING, committed=True)
        lost = done._replace(faults=spend(state.faults, "replies"))
        yield "commit.made, reply lost", me, with_worker(lost, index, in_doubt)


def _after_commit(state: State, config: Config, index: int, position: int) -> State:
    """Nothing is left to do, or the next step to publish."""
    session = state.session
    if session.over or session.position <= position or config.fused or config.mutant is Mutant.PUBLISH_BEFORE_COMMIT:
        return leave(state, index)
    return with_worker(state, index, Worker(PUBLISHING, session.position))


def _committed(state: State, config: Config, worker: Worker) -> State:
    session, ghost, mutant = state.session, state.ghost, config.mutant
    taken = worker.noted if mutant is Mutant.INBOX_UNWATCHED else session.inbox
    before = worker.loaded if mutant is Mutant.NO_VERSION_CHECK else session.applied
    history = ghost.history
    if worker.answer:
        history = (*history, (worker.position, worker.outcome))
    exhausted = _is_exhausted(history, worker, config) and mutant is not Mutant.BUDGET_NOT_CHECKED
    cancelled = session.cancel and worker.position < NEXT
    ends = worker.position != FIRST or cancelled or exhausted or _is_unusable(config, worker)
    unseen = bool(taken) or (worker.answer == BLIND and session.applied > 0)
    ghost = ghost._replace(
        history=history,
        paid=0,
        answered=ghost.answered or (session.answer or worker.answer) == SEEING,
        stopped=ghost.stopped or cancelled or (exhausted and worker.position == FIRST),
    )
    left = Session(inbox=session.inbox - taken, applied=before + taken)
    if not ends:
        left = left._replace(position=LAST)
    elif unseen and worker.position < NEXT:
        left = left._replace(position=NEXT)
    else:
        left = left._replace(position=worker.position, over=True, due=False)
    return state._replace(session=left, ghost=ghost)


def _publish(state: State, config: Config, index: int, worker: Worker) -> Moves:
    me = index + 1
    sent = leave(state._replace(queue=push(state.queue, worker.position)), index)
    yield "publish.sent", me, sent
    if state.faults.crashes:
        yield "fault.c9", me, sent._replace(faults=spend(state.faults, "crashes"))


_RULES: Final = {
    GOT: _claim_read,
    CLAIMING: _claim,
    CLAIMED: _infer,
    ASKING: _journal,
    ASKING_LATE: _journal,
    JOURNALED: _begin,
    TAKING: _take_over,
    UNDOING: _undo,
    LOOKING_AT_CLOCK: _look_at_clock,
    RUNNING: _run,
    RAN: _end,
    CLOSING: _close,
    COMMITTING: _commit,
    PUBLISHING: _publish,
}
