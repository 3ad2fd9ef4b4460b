"""A step journals what its policy decided and what it asks, once, on every store."""

from __future__ import annotations

import pytest

from celery_agents.worker.engine import stop_transition
from celery_agents.worker.errors import ClaimLost, InvalidInput
from celery_agents.worker.state import (
    RequestKind,
)

from support.asking import (
    a_request,
    events,
    now_ms,
    open_requests,
)
from support.points import Points
from support.store import Bench

pytestmark = pytest.mark.leaves_keys("executions wait")


# --- asking -----------------------------------------------------------------------------------------------------------


def test_a_decision_is_journaled_once_and_the_first_one_counts(bench: Bench) -> None:
    claimed = bench.claim()
    assert bench.store.steps.record_decisions(claimed.claim, {0: b"ask", 2: b"deny"}) == {0: b"ask", 2: b"deny"}
    assert bench.store.steps.record_decisions(claimed.claim, {0: b"other", 1: b"new"}) == {0: b"ask", 1: b"new"}
    bench.end_lease(claimed.claim)
    assert bench.claim().loaded.journal.decisions == {0: b"ask", 1: b"new", 2: b"deny"}


def test_a_request_is_opened_once_whoever_makes_it_again(bench: Bench) -> None:
    first = bench.claim()
    request = a_request(bench)
    open_requests(bench, first, request)
    bench.end_lease(first.claim)
    second = bench.claim()
    later = a_request(bench, asked_at_ms=request.asked_at_ms + 5)
    opened = bench.store.steps.open_requests(second.claim, [later])
    assert opened.requests == (request,)
    assert second.loaded.journal.all_requests == (request,)
    assert events(bench).count("request_opened") == 1


def test_a_request_takes_the_begin_record_of_its_call_back(bench: Bench) -> None:
    claimed = bench.claim()
    bench.store.steps.begin_calls(claimed.claim, {0: 1000}, now_ms(bench))
    open_requests(bench, claimed, a_request(bench))
    bench.end_lease(claimed.claim)
    assert bench.claim().loaded.journal.begun == {}


def test_a_call_with_a_later_result_begins_together_with_its_request(bench: Bench) -> None:
    claimed = bench.claim()
    request = a_request(bench, kind=RequestKind.EXTERNAL)
    open_requests(bench, claimed, request, begins={0: 5000})
    bench.store.steps.record_started_calls(claimed.claim, [0])
    bench.end_lease(claimed.claim)
    journal = bench.claim().loaded.journal
    assert (journal.begun[0].claim, journal.begun[0].timeout_ms) == (claimed.claim.id, 5000)
    assert journal.started_calls == {0}


def test_a_request_needs_the_claim_and_opens_nothing_under_a_stop(bench: Bench) -> None:
    claimed = bench.claim()
    bench.end_lease(claimed.claim)
    other = bench.claim()
    with pytest.raises(ClaimLost):
        bench.store.steps.open_requests(claimed.claim, [a_request(bench)])
    bench.store.sessions.stop(bench.session, None, stop_transition)
    opened = bench.store.steps.open_requests(other.claim, [a_request(bench)])
    assert (opened.requests, opened.cancel) == ((), bench.execution)
    assert "request_opened" not in events(bench)


def test_a_stop_after_a_request_whose_reply_was_lost_still_tells_of_it(bench: Bench) -> None:
    claimed = bench.claim()
    request = a_request(bench)
    open_requests(bench, claimed, request)
    bench.store.sessions.stop(bench.session, None, stop_transition)
    again = bench.store.steps.open_requests(claimed.claim, [request, a_request(bench, 1)])
    assert ([each.id for each in again.requests], again.cancel) == ([request.id], bench.execution)


def test_requests_are_bounded_by_number_and_size(bench: Bench) -> None:
    claimed = bench.claim()
    with pytest.raises(InvalidInput, match=r"request of refund.*bytes"):
        open_requests(bench, claimed, a_request(bench, text="x" * 70_000))
    with pytest.raises(InvalidInput, match=r"requests.*65"):
        open_requests(bench, claimed, *(a_request(bench, index) for index in range(65)))
    assert len(open_requests(bench, claimed, *(a_request(bench, index) for index in range(64))).open_requests) == 64


def test_a_lost_reply_opens_a_request_once(bench: Bench) -> None:
    claimed = bench.claim()
    bench.spy.lose(Points.REQUEST_OPEN)
    journal = open_requests(bench, claimed, a_request(bench))
    assert len(journal.open_requests) == 1
    assert events(bench).count("request_opened") == 1


def test_an_answer_of_the_model_stays_once_the_step_has_asked(bench: Bench) -> None:
    claimed = bench.claim()
    open_requests(bench, claimed, a_request(bench))
    assert bench.store.steps.drop_answer(claimed.claim) is False
