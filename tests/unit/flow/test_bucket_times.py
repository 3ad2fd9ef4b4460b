"""What time does to a bucket, on virtual time: appointments, the window, rates that grow and are forgotten."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from celery_agents.config.settings import Settings
from celery_agents.flow import ModelEndpoint, ProviderLimit
from celery_agents.worker.flow.values import ProviderFacts
from celery_agents.worker.store import Claim, StepRef, memory_store
from celery_agents.worker.store.clock import RedisClock
from celery_agents.worker.store.context import Publisher
from celery_agents.worker.store.flow.records import CallCounts, Refused, Reservation, Settled, Settlement
from celery_agents.worker.store.keys import FLEET
from celery_agents.worker.store.memory.database import MemoryDatabase
from celery_agents.worker.store.store import Store

from support.lua_scripts import SCRIPTS

M = ModelEndpoint("m")
HOUR_MS = 3_600_000


class Clocked:
    """A bucket whose time is set by the test."""

    def __init__(self, **limit: float) -> None:
        self.now_ms = 1_000_000_000
        self.limit = ProviderLimit("m", **limit) if limit else None
        self.database = MemoryDatabase(lambda: self.now_ms, SCRIPTS)
        self.store = Store(self.database, Settings.build(), clock=RedisClock(), publisher=Publisher())
        self._calls = itertools.count()

    def ask(self, session: str, **cost: Any) -> Reservation | Refused:
        claim = Claim(f"c-{session}", "w", StepRef(session, "e", 1), 1, 0)
        lease = self.store.context.keys(session).shard.lease(claim.id)
        self.database.pipeline("test", [("SET", lease, "w")])
        return self.store.flow.reserve(claim, M, self.limit, call=str(next(self._calls)), cost=cost, lease_ms=600_000)

    def go(self, session: str, **cost: Any) -> Reservation:
        found = self.ask(session, **cost)
        assert isinstance(found, Reservation), found
        return found

    def wait(self, session: str, **cost: Any) -> int:
        """The milliseconds until the appointment of a session that may not go."""
        found = self.ask(session, **cost)
        assert isinstance(found, Refused), found
        return found.wait_ms

    def settle(self, reservation: Reservation, kind: Any = "ok", used: Any = None, **facts: Any) -> Settled:
        told = ProviderFacts(kind=kind, **facts)
        return self.store.flow.settle(Settlement(reservation, told, CallCounts("w"), used=used))

    def arrival_ms(self, dimension: str) -> float:
        return float(self.database.pipeline("test", [("HGET", FLEET.rate(M.digest).bucket, f"at:{dimension}")])[0])

    def rate(self) -> float:
        """The limit of requests a minute that was learned, by the answer to a request that it refuses."""
        for number in range(1_000):
            found = self.ask(f"x{number}")
            if isinstance(found, Refused):
                assert found.dimension == "requests"
                return found.per_minute
            self.settle(found)
        raise AssertionError("no limit")


def test_half_a_second_of_the_rate_goes_at_once_and_then_one_after_another() -> None:
    bucket = Clocked(rpm=300)
    bucket.go("s0"), bucket.go("s1")
    assert [bucket.wait(f"s{number}") for number in range(2, 5)] == [100, 300, 500]
    bucket.now_ms += 100
    bucket.go("s2")


def test_a_newcomer_goes_only_where_that_moves_no_appointment() -> None:
    bucket = Clocked(rpm=300)
    bucket.go("a"), bucket.go("b")
    assert bucket.wait("waits") == 100
    bucket.now_ms += 99
    assert bucket.wait("new") == 201, "after the one that waits, although there is room in a millisecond"
    bucket.now_ms += 1
    assert bucket.wait("third") == 400, "there is room, and it is for the one that waits"
    bucket.go("waits")
    bucket.now_ms += 1_000
    bucket.go("another")
    bucket.go("new")


def test_one_with_an_appointment_may_come_early_when_there_is_room() -> None:
    bucket = Clocked(tpm=60_000)
    reservation = bucket.go("a", tokens=60_000)
    assert bucket.wait("b", tokens=500) > 55_000
    bucket.settle(reservation, used={"tokens": 100})
    bucket.go("b", tokens=500)


@pytest.mark.parametrize(("late_ms", "wait_ms"), [(0, 2_000), (700, 1_300), (1_000, 1_000), (1_500, 1_000)])
def test_one_that_comes_late_for_its_appointment_loses_at_most_what_is_over_a_second(
    late_ms: int, wait_ms: int
) -> None:
    bucket = Clocked(rpm=30)
    bucket.go("a")
    assert bucket.wait("b") == 2_000
    bucket.now_ms += 2_000 + late_ms
    bucket.go("b")
    assert bucket.wait("c") == wait_ms


def test_what_was_reserved_more_than_a_minute_ago_is_not_given_back() -> None:
    for age_ms, given_back_ms in ((59_999, 60_000), (60_000, 0)):
        bucket = Clocked(tpm=1_000)
        reservation = bucket.go("a", tokens=1_000)
        before = bucket.arrival_ms("tokens")
        bucket.now_ms += age_ms
        bucket.settle(reservation, used={"tokens": 0})
        assert before - bucket.arrival_ms("tokens") == given_back_ms
        bucket.settle(reservation, used={"tokens": 5_000})
        assert before - bucket.arrival_ms("tokens") == given_back_ms, "once"


def test_the_window_doubles_with_a_success_and_with_the_time_in_which_one_is_refused() -> None:
    bucket = Clocked(rpm=60_000)
    bucket.settle(bucket.go("a"), "rate_limit", retry_after=0.0)
    first = bucket.go("b")
    assert bucket.ask("c").why == "window"  # type: ignore[union-attr]
    bucket.settle(first)
    bucket.go("c"), bucket.go("d")
    assert isinstance(bucket.ask("e"), Refused)
    bucket.now_ms += 499
    assert isinstance(bucket.ask("e"), Refused)
    bucket.now_ms += 1
    bucket.go("e"), bucket.go("f")
    assert isinstance(bucket.ask("g"), Refused)


def test_a_rate_that_was_concluded_grows_quickly_once_and_slowly_afterwards_and_is_forgotten() -> None:
    bucket = Clocked()
    first = bucket.settle(bucket.go("a"), "rate_limit", retry_after=1.0)
    assert first.refused
    bucket.now_ms += 60_000
    assert bucket.rate() == pytest.approx(60 * 2.2)
    bucket.now_ms += 180_000
    refused = bucket.settle(bucket.go("later"), "rate_limit", retry_after=0.0)
    assert refused.refused
    low = bucket.rate()
    bucket.now_ms += 240_000
    assert bucket.rate() == pytest.approx(low * 1.2)
    bucket.now_ms += HOUR_MS
    for number in range(50):
        bucket.go(f"y{number}")


def test_a_refusal_behind_ten_answers_takes_what_the_rate_has_grown_by() -> None:
    bucket = Clocked(rpm=60_000)

    def refused_behind(answers: int) -> float:
        bucket.now_ms += 60_000
        for number in range(answers):
            bucket.settle(bucket.go(f"s{number}"))
        late = bucket.go("in flight")
        bucket.settle(bucket.go("refused"), "rate_limit", retry_after=0.0)
        bucket.settle(late)
        (status,) = bucket.store.flow.buckets()
        return status.learned[0].per_minute

    assert refused_behind(0) == pytest.approx(54_000)
    assert refused_behind(8) == pytest.approx(54_000 * 1.05 * 0.9), "and the one of before"
    assert refused_behind(9) == pytest.approx(54_000 * 1.05 * 0.9), "that it has grown by a twentieth is taken back"
    bucket.now_ms += 120_000
    assert refused_behind(9) == pytest.approx(54_000 * 1.05 * 0.9 * 1.15 * 0.9), "never more than a tenth"


def test_refusals_in_a_row_double_the_wait_and_take_from_the_rate_once() -> None:
    bucket = Clocked(rpm=60_000)
    waits: list[int] = []
    for _ in range(5):
        bucket.settle(bucket.go("s"), "rate_limit", retry_after=0.5)
        waits.append(bucket.wait("s"))
        bucket.now_ms += waits[-1]
    assert waits == [500, 2_000, 4_000, 8_000, 8_000]
    (status,) = bucket.store.flow.buckets()
    assert status.learned[0].per_minute == 54_000
    bucket.settle(bucket.go("s"))
    bucket.settle(bucket.go("s"), "rate_limit", retry_after=0.5)
    assert bucket.wait("s") == 500, "an answer ends the row"
    (status,) = bucket.store.flow.buckets()
    assert status.learned[0].per_minute < 54_000


def test_requests_that_were_in_flight_at_a_refusal_are_not_the_next_of_a_row() -> None:
    bucket = Clocked(rpm=60_000)
    sent = [bucket.go(f"s{number}") for number in range(4)]
    bucket.now_ms += 1
    for each in sent:
        bucket.settle(each, "rate_limit", retry_after=0.5)
    assert bucket.wait("s0") == 500


def test_a_provider_that_asks_to_wait_for_hours_gets_a_probe_each_quarter() -> None:
    bucket = Clocked()
    bucket.settle(bucket.go("a"), "rate_limit", retry_after=7_200.0)
    assert bucket.wait("b") == 900_000
    bucket.now_ms += 900_000
    probe = bucket.go("b")
    assert probe.is_probe
    assert bucket.wait("c") == 900_000
    assert bucket.settle(probe) == Settled(closed=True)
    bucket.go("c")


def test_a_breaker_asks_again_after_a_tenth_of_the_time() -> None:
    bucket = Clocked()
    for number in range(5):
        bucket.settle(bucket.go(f"s{number}"), "outage")
    waits: list[int] = []
    for _ in range(80):
        waits.append(bucket.wait("b"))
        bucket.now_ms += waits[-1]
        bucket.settle(bucket.go("b"), "outage")
    assert waits[:3] == [5_000, 5_000, 5_000]
    assert waits[-1] == 600_000
    assert all(later <= earlier * 1.1 + 1 for earlier, later in itertools.pairwise(waits))


def test_an_outage_of_one_session_or_of_few_calls_opens_nothing() -> None:
    bucket = Clocked()
    told = [bucket.settle(bucket.go(f"s{number % 2}"), "outage") for number in range(9)]
    assert not any(each.opened for each in told), "two sessions"
    bucket.now_ms += 60_001
    for number in range(4):
        assert not bucket.settle(bucket.go(f"s{number}"), "outage").opened
    last = Settlement(bucket.go("s4"), ProviderFacts(kind="outage"), CallCounts("w", last_minute=11))
    assert not bucket.store.flow.settle(last).opened, "5 of 11 calls"


def test_a_memory_store_keeps_nothing_of_a_bucket_for_ever() -> None:
    bucket = Clocked(rpm=60)
    bucket.settle(bucket.go("a"), "outage")
    bucket.ask("b"), bucket.ask("c")
    bucket.now_ms += 3 * HOUR_MS
    assert not any("rate" in key for key in bucket.database.keys())  # noqa: SIM118 - it is no dict
    assert memory_store(Settings.build()).flow.view().is_empty
