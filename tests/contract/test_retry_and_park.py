"""Retry, park, and a Redis that lost what it had acknowledged, on every store."""

from __future__ import annotations

import pytest

from celery_agents.tasks.client.job import Job
from celery_agents.worker.engine import operation_transition, retry_transition, stop_transition
from celery_agents.worker.errors import (
    ActionRefused,
    InvalidTransition,
)
from celery_agents.worker.store import (
    Claimed,
    StepRef,
)
from celery_agents.worker.store.database import Database

from support.asking import failing_transition
from support.lost_writes import lost_afterwards
from support.points import Points
from support.store import Bench, an_operation, step_transition
from support.store_client import StoreClient

pytestmark = pytest.mark.leaves_keys("sessions are left in the middle of an execution")


# --- Redis loses what it had acknowledged -----------------------------------------------------------------------------


@pytest.mark.parametrize(("lost", "stored"), [(1, 0), (3, 0), (1, 1), (2, 1), (1, 2), (3, 2), (2, 4)])
def test_a_worker_that_saw_what_redis_lost_goes_on_from_what_is_stored(bench: Bench, lost: int, stored: int) -> None:
    with lost_afterwards(bench):
        for number in range(1, lost + 1):
            bench.commit(bench.claim(number), text="lost")
    for number in range(1, stored + 1):
        bench.step_elsewhere(number)
    claimed = bench.claim(stored + 1)
    assert (claimed.loaded.version, claimed.loaded.state) == (
        stored + 1,
        bench.store.sessions.load(bench.session).state,
    )
    committed = bench.commit(claimed, final=True)
    assert committed.state == bench.store.sessions.load(bench.session).state


def test_a_message_that_redis_lost_is_not_taken_for_the_one_that_came_in_its_place(bench: Bench) -> None:
    with lost_afterwards(bench):
        bench.message("lost")
    bench.another().sessions.act(bench.session, an_operation("stored"), operation_transition)
    seen = bench.claim().loaded.state
    assert [message.content for message in seen.store.section().messages] == ["first", "stored"]


def test_a_worker_that_is_behind_by_more_than_anybody_remembers_reads_the_whole_session(bench: Bench) -> None:
    bench.commit(bench.claim())
    for number in range(2, 42):
        bench.step_elsewhere(number)
    assert bench.claim(42).loaded.state == bench.store.sessions.load(bench.session).state


# --- retry and park ---------------------------------------------------------------------------------------------------


def test_a_retry_goes_on_at_the_same_step(bench: Bench) -> None:
    bench.commit(bench.claim())
    bench.store.sessions.stop(bench.session, None, stop_transition)
    applied = bench.store.sessions.retry(bench.session, retry_transition(None))
    assert applied.publish is not None
    assert (applied.publish.execution_id, applied.publish.step, applied.publish.retries) == (bench.execution, 2, 1)
    keys = bench.store.context.keys(bench.session)
    assert bench.database("PTTL", keys.session) == -1
    claimed = bench.claim(2)
    assert (claimed.claim.attempt, claimed.loaded.cancel) == (1, None)


@pytest.mark.parametrize("trips", range(4))
def test_who_waits_for_a_retried_execution_hears_of_its_last_end(bench: Bench, trips: int) -> None:
    bench.store.sessions.stop(bench.session, None, stop_transition)
    bench.store.sessions.retry(bench.session, retry_transition(None))
    job = Job(bench.store, bench.session, "op-first")

    def end() -> None:
        bench.commit(bench.claim(), final=True, text="the last end")

    bench.spy.after(trips, end)
    result = job.result(timeout=10)
    assert (result.status, result.final_response) == ("completed", "the last end")


@pytest.mark.parametrize("is_parked", [False, True])
def test_a_lost_reply_to_a_retry_retries_once(bench: Bench, is_parked: bool) -> None:
    bench.commit(bench.claim())
    if is_parked:
        bench.store.steps.park(bench.ref(2), "cannot be read")
    else:
        bench.store.sessions.stop(bench.session, None, stop_transition)
    version = bench.store.sessions.header(bench.session).version
    bench.spy.lose(Points.RETRY_UNPARK if is_parked else Points.RETRY_EXEC)
    applied = bench.store.sessions.retry(bench.session, retry_transition(None))
    retries = 0 if is_parked else 1
    assert (applied.outcome, applied.execution_id) == ("started", bench.execution)
    assert applied.publish == StepRef(bench.session, bench.execution, 2, retries)
    assert bench.store.sessions.header(bench.session).version == version + (not is_parked)
    with pytest.raises(InvalidTransition):
        bench.store.sessions.retry(bench.session, retry_transition(None))


def test_a_retry_is_not_repeated_where_a_worker_took_it_up_before_its_reply_was_found_lost(bench: Bench) -> None:
    bench.store.sessions.stop(bench.session, None, stop_transition)
    bench.spy.lose(Points.RETRY_EXEC)

    def run() -> None:
        bench.commit(bench.claim(), final=True)

    bench.spy.before(Points.RETRY_EXEC, lambda: bench.spy.before(Points.RETRY_READ, run))
    bench.store.sessions.retry(bench.session, retry_transition(None))
    assert bench.store.sessions.header(bench.session).status == "completed"


def test_a_retry_leaves_the_journal_of_a_committed_step_to_its_end(bench: Bench) -> None:
    claimed = bench.claim()
    bench.store.steps.record_answer(claimed.claim, b"answer")
    bench.store.steps.commit(
        claimed.claim, claimed.loaded, step_transition(claimed, final=True, failed=True), results={}, keep_claim=False
    )
    bench.store.sessions.retry(bench.session, retry_transition(None))
    assert bench.database("PTTL", bench.store.context.keys(bench.session).journal(bench.execution, 1)) > 0


def test_the_journal_of_a_failed_execution_ends_with_the_one_that_follows(bench: Bench) -> None:
    claimed = bench.claim()
    bench.store.steps.record_answer(claimed.claim, b"answer")
    bench.store.steps.commit(claimed.claim, claimed.loaded, failing_transition(claimed), results={}, keep_claim=False)
    journal = bench.journal(bench.ref())
    assert bench.database("PTTL", journal) > bench.store.context.journal_ms
    bench.message("the next execution")
    assert 0 < bench.database("PTTL", journal) <= bench.store.context.journal_ms


def test_nothing_stays_for_ever_of_executions_that_failed_long_ago(database: Database) -> None:
    bench = Bench(database, retention_seconds=None, executions_kept=2)
    bench.submit()
    journals = list[str]()
    for number in range(4):
        claimed = bench.claim()
        bench.store.steps.record_answer(claimed.claim, b"answer")
        transition = failing_transition(claimed)
        bench.store.steps.commit(claimed.claim, claimed.loaded, transition, results={}, keep_claim=False)
        journals.append(bench.journal(bench.ref()))
        if number < 3:
            bench.execution = bench.message(f"message {number}").execution_id
    assert [bench.database("PTTL", journal) > 0 for journal in journals] == [True, True, True, False]
    bench.store.sessions.delete(bench.session)
    assert all(bench.database("PTTL", journal) != -1 for journal in journals)


def test_a_completed_execution_cannot_be_retried(bench: Bench) -> None:
    bench.commit(bench.claim(), final=True)
    before = bench.snapshot()
    with pytest.raises((ActionRefused, InvalidTransition)):
        bench.store.sessions.retry(bench.session, retry_transition(None))
    assert bench.snapshot() == before


def test_a_parked_step_is_left_alone_and_listed_until_it_is_retried(bench: Bench) -> None:
    bench.claim()
    bench.store.steps.park(bench.ref(), "cannot be read")
    assert bench.due() is None
    assert bench.store.sessions.header(bench.session).status == "parked"
    assert bench.store.housekeeping.list_dead()[0]["reason"] == "cannot be read"
    assert bench.store.sessions.retry(bench.session, retry_transition(None)).publish == bench.ref(1)
    assert isinstance(bench.answer(), Claimed)


def test_a_stale_park_changes_nothing(bench: Bench) -> None:
    bench.commit(bench.claim())
    before = bench.snapshot()
    bench.store.steps.park(bench.ref(1), "late")
    assert bench.snapshot() == before


@pytest.mark.parametrize("field", ["head", "version", "labels", "definition", "status"])
def test_one_that_cannot_be_read_keeps_no_other_from_its_retry(bench: Bench, field: str) -> None:
    for bench.session in ("first", "damaged", "last"):
        bench.execution = f"e-{bench.session}"
        bench.submit()
        bench.commit(bench.claim(), failed=True)
    bench.database("HSET", bench.store.context.keys("damaged").session, field, b"\xff")
    retried = [job.session_id for job in StoreClient(bench.store).retry_failed()]
    assert [name for name in retried if name != "damaged"] == ["last", "first"]
