"""Journals of steps, on every store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from celery_agents.worker.engine import retry_transition, stop_transition
from celery_agents.worker.errors import ClaimLost, StoreUnavailable
from celery_agents.worker.moments import moment
from celery_agents.worker.state import StopReason, StopSignal
from celery_agents.worker.store import Claim, NextState, Snapshot
from celery_agents.worker.store.database import Database
from celery_agents.worker.store.store import StepStore

from support.asking import failing_transition
from support.points import Points
from support.store import Bench

pytestmark = pytest.mark.leaves_keys("sessions are left in the middle of an execution")


def test_the_first_answer_wins_whoever_wrote_it(bench: Bench) -> None:
    slept = bench.claim().claim
    bench.end_lease(slept)
    current = bench.claim().claim
    assert bench.store.steps.record_answer(slept, b"one") == b"one"
    assert bench.store.steps.record_answer(current, b"two") == b"one"
    assert bench.store.steps.record_answer(slept, b"one") == b"one"


def test_what_was_obtained_is_there_for_the_next_claim(bench: Bench) -> None:
    claim = bench.claim().claim
    bench.store.steps.record_failure(claim, 1, b'{"kind":"timeout"}')
    bench.store.steps.record_answer(claim, b"answer")
    bench.store.steps.begin_calls(claim, {0: 1000, 1: 2000}, claim.now_ms)
    bench.store.steps.record_results(claim, {0: b"zero"})
    bench.end_lease(claim)
    journal = bench.claim().loaded.journal
    assert journal.answer == b"answer"
    assert journal.results == {0: b"zero"}
    assert {index: (b.claim, b.timeout_ms) for index, b in journal.begun.items()} == {
        0: (claim.id, 1000),
        1: (claim.id, 2000),
    }

    failure = bench.database("HGET", bench.journal(claim.ref), f"err:{claim.id}:1")
    assert failure == b'{"kind":"timeout"}', "kept for those who account for model calls"


def test_an_end_by_overtime_needs_the_claim_and_is_found_by_every_leg_but_not_by_a_retry(bench: Bench) -> None:
    slept = bench.claim().claim
    bench.end_lease(slept)
    current = bench.claim().claim
    with pytest.raises(ClaimLost):
        bench.store.steps.record_overtime(slept, b"old")
    bench.store.steps.record_overtime(current, b"late")
    bench.store.steps.record_overtime(current, b"later")
    bench.end_lease(current)
    leg = bench.claim()
    assert leg.loaded.journal.ending == b"late"
    assert bench.store.steps.reload(leg.claim).journal.ending == b"late"
    bench.store.steps.commit(leg.claim, leg.loaded, failing_transition(leg), results={}, keep_claim=False)
    bench.store.sessions.retry(bench.session, retry_transition(None))
    retried = bench.claim()
    assert retried.loaded.journal.ending is None
    stopped = bench.store.steps.stop_children(retried.claim, ())
    assert stopped.ending is None, "nor do children that it asks to stop"
    bench.store.steps.record_overtime(retried.claim, b"once more")
    bench.end_lease(retried.claim)
    assert bench.claim().loaded.journal.ending == b"once more"


def test_the_first_pins_to_lists_of_tools_win_and_are_there_for_the_next_claim(bench: Bench) -> None:
    slept = bench.claim().claim
    bench.end_lease(slept)
    current = bench.claim().claim
    assert bench.store.steps.record_tools(slept, b'{"crm":"a"}') == b'{"crm":"a"}'
    assert bench.store.steps.record_tools(current, b'{"crm":"b"}') == b'{"crm":"a"}'
    bench.end_lease(current)
    journal = bench.claim().loaded.journal
    assert journal.tools == b'{"crm":"a"}'
    assert not journal.holds_something, "the model has not been asked"


def test_the_first_result_of_a_call_wins(bench: Bench) -> None:
    claim = bench.claim().claim
    bench.store.steps.record_results(claim, {0: b"one"})
    bench.store.steps.record_results(claim, {0: b"two", 1: b"three"})
    bench.end_lease(claim)
    assert bench.claim().loaded.journal.results == {0: b"one", 1: b"three"}


def test_a_call_begins_once_for_each_claim(bench: Bench) -> None:
    first = bench.claim().claim
    assert bench.store.steps.begin_calls(first, {0: 1000, 1: 1000}, 5).own == {0, 1}
    assert bench.store.steps.begin_calls(first, {0: 1000}, 5).own == {0}
    bench.end_lease(first)
    second = bench.claim().claim
    begun = bench.store.steps.begin_calls(second, {0: 1000, 2: 1000}, 9)
    assert begun.own == {2}
    assert {index: each.claim for index, each in begun.others.items()} == {0: first.id}
    again = bench.store.steps.begin_calls(second, {0: 1000}, 9, again=(0,))
    assert again.own == {0}


def test_a_call_that_has_a_result_does_not_begin(bench: Bench) -> None:
    claim = bench.claim().claim
    bench.store.steps.record_results(claim, {0: b"done"})
    begun = bench.store.steps.begin_calls(claim, {0: 1000, 1: 1000}, 5)
    assert begun.results == {0: b"done"}
    assert begun.own == {1}
    bench.end_lease(claim)
    assert set(bench.claim().loaded.journal.begun) == {1}


def test_after_a_stop_no_call_begins_and_no_record_stays(bench: Bench) -> None:
    claim = bench.claim().claim
    bench.store.sessions.stop(bench.session, None, stop_transition)
    begun = bench.store.steps.begin_calls(claim, {0: 1000}, 5)
    assert begun.cancel == bench.execution
    assert begun.own == frozenset()
    bench.end_lease(claim)
    assert not bench.claim().loaded.journal.begun


def test_a_begin_record_of_one_who_lost_the_claim_is_taken_back(bench: Bench) -> None:
    """Else the call would be unknown to the next claim, although nobody began it."""
    slept = bench.claim().claim
    assert bench.store.steps.begin_calls(slept, {0: 1000}, 5).own == {0}
    bench.end_lease(slept)
    later = bench.claim().claim
    with pytest.raises(ClaimLost):
        bench.store.steps.begin_calls(slept, {0: 1000, 1: 1000}, 9)
    bench.end_lease(later)
    begun = bench.claim().loaded.journal.begun
    assert {index: each.claim for index, each in begun.items()} == {0: slept.id}, "that one may have happened"


def test_whoever_lost_the_claim_begins_nothing(bench: Bench) -> None:
    slept = bench.claim().claim
    bench.end_lease(slept)
    bench.claim()
    with pytest.raises(ClaimLost):
        bench.store.steps.begin_calls(slept, {0: 1000}, 5)
    with pytest.raises(ClaimLost):
        bench.store.steps.begin_calls(slept, {0: 1000}, 5, again=(0,))


def test_an_unusable_answer_is_dropped_only_before_a_call_has_begun(bench: Bench) -> None:
    claim = bench.claim().claim
    assert bench.store.steps.drop_answer(claim, b"cost", was_journaled=False) is True
    bench.store.steps.record_answer(claim, b"broken")
    assert bench.store.steps.drop_answer(claim, b"cost", was_journaled=False) is False
    assert bench.store.steps.drop_answer(claim) is True
    assert bench.store.steps.record_answer(claim, b"good") == b"good"
    bench.store.steps.begin_calls(claim, {0: 1000}, 5)
    assert bench.store.steps.drop_answer(claim) is False
    bench.end_lease(claim)
    journal = bench.claim().loaded.journal
    assert (journal.answer, journal.rejected) == (b"good", (b"cost",))


def test_a_worker_that_slept_does_not_drop_the_answer_of_another(bench: Bench) -> None:
    slept = bench.claim().claim
    bench.store.steps.record_answer(slept, b"broken")

    def meanwhile() -> None:
        bench.end_lease(slept)
        current = bench.claim().claim
        assert bench.store.steps.drop_answer(current) is True
        bench.store.steps.record_answer(current, b"good")

    bench.spy.before(Points.JOURNAL_DROP, meanwhile)
    assert bench.store.steps.drop_answer(slept) is False
    assert bench.store.steps.record_answer(slept, b"late") == b"good"


def test_a_result_is_dropped_by_the_claim_that_read_it_and_only_as_it_was_read(bench: Bench) -> None:
    slept = bench.claim().claim
    bench.store.steps.record_results(slept, {0: b"failed late", 1: b"one"})
    bench.end_lease(slept)
    current = bench.claim().claim
    with pytest.raises(ClaimLost):
        bench.store.steps.drop_results(slept, {0: b"failed late"})
    bench.store.steps.drop_results(current, {0: b"failed late", 1: b"another"})
    bench.end_lease(current)
    assert bench.claim().loaded.journal.results == {1: b"one"}


@pytest.mark.parametrize("lost", ["", "journal.past", "journal.bury"])
@pytest.mark.parametrize("write", ["answer", "results", "failure", "begin"])
def test_a_journal_revived_after_its_step_gets_its_end_again(bench: Bench, write: str, lost: str) -> None:
    bench.spy.lose(lost)
    slept = bench.claim().claim
    bench.end_lease(slept)
    bench.commit(bench.claim(), final=True)
    keys = bench.store.context.keys(bench.session)
    journal = keys.journal(bench.execution, 1)
    bench.database("DEL", journal)
    with contextlib.suppress(ClaimLost):
        match write:
            case "answer":
                bench.store.steps.record_answer(slept, b"late")
            case "results":
                bench.store.steps.record_results(slept, {0: b"late"})
            case "failure":
                bench.store.steps.record_failure(slept, 1, b"{}")
            case _:
                bench.store.steps.begin_calls(slept, {0: 1000}, 5)
    assert bench.database("PTTL", journal) != -1


@pytest.mark.parametrize("retention", [3600.0, None])
@pytest.mark.parametrize("write", ["answer", "results", "failure"])
def test_a_worker_that_slept_leaves_a_journal_that_a_retry_needs_as_long_as_the_session(
    database: Database, write: str, retention: float | None
) -> None:
    bench = Bench(database, retention_seconds=retention, journal_seconds=30.0)
    bench.submit()
    slept = bench.claim().claim
    bench.end_lease(slept)
    current = bench.claim()
    bench.store.steps.record_auxiliary(current.claim, "note", b"paid")
    bench.store.steps.commit(current.claim, current.loaded, _stopped_without_answer, results={}, keep_claim=False)
    journal = bench.store.context.keys(bench.session).journal(bench.execution, 1)
    before = bench.database("PTTL", journal)
    match write:
        case "answer":
            bench.store.steps.record_answer(slept, b"late")
        case "results":
            bench.store.steps.record_results(slept, {0: b"late"})
        case _:
            bench.store.steps.record_failure(slept, 1, b"{}")
    after = bench.database("PTTL", journal)
    assert (after == before == -1) if retention is None else (3_500_000 < after <= before)


def _stopped_without_answer(snapshot: Snapshot) -> NextState:
    now = moment(snapshot.now_ms)
    signal = StopSignal(reason=StopReason.USER_REQUESTED, message="stop", source="test")
    started = snapshot.state.with_execution_started(now=now)
    return NextState(started.with_stop_signal(signal, now=now).with_execution_completed(now=now), keep_journal=True)


LATE_WRITES: dict[str, Callable[[StepStore, Claim], object]] = {
    "journal.answer": lambda steps, claim: steps.record_answer(claim, b"late"),
    "journal.auxiliary": lambda steps, claim: steps.record_auxiliary(claim, "summary", b"late"),
    "journal.tools": lambda steps, claim: steps.record_tools(claim, b"late"),
    "journal.failure": lambda steps, claim: steps.record_failure(claim, 1, b"late"),
    "journal.result": lambda steps, claim: steps.record_results(claim, {0: b"late"}),
    "journal.begin": lambda steps, claim: steps.begin_calls(claim, {0: 1000}, 5),
    "journal.decide": lambda steps, claim: steps.record_decisions(claim, {0: b"late"}),
    "journal.started": lambda steps, claim: steps.record_started_calls(claim, [0]),
}


@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("point", LATE_WRITES)
def test_no_journal_that_a_worker_writes_after_its_end_stays_for_ever(
    bench: Bench, point: str, *, is_lost: bool, is_deleted: bool
) -> None:
    slept = bench.claim().claim
    bench.end_lease(slept)
    bench.commit(bench.claim(), final=True)
    if is_deleted:
        bench.store.sessions.delete(bench.session)
    bench.database("DEL", bench.journal(bench.ref()))  # its time was over
    if is_lost:
        bench.spy.lose(point)
    with contextlib.suppress(ClaimLost, StoreUnavailable):
        LATE_WRITES[point](bench.store.steps, slept)
    life = bench.database("PTTL", bench.journal(bench.ref()))
    assert life == -2 if is_deleted else life != -1
