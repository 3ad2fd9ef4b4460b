"""A commit claims the following step in a burst and for a sticky session, unless the worker must become free."""

from __future__ import annotations

import pytest

from celery_agents.config.settings import Settings
from celery_agents.worker.engine.sticky import KeepClaimPolicy, StickySessions
from celery_agents.worker.store import StepRef

from support.engine import StillClock


class Delivery:
    """A `StepDelivery` that takes everything."""

    def deliver(self, ref: StepRef, now_ms: int) -> bool:
        return True

    def has_room(self) -> bool:
        return True


def policy(
    clock: StillClock, *, is_sticky: bool = False, must_become_free: bool = False, steps: int = 1
) -> KeepClaimPolicy:
    settings = Settings.build(steps_per_task=steps, burst_milliseconds=2000)
    sticky = StickySessions(settings, clock.monotonic)
    if is_sticky:
        sticky.enable(Delivery())
    return KeepClaimPolicy(settings, sticky, monotonic=clock.monotonic, must_become_free=lambda: must_become_free)


def test_a_burst_lasts_for_its_steps() -> None:
    burst = policy(StillClock(), steps=3)
    kept: list[bool] = []
    for _ in range(3):
        burst.count_step()
        kept.append(burst.keeps_claim(0.0))
    assert kept == [True, True, False]


def test_a_burst_ends_after_its_time() -> None:
    clock = StillClock()
    burst = policy(clock, steps=100)
    clock.go_on(1.9)
    assert burst.is_burst()
    clock.go_on(0.1)
    assert not burst.keeps_claim(0.0)


@pytest.mark.parametrize(("seconds", "is_kept"), [(0.9, True), (1.0, False)])
def test_a_sticky_session_is_kept_until_its_time_is_over(seconds: float, is_kept: bool) -> None:
    clock = StillClock()
    kept = policy(clock, is_sticky=True)
    kept.count_step()
    clock.go_on(seconds)
    assert kept.keeps_claim(1.0) is is_kept


def test_a_worker_that_must_become_free_keeps_no_claim() -> None:
    assert not policy(StillClock(), is_sticky=True, must_become_free=True, steps=100).keeps_claim(1.0)
