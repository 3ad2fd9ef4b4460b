"""The rules of people who answer, and of the service whose result comes later."""

from __future__ import annotations

from ..changes import spend
from .changes import is_asking, is_at, is_job_open, touch, wake, with_broken, with_round
from .values import (
    ACCEPTED,
    ANSWERED,
    APPROVED,
    DENIED,
    EDITED_ARGUMENTS,
    FIRST,
    IN_DOUBT,
    OPEN,
    READ,
    REFUSED,
    UNSENT,
    WAIT,
    Config,
    Moves,
    Mutant,
    Person,
    State,
)


def moves_of_people(state: State, config: Config) -> Moves:
    for index, person in enumerate(state.people):
        if person.at == UNSENT:
            yield from _read_request(state, config, index)
        elif person.at == IN_DOUBT:
            yield from _send_again(state, config, index)
        elif person.at == READ:
            yield from _answer(state, config, index)


def _with_person(state: State, index: int, person: Person) -> State:
    return state._replace(people=(*state.people[:index], person, *state.people[index + 1 :]))


def _read_request(state: State, config: Config, index: int) -> Moves:
    """Read what is asked, watching ctl and journal."""
    session = state.session
    mine = index if config.passes_on else 0
    if not is_at(session, FIRST) or (session.round > mine and config.mutant is not Mutant.ROUND_IGNORED):
        yield "answer.refused", 0, _with_person(state, index, Person(REFUSED))
    elif not session.asked or session.round < mine:
        return
    elif _can_answer(state, config):
        yield "answer.read", 0, _with_person(state, index, Person(READ, session.phase))
    elif session.reply != OPEN or session.cancel:
        yield "answer.refused", 0, _with_person(state, index, Person(REFUSED))


def _can_answer(state: State, config: Config) -> bool:
    session = state.session
    is_late = state.is_expired and config.expires
    replaces = config.mutant is Mutant.SECOND_DECISION and session.reply in (APPROVED, DENIED)
    return (is_asking(session) or replaces) and not session.cancel and not is_late


def _send_again(state: State, config: Config, index: int) -> Moves:
    """The reply was lost: the operation id says that the answer was applied."""
    if config.mutant is Mutant.ANSWER_NOT_RECOGNISED:
        state = with_broken(state, "I8: an answer that was applied is reported as refused")
        yield "answer.refused", 0, _with_person(state, index, Person(REFUSED))
    else:
        yield "answer.known already", 0, _with_person(state, index, Person(ACCEPTED))


def _answer(state: State, config: Config, index: int) -> Moves:
    """Write the answer into the journal, and wake the step when it waits; both in one transaction."""
    session, person, ghost = state.session, state.people[index], state.ghost
    if not is_at(session, FIRST) or (session.reply != OPEN and config.mutant is not Mutant.SECOND_DECISION):
        # Only without a watch: HSETNX leaves the first answer.
        yield "answer.refused", 0, _with_person(state, index, Person(REFUSED))
        return
    if config.passes_on and session.round != index:
        state = with_broken(state, "I12: a request is answered by somebody who was not asked")
    approves = index == 0 or config.passes_on
    edited = EDITED_ARGUMENTS if approves and config.edited else 0
    answered = session._replace(reply=APPROVED if approves else DENIED, edited=edited)
    ghost = state.ghost._replace(
        decided=with_round(ghost.decided, session.round),
        approved=(edited or session.asked) if approves else ghost.approved,
    )
    woken = _woken_by_answer(state._replace(session=answered, ghost=ghost), config, person.phase)
    woken = touch(woken, config, control=woken.session.phase != session.phase, journal=True)
    yield "answer.given", 0, _with_person(woken, index, Person(ACCEPTED))
    if state.faults.replies:
        lost = woken._replace(faults=spend(state.faults, "replies"))
        yield "answer.given, reply lost", 0, _with_person(lost, index, Person(IN_DOUBT))
    if state.faults.messages and woken.queue != state.queue:
        silent = woken._replace(queue=state.queue, faults=spend(state.faults, "messages"))
        yield "fault.w2", 0, _with_person(silent, index, Person(ACCEPTED))


def _woken_by_answer(state: State, config: Config, phase: int) -> State:
    if phase == WAIT:
        state = state._replace(ghost=state.ghost._replace(news=True))
    if phase != WAIT or state.session.held or config.mutant is Mutant.WAKE_FORGOTTEN:
        return state
    return wake(state, config)


def moves_of_service(state: State, config: Config) -> Moves:
    """The external result comes, at any moment after the call began."""
    session = state.session
    if not state.ghost.jobs or not is_at(session, FIRST) or session.cancel or (state.is_expired and config.expires):
        return
    if not session.job_asked:
        yield "service.refused", 0, with_broken(state, "I12: a result is refused although its call has begun")
    elif is_job_open(session):
        answered = state._replace(session=session._replace(job_reply=ANSWERED))
        woken = _woken_by_answer(answered, config, session.phase)
        yield "service.answered", 0, touch(woken, config, control=session.phase == WAIT, journal=True)
