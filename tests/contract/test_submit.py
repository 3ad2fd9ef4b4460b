"""Submitting a session, on every store."""

from __future__ import annotations

import uuid

import pytest

from celery_agents.worker.engine import operation_transition, stop_transition
from celery_agents.worker.errors import (
    IdempotencyMismatch,
    SessionNotFound,
    StoreUnavailable,
)
from celery_agents.worker.store.database import Database

from support.points import Points
from support.store import Bench, an_operation

pytestmark = pytest.mark.leaves_keys("sessions are left in the middle of an execution")


def test_a_submitted_session_waits_for_its_first_step(bench: Bench) -> None:
    header = bench.store.sessions.header(bench.session)
    assert (header.agent, header.version, header.execution_id, header.step) == ("agent", 1, bench.execution, 1)
    assert bench.due() is not None
    state = bench.store.sessions.load(bench.session).state
    assert [message.content for message in state.messages] == ["first"]


def test_submitting_again_changes_nothing_and_names_the_first_execution(bench: Bench) -> None:
    before = bench.snapshot()
    again = bench.submit(execution=uuid.uuid4().hex)
    assert (again.outcome, again.execution_id, again.publish) == ("again", bench.execution, None)
    assert bench.snapshot() == before


def test_another_request_under_the_same_id_is_refused(bench: Bench) -> None:
    with pytest.raises(IdempotencyMismatch):
        bench.submit(fingerprint="other")


@pytest.mark.parametrize("estimates", [True, False])
def test_a_lost_reply_to_a_submit_makes_one_session(database: Database, estimates: bool) -> None:
    bench = Bench(database, cache_bytes=1_000_000 if estimates else 0)
    bench.spy.lose(Points.SUBMIT_ATTEMPT if estimates else Points.SUBMIT_EXEC)
    again = bench.submit()
    assert (again.outcome, again.execution_id) == ("again", bench.execution)
    assert bench.store.sessions.header(bench.session).version == 1


def test_a_submit_that_was_not_sent_is_made_all_the_same(database: Database) -> None:
    bench = Bench(database)

    def fail() -> None:
        raise StoreUnavailable("the connection was refused")

    bench.spy.before(Points.SUBMIT_ATTEMPT, fail)
    assert bench.submit().outcome == "started"
    assert bench.store.sessions.header(bench.session).version == 1


def test_a_session_that_is_made_at_this_moment_was_not_deleted(database: Database) -> None:
    bench = Bench(database)
    bench.spy.before(Points.SESSION_MARK, bench.submit)
    with pytest.raises(SessionNotFound) as found:
        bench.message("hello")
    assert type(found.value) is SessionNotFound


def test_unknown_sessions_are_named(bench: Bench) -> None:
    for ask in (bench.store.sessions.header, bench.store.sessions.load, bench.store.sessions.definition):
        with pytest.raises(SessionNotFound):
            ask("nobody")
    with pytest.raises(SessionNotFound):
        bench.store.sessions.act("nobody", an_operation("hello"), operation_transition)
    with pytest.raises(SessionNotFound):
        bench.store.sessions.stop("nobody", None, stop_transition)
