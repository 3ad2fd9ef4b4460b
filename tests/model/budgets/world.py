"""Everything besides the workers: who changes the limit, who holds and answers, and time."""

from __future__ import annotations

from .values import (
    ANSWERING,
    CLEAR,
    DEAD,
    END,
    HELD,
    MARKED,
    NOTHING,
    READING,
    RUN,
    UNASKED,
    WAIT,
    WRITING,
    Client,
    Config,
    Moves,
    Mutant,
    Session,
    State,
)
from .worker import touch


def moves_of_client(state: State, config: Config) -> Moves:
    """The client that changes the limit: it watches, reads and writes, and asks again after a lost reply."""
    client, session = state.client, state.session
    if client.number == len(config.changes):
        return
    following = Client(UNASKED, client.number + 1)
    if client.at == UNASKED:
        yield "change.begun", 0, state._replace(client=Client(READING, client.number))
    elif client.at == READING and session.phase == END:
        yield "change.refused", 0, state._replace(client=following)
    elif client.at == READING:
        yield "change.read", 0, state._replace(client=Client(WRITING, client.number))
    elif client.at == ANSWERING:
        # It finds the limit that it has written, in the field or in the state; or it writes it once more.
        yield "change.sent again", 0, state._replace(client=Client(READING, client.number))
    else:
        limit = config.changes[client.number]
        after = _woken(session._replace(field=limit, cancel=_mark(session)), config)
        late = state.changed_late or session.phase == END
        done = state._replace(session=after, truth=limit, changed_late=late, client=following)
        yield "change.made", 0, touch(done, config)
        if state.faults:
            lost = done._replace(client=Client(ANSWERING, client.number), faults=state.faults - 1)
            yield "change.made, reply lost", 0, touch(lost, config)


def _mark(session: Session) -> int:
    return MARKED if session.cancel == CLEAR else session.cancel


def _woken(session: Session, config: Config) -> Session:
    is_woken = session.phase == WAIT and not session.held and config.mutant is not Mutant.NO_WAKE
    return session._replace(phase=RUN) if is_woken else session


def moves_of_holder(state: State, config: Config) -> Moves:
    """Somebody who holds the session once, and resumes it."""
    session = state.session
    if session.phase != END and not session.held and not state.holds:
        held = session._replace(held=True, cancel=HELD)
        yield "hold.made", 0, touch(state._replace(session=held, holds=1), config)
    elif session.held:
        keeps = session.field != NOTHING and config.mutant is not Mutant.RESUME_CLEARS_MARK
        free = session._replace(held=False, cancel=MARKED if keeps else CLEAR)
        free = free._replace(phase=RUN if session.phase == WAIT else session.phase)
        yield "hold.ended", 0, touch(state._replace(session=free), config)


def moves_of_people(state: State, config: Config) -> Moves:
    """The answer to the request of the first step, while it waits."""
    session = state.session
    if config.waits and session.phase == WAIT and not session.reply:
        answered = session._replace(reply=True, phase=WAIT if session.held else RUN)
        yield "answer.given", 0, touch(state._replace(session=answered), config)


def moves_of_time(state: State) -> Moves:
    """The lease of a dead claim ends."""
    session = state.session
    if session.claim == DEAD and session.lease:
        yield "lease.ended", 0, state._replace(session=session._replace(lease=False))
