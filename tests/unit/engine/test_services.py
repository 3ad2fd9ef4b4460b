"""Requests to the store that a step repeats: until Redis answers, its time is over, or another worker has the step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from celery_agents.worker.engine.leases import Interruption
from celery_agents.worker.engine.run import Run
from celery_agents.worker.engine.services import EngineServices
from celery_agents.worker.errors import StoreFull, StoreUnavailable
from celery_agents.worker.store import StepRef

TIME_TO_LIVE = 10.0


@dataclass
class Step:
    """A step with ten seconds to live, as the function sees it: its lease, its time, and what waits."""

    interruption: Interruption | None = None
    passed: float = 0.0
    lost_after: float = TIME_TO_LIVE + 1
    ref: StepRef = field(default_factory=lambda: StepRef("s", "e", 1))

    @property
    def lease(self) -> Step:
        return self

    @property
    def keeper(self) -> Step:
        return self

    def remaining(self, lease: Any) -> float:
        return max(0.0, TIME_TO_LIVE - self.passed)

    def sleep(self, seconds: float) -> None:
        self.passed += seconds
        if self.passed >= self.lost_after:
            self.interruption = Interruption.LOST

    def ask(self, request: Callable[[], str]) -> str:
        return EngineServices.ask_store(cast("EngineServices", self), cast("Run", self), request, "a test")

    def wait_for_redis(self, run: Run, error: StoreFull | StoreUnavailable, purpose: str) -> None:
        EngineServices.wait_for_redis(cast("EngineServices", self), run, error, purpose)


def failing(times: int, error: Exception) -> Callable[[], str]:
    """A request that fails so often, and is answered then."""
    left = [error] * times

    def request() -> str:
        if left:
            raise left.pop()
        return "answer"

    return request


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreFull("full")])
def test_a_request_is_made_again_until_redis_answers(error: Exception) -> None:
    assert Step().ask(failing(10, error)) == "answer"


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreFull("full")])
def test_it_is_made_until_the_time_of_the_step_is_over(error: Exception) -> None:
    step = Step()
    with pytest.raises(type(error)):
        step.ask(failing(1_000, error))
    assert step.passed == pytest.approx(TIME_TO_LIVE, abs=0.5)


def test_a_step_that_has_lost_its_claim_asks_no_longer() -> None:
    step = Step(lost_after=2.0)
    with pytest.raises(StoreUnavailable):
        step.ask(failing(1_000, StoreUnavailable("away")))
    assert step.passed == pytest.approx(2.0, abs=0.5)


def test_another_interruption_does_not_end_it() -> None:
    assert Step(interruption=Interruption.CANCEL).ask(failing(5, StoreUnavailable("away"))) == "answer"


def test_an_error_of_another_kind_is_not_repeated() -> None:
    step = Step()
    with pytest.raises(ValueError, match="broken"):
        step.ask(failing(1, ValueError("broken")))
    assert step.passed == 0.0
