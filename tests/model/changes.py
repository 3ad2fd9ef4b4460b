"""Changing a state: who writes a watched key throws the watcher back to its reading."""

from __future__ import annotations

from .values import (
    CLAIMING,
    CLOSING,
    COMMITTING,
    DEAD,
    GOT,
    READING,
    RESTING,
    WILL_CANCEL,
    WILL_DELETE,
    WILL_END,
    Config,
    Faults,
    Mutant,
    Session,
    State,
    Worker,
)


def with_worker(state: State, index: int, worker: Worker) -> State:
    one, two = state.workers
    return state._replace(workers=(worker, two) if index == 0 else (one, worker))


def leave(state: State, index: int) -> State:
    """The worker is idle; what it wrote stays, under a claim nobody holds."""
    me, session = index + 1, state.session
    if session.claim == me:
        session = session._replace(claim=DEAD)
    if session.begun == me:
        session = session._replace(begun=DEAD)
    return with_worker(state._replace(session=session), index, RESTING)


def touch(state: State, *, inbox: bool = False, journal: bool = False, config: Config) -> State:
    """A watched key was written: whoever watches it will fail its EXEC and read again.

    Without a flag it is the session's or ctl's key, which everybody watches. A claim and a stop watch the journal,
    a commit and a stop the inbox. A deletion watches session and ctl.
    """
    if state.delete == WILL_DELETE and not inbox and not journal and config.mutant is not Mutant.DELETE_UNWATCHED:
        state = state._replace(delete=READING)
    if state.stop in (WILL_CANCEL, WILL_END) and not (journal and config.mutant is Mutant.STOP_UNWATCHED_JOURNAL):
        state = state._replace(stop=READING)
    one, two = state.workers
    if one.at in (CLAIMING, COMMITTING) or two.at in (CLAIMING, COMMITTING):
        claims = not inbox and not (journal and config.mutant is Mutant.STALE_JOURNAL)
        commits = not journal and not (inbox and config.mutant is Mutant.INBOX_UNWATCHED)
        state = state._replace(workers=(_thrown_back(one, claims, commits), _thrown_back(two, claims, commits)))
    return state


def _thrown_back(worker: Worker, claims: bool, commits: bool) -> Worker:
    if worker.at == COMMITTING and commits:
        return worker._replace(at=CLOSING)
    if worker.at == CLAIMING and claims:
        return Worker(GOT, worker.position)
    return worker


def spend(faults: Faults, kind: str) -> Faults:
    if faults.any == 1:
        return Faults(0, 0, 0, 0, 0)
    return faults._replace(**{"any": faults.any - 1, kind: getattr(faults, kind) - 1})


def push(queue: tuple[int, int, int], position: int, count: int = 1) -> tuple[int, int, int]:
    changed = list(queue)
    changed[position] += count
    return (changed[0], changed[1], changed[2])


def is_mine(session: Session, worker: Worker, me: int) -> bool:
    return session.claim == me and session.position == worker.position and not session.over


def is_cancelled(session: Session, config: Config) -> bool:
    return session.cancel and config.mutant is not Mutant.CANCEL_NOT_CHECKED
