"""Steps are read at one moment, and no more of them than were asked for, on every store."""

from __future__ import annotations

import pytest

from celery_agents.worker.errors import SessionNotFound, StateUnreadable, StoreUnavailable

from support.store import Bench

pytestmark = pytest.mark.leaves_keys("executions go on")


def test_steps_come_in_pages_with_the_one_before(bench: Bench) -> None:
    for number in (1, 2, 3):
        bench.commit(bench.claim(number))
    found = bench.store.sessions.execution(bench.session, 2, 1)
    assert (found.committed, [each.step.number for each in found.steps]) == (3, [2])
    assert found.before is not None
    assert found.before.step.number == 1
    assert found.current is not None
    assert (found.current.number, found.current.phase, found.current.claim) == (4, "run", "")
    assert bench.store.sessions.execution(bench.session, 1, 200).before is None
    assert bench.store.sessions.execution(bench.session, 9, 200).steps == ()
    assert bench.spy.points[-3:].count("execution.steps") == 0, "nothing is read where nothing is asked for"


def test_the_events_are_those_of_the_execution(bench: Bench) -> None:
    bench.commit(bench.claim(), final=True)
    first = bench.execution
    bench.execution = bench.message("the next execution").execution_id
    found = bench.store.sessions.execution(bench.session, 1, 200)
    assert found.execution is not None
    assert found.execution.execution_id == bench.execution != first
    assert {event.execution_id for event in found.events} == {bench.execution}


def test_a_read_during_a_commit_is_made_again(bench: Bench) -> None:
    claimed = bench.claim()
    bench.spy.before("execution.current", lambda: bench.commit(claimed))
    found = bench.store.sessions.execution(bench.session, 1, 200)
    assert (found.committed, [each.step.number for each in found.steps]) == (1, [1])
    assert found.current is not None
    assert found.current.number == 2


def test_the_claim_and_its_lease_are_read_with_the_journal(bench: Bench) -> None:
    claimed = bench.claim()
    bench.store.steps.record_answer(claimed.claim, b"an answer")
    current = bench.store.sessions.execution(bench.session, 1, 200).current
    assert current is not None
    assert (current.claim, current.worker, current.is_leased) == (claimed.claim.id, "worker", True)
    assert current.journal.answer == b"an answer"
    bench.end_lease(claimed.claim)
    current = bench.store.sessions.execution(bench.session, 1, 200).current
    assert current is not None
    assert not current.is_leased


def test_what_is_missing_or_damaged_is_said(bench: Bench) -> None:
    with pytest.raises(SessionNotFound):
        bench.store.sessions.execution("nothing", 1, 200)
    bench.commit(bench.claim())
    steps = bench.store.context.keys(bench.session).steps(bench.execution)
    bench.database("DEL", steps)
    bench.database("RPUSH", steps, b"no step")
    with pytest.raises(StateUnreadable, match="steps"):
        bench.store.sessions.execution(bench.session, 1, 200)


def test_a_lost_reply_is_an_error_and_changes_nothing(bench: Bench) -> None:
    before = bench.snapshot()
    bench.spy.lose("execution.current")
    with pytest.raises(StoreUnavailable):
        bench.store.sessions.execution(bench.session, 1, 200)
    assert bench.snapshot() == before
