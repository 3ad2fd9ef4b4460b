"""Events that end an attempt at a step say who had it, since when, and what a lost one had done, on every store."""

from __future__ import annotations

from typing import Any

import pytest

from celery_agents.worker.store import Claimed, EventType

from support.asking import a_request, approve, ask
from support.store import Bench

pytestmark = pytest.mark.leaves_keys("executions go on")


def data_of(bench: Bench, kind: EventType) -> Any:
    return next(event.data for event in reversed(bench.store.sessions.events(bench.session)) if event.type is kind)


def taken_ms(bench: Bench, claimed: Claimed) -> int:
    """When a claim was taken, as the journal has it; by an estimate of Redis's time."""
    return int(bench.database("HGET", bench.journal(claimed.claim.ref), f"try:{claimed.claim.id}"))


def begin(bench: Bench, claimed: Claimed, *indexes: int, at_ms: int = 0) -> int:
    at_ms = at_ms or claimed.claim.now_ms + 5
    bench.store.steps.begin_calls(claimed.claim, dict.fromkeys(indexes, 1000), at_ms, again=())
    return at_ms


def test_a_recovery_tells_what_the_lost_attempt_had_done(bench: Bench) -> None:
    lost = bench.claim()
    bench.store.steps.record_answer(lost.claim, b"an answer")
    began_ms = begin(bench, lost, 0, 1)
    bench.store.steps.record_results(lost.claim, {1: b"a result"})
    bench.end_lease(lost.claim)
    again = bench.store.steps.claim(bench.ref(), "second", "another worker", alone=True)
    assert isinstance(again, Claimed)
    assert data_of(bench, EventType.STEP_RECOVERED) == {
        "attempt": 2,
        "worker": "another worker",
        "lost_worker": "worker",
        "since_ms": taken_ms(bench, lost),
        "answered": True,
        "begun": {"0": began_ms},
    }


def test_a_recovery_before_the_answer_says_so(bench: Bench) -> None:
    lost = bench.claim()
    bench.end_lease(lost.claim)
    bench.claim()
    found = data_of(bench, EventType.STEP_RECOVERED)
    assert (found["since_ms"], found["answered"], found["begun"]) == (taken_ms(bench, lost), False, {})


def test_the_beginning_of_an_attempt_that_found_an_answer_is_told_by_the_recovery_before(bench: Bench) -> None:
    first = bench.claim()
    bench.store.steps.record_answer(first.claim, b"an answer")
    bench.end_lease(first.claim)
    second = bench.claim()
    began_ms = begin(bench, second, 0)
    bench.end_lease(second.claim)
    bench.claim()
    found = data_of(bench, EventType.STEP_RECOVERED)
    assert (found["attempt"], found["since_ms"], found["begun"]) == (3, None, {"0": began_ms})


def kinds(bench: Bench) -> list[str]:
    told = (EventType.STEP_RECOVERED, EventType.STEP_RESUMED)
    return [str(each.type) for each in bench.store.sessions.events(bench.session) if each.type in told]


@pytest.mark.parametrize("put_off", ["", "a limit"])
def test_a_recovery_is_told_once_also_where_the_step_is_delayed_behind_it(bench: Bench, put_off: str) -> None:
    bench.end_lease(bench.claim().claim)
    recovered = bench.claim()
    assert recovered.loaded.carries_on
    bench.store.steps.release(recovered.claim, delay_ms=0, give_back=True, reason="later", put_off=put_off)
    resumed = bench.claim()
    assert (resumed.claim.attempt, resumed.loaded.carries_on) == (2, False), (
        "the lost attempt counts, and is not told again"
    )
    assert kinds(bench) == ["step_recovered", *([] if put_off else ["step_resumed"])]
    bench.end_lease(resumed.claim)
    bench.claim()
    assert kinds(bench)[-1] == "step_recovered"
    assert data_of(bench, EventType.STEP_RECOVERED)["since_ms"] == taken_ms(bench, resumed)


def test_a_step_whose_time_was_over_is_carried_on_from_the_worker_that_had_it(bench: Bench) -> None:
    bench.store.steps.release(bench.claim().claim, delay_ms=None, give_back=False)
    assert bench.store.sessions.step_facts(bench.session).worker == "", "no worker has it"
    assert bench.claim().loaded.carries_on
    assert data_of(bench, EventType.STEP_RECOVERED)["lost_worker"] == "worker"


def test_a_damaged_time_of_a_claim_does_not_keep_the_step(bench: Bench) -> None:
    lost = bench.claim()
    bench.database("HSET", bench.journal(bench.ref()), f"try:{lost.claim.id}", "no time")
    bench.end_lease(lost.claim)
    bench.claim()
    assert data_of(bench, EventType.STEP_RECOVERED)["since_ms"] is None


def test_a_delay_and_a_wait_tell_the_attempt_that_they_end(bench: Bench) -> None:
    claimed = bench.claim()
    bench.store.steps.release(claimed.claim, delay_ms=1, give_back=True, reason="the provider is away")
    found = data_of(bench, EventType.STEP_DELAYED)
    assert (found["worker"], found["since_ms"]) == ("worker", claimed.claim.now_ms)

    other = Bench(bench.spy.inner)
    other.submit()
    request = a_request(other)
    ask(other, request)
    found = data_of(other, EventType.EXECUTION_WAITING)
    assert found["worker"] == "worker"
    assert 0 < found["since_ms"] <= other.store.housekeeping.now_ms()
    approve(other, request)
