"""What limits do for a fleet, on virtual time: 200 jobs take hardly longer than the provider's rate allows."""

from __future__ import annotations

import itertools
from typing import Any, Final

import pytest

from celery_agents.flow import ProviderLimit

from support.fleet import Fleet, StubProvider

FIVE: Final = ProviderLimit("m", rpm=300)
IDEAL: Final = (200 - 5) / 5
"""Seconds in which a provider of 5 a second, and 5 at once, answers 200 requests."""
IN_FLIGHT: Final = 32


@pytest.mark.parametrize("latency", [0.2, 2.0])
def test_a_limit_that_is_set_is_used_up_and_never_broken(latency: float) -> None:
    fleet = Fleet(StubProvider(5, 1), limit=FIVE, latency=latency)
    assert fleet.run() <= 1.02 * IDEAL + latency * 1.2
    assert fleet.provider.refused == 0
    assert fleet.asked < 600, "at first, when the step comes back, and when the appointment has come"


@pytest.mark.parametrize("how", [{"retry": "seconds"}, {"retry": None}, {"headers": True}], ids=str)
def test_an_unknown_limit_is_learned_from_the_first_refusals(how: dict[str, Any]) -> None:
    fleet = Fleet(StubProvider(5, 1, **how))
    assert fleet.run() <= 1.15 * IDEAL
    assert fleet.provider.refused <= IN_FLIGHT + 5, "all but five of those in flight, and hardly one afterwards"


def test_a_provider_that_asks_for_too_short_a_wait_teaches_a_rate_that_is_corrected() -> None:
    fleet = Fleet(StubProvider(5, 1, retry="ms"))
    assert fleet.run() <= 1.25 * IDEAL
    assert fleet.provider.refused <= IN_FLIGHT + 10


@pytest.mark.parametrize(
    ("share", "seconds"),
    [(0.01, 60), *(pytest.param(*each, marks=pytest.mark.long) for each in ((0.02, 75), (0.05, 130)))],
)
def test_refusals_that_come_whatever_the_rate_do_not_sink_it(share: float, seconds: float) -> None:
    fleet = Fleet(StubProvider(10_000, 1, at_random=share), jobs=2_000)
    assert fleet.run() <= seconds, "each takes the wait that it asks for, and the time until 32 are in flight again"
    quarter = len(fleet.done) // 4
    first, last = fleet.done[quarter] - fleet.done[0], fleet.done[-1] - fleet.done[-quarter]
    assert last <= 1.5 * first, "the end goes as fast as the beginning"


@pytest.mark.timeout(400)  # half a minute of computing by itself, and several times that beside other tests
@pytest.mark.parametrize(
    ("a_minute", "refused"),
    [(60, 0.3), *(pytest.param(many, 0.05, marks=pytest.mark.long) for many in (300, 1_000))],
)
def test_a_provider_that_counts_by_the_clock_and_does_not_say_until_when_is_used_up(
    a_minute: int, refused: float
) -> None:
    fleet = Fleet(StubProvider(a_minute, 60, retry=None, by_clock=True), jobs=4 * a_minute)
    assert fleet.run() <= 4 * 60
    assert fleet.provider.refused <= IN_FLIGHT + refused * 4 * a_minute


@pytest.mark.parametrize("limit", [FIVE, None], ids=["set", "unknown"])
def test_refusals_beside_those_of_a_limit_take_little_of_its_rate(limit: ProviderLimit | None) -> None:
    fleet = Fleet(StubProvider(5, 1, at_random=0.02), limit=limit, jobs=1_000)
    assert fleet.run() <= 1.15 * (1_000 - 5) / 5
    assert fleet.provider.refused <= IN_FLIGHT + 1_000 / 20


@pytest.mark.parametrize("limit", [FIVE, None], ids=["set", "unknown"])
@pytest.mark.parametrize("at", [0.5, 1.2, 2.2, 3.7, 7.9])
def test_workers_that_are_killed_take_little_of_the_rate_with_them(at: float, limit: ProviderLimit | None) -> None:
    fleet = Fleet(StubProvider(5, 1), limit=limit)
    fleet.at(at, fleet.kill, 0)
    fleet.at(at + 5, fleet.kill, 1)
    assert fleet.run() <= 1.15 * IDEAL


def test_a_limit_that_is_changed_in_the_middle_holds_at_once() -> None:
    fleet = Fleet(StubProvider(5, 1), limit=FIVE)
    fleet.at(8, fleet.set_limit, ProviderLimit("m", rpm=60))
    fleet.at(16, fleet.set_limit, FIVE)
    assert fleet.run() <= 1.05 * (IDEAL + 8 * 4 / 5)
    assert fleet.provider.refused == 0


def test_a_larger_fleet_and_a_faster_provider_do_as_well() -> None:
    fleet = Fleet(StubProvider(50, 1), jobs=800, workers=4, slots=50)
    assert fleet.run() <= 1.15 * (800 - 50) / 50 + 1


@pytest.mark.parametrize("seconds", [10, 60, 600])
def test_after_an_outage_the_provider_is_asked_again_within_a_tenth_of_it(seconds: int) -> None:
    fleet = Fleet(StubProvider(1000, 1, away=(0, seconds)))
    assert fleet.run() <= seconds + max(6, seconds / 9) + 2
    first = [at for at in fleet.provider.outages if at < 2]
    probes = [at for at in fleet.provider.outages if at >= 2]
    assert len(first) <= 2 * IN_FLIGHT, "those that were in flight when it was noticed, and their next try"
    assert all(later - earlier >= 4.9 for earlier, later in itertools.pairwise(probes)), "one probe at a time"
