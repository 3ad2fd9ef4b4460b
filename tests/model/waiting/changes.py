"""Changing a state: the moves that several rules share."""

from __future__ import annotations

from ..changes import push
from .values import (
    CLOSING,
    COMMITTING,
    DEAD,
    END,
    EXPIRY,
    FIRST,
    LEG,
    NEXT,
    NO_RESULT,
    NOW,
    OPEN,
    READ,
    RESTING,
    RUN,
    SUPERSEDED,
    UNSENT,
    WAITING,
    Config,
    Mutant,
    Note,
    Session,
    State,
    View,
    Worker,
)


def with_worker(state: State, index: int, worker: Worker) -> State:
    one, two = state.workers
    return state._replace(workers=(worker, two) if index == 0 else (one, worker))


def leave(state: State, index: int) -> State:
    """The worker is idle; what it wrote stays, under a claim nobody holds."""
    me, session = index + 1, state.session
    session = session._replace(
        claim=DEAD if session.claim == me else session.claim,
        begun=DEAD if session.begun == me else session.begun,
        job_begun=DEAD if session.job_begun == me else session.job_begun,
    )
    return with_worker(state._replace(session=session), index, RESTING)


def touch(state: State, config: Config, *, control: bool = False, journal: bool = False, inbox: bool = False) -> State:
    """Throw whoever watches a written key back to its reading.

    A wait watches everything, a commit all but the journal, an answer control fields and journal.
    """
    waits = control or inbox or (journal and config.mutant is not Mutant.WAIT_WITHOUT_WATCH)
    commits = control or inbox
    workers = tuple(_thrown_back(worker, waits, commits) for worker in state.workers)
    people = state.people
    if (control or journal) and config.mutant is not Mutant.ANSWER_WITHOUT_WATCH:
        people = tuple(person._replace(at=UNSENT) if person.at == READ else person for person in people)
    return state._replace(workers=(workers[0], workers[1]), people=people)


def _thrown_back(worker: Worker, waits: bool, commits: bool) -> Worker:
    if worker.at == WAITING and waits:
        return worker._replace(at=LEG)
    if worker.at == COMMITTING and commits:
        return worker._replace(at=CLOSING)
    return worker


def is_mine(session: Session, worker: Worker, me: int) -> bool:
    return session.claim == me and session.position == worker.position and session.phase != END


def is_at(session: Session, position: int) -> bool:
    """Whether the journal of this position is still the one that workers write to."""
    return session.position == position and session.phase != END


def is_asking(session: Session) -> bool:
    """Whether the approval's request waits for an answer."""
    return bool(session.asked) and session.reply == OPEN


def has_result(session: Session) -> bool:
    """Whether the approved call has ended. A failure of a run that began before the call asked does not count."""
    return session.result not in (NO_RESULT, SUPERSEDED) or (session.result == SUPERSEDED and not session.asked)


def is_job_open(session: Session) -> bool:
    return session.job_asked and session.job_reply == OPEN


def view_of(state: State, config: Config) -> View:
    session = state.session
    denied = config.note is Note.DENY and session.inbox > 0 and config.mutant is not Mutant.WAIT_IGNORES_INBOX
    return View(session.reply, session.job_reply, denied)


def wake(state: State, config: Config) -> State:
    """Bring a session forward: the one function that all causes use, inside their own transactions."""
    session, mutant = state.session, config.mutant
    woken = session._replace(phase=RUN, due=NOW)
    if mutant is Mutant.WAKE_NOT_DUE:
        woken = woken._replace(due=session.due)
    if mutant is Mutant.WAKE_KEEPS_WAIT:
        woken = woken._replace(phase=session.phase, due=EXPIRY)
    return state._replace(session=woken, queue=push(state.queue, session.position))


def end_execution(state: State, config: Config, session: Session) -> State:
    """End the execution, and start the next one when a message waits for it."""
    keeps_hold = config.mutant is Mutant.HOLD_OUTLIVES_END and session.held
    forgets = config.mutant is Mutant.END_FORGETS_INBOX
    if session.inbox and session.position < NEXT and not forgets:
        ghost = state.ghost._replace(taken=state.ghost.taken + session.inbox)
        started = state._replace(session=Session(position=NEXT), ghost=ghost, is_expired=False, is_hold_over=False)
        return started._replace(queue=push(state.queue, NEXT))
    inbox = session.inbox if forgets else 0
    over = Session(position=session.position, phase=END, due=0, held=keeps_hold, inbox=inbox)
    return state._replace(session=over, is_expired=False, is_hold_over=False)


def with_broken(state: State, name: str) -> State:
    """Keep the first invariant that a move broke."""
    return state._replace(ghost=state.ghost._replace(broken=state.ghost.broken or name))


def with_round(counts: tuple[int, int], number: int) -> tuple[int, int]:
    return (counts[0] + 1, counts[1]) if number == FIRST else (counts[0], counts[1] + 1)
