"""Jobs that are given up: whose answers never fit, or whose provider stays away."""

from __future__ import annotations

import math

from celery_agents.worker.agent import Agent
from celery_agents.worker.engine import RetryLater
from celery_agents.worker.errors import UnusableAnswer
from celery_agents.worker.state import ExecutionStatus, InferenceResponse, StopReason

from support.engine import Bench
from support.later_driver import LOST_REPLY, LaterDriver

HOUR = 3600.0


def bench_of(driver: LaterDriver) -> Bench:
    return Bench(Agent("report", driver=driver, completion_window="8h"), driver_attempts=3)


def away() -> None:
    """A look at a job whose provider cannot be reached."""
    raise LOST_REPLY


def test_no_more_answers_are_paid_that_cannot_be_used_than_are_asked_for_at_once() -> None:
    driver = LaterDriver()
    bench = bench_of(driver)
    session = bench.submit()

    def parse(raw: bytes) -> InferenceResponse:
        raise UnusableAnswer("no shape", correction="say it right").paid(None, 0.06, "wrong")

    driver.parse = parse  # type: ignore[method-assign]
    outcome = bench.step(session)
    while isinstance(outcome, RetryLater) and len(driver.jobs) < 20:
        driver.finish("wrong")
        bench.clock.go_on(601)
        outcome = bench.step(session)
    result = bench.record(session)
    assert (result.status, len(driver.jobs)) == (ExecutionStatus.FAILED, bench.settings.driver_attempts)
    assert result.stop_reason is StopReason.RETRY_LIMIT_REACHED
    assert math.isclose(result.cost or 0, 0.06 * len(driver.jobs))
    bench.close()


def test_a_job_whose_provider_is_away_for_good_is_given_up_behind_its_window() -> None:
    driver = LaterDriver()
    bench = bench_of(driver)
    session = bench.submit()
    bench.step(session)

    driver.looking = away
    bench.clock.go_on(8 * HOUR)
    outcome = bench.step(session)
    assert isinstance(outcome, RetryLater)
    assert "the connection broke" in outcome.reason
    bench.clock.go_on(HOUR + 60)
    first_late = bench.clock.now_ms()
    while len(driver.jobs) == 1 and isinstance(outcome := bench.step(session), RetryLater):
        bench.clock.go_on(outcome.seconds + 0.1)
    assert len(driver.jobs) == 2
    assert HOUR * 1000 <= bench.clock.now_ms() - first_late <= 2 * HOUR * 1000
    bench.close()


def test_a_look_that_fails_long_behind_the_window_loses_no_answer() -> None:
    driver = LaterDriver()
    bench = bench_of(driver)
    session = bench.submit()
    bench.step(session)
    driver.finish("done")

    driver.looking = away
    bench.clock.go_on(48 * HOUR)  # its session was held, or there was no worker
    outcome = bench.step(session)
    assert isinstance(outcome, RetryLater)
    driver.looking = lambda: None
    bench.clock.go_on(outcome.seconds + 0.1)
    bench.step(session)
    assert (bench.record(session).final_response, len(driver.jobs)) == ("done", 1)
    bench.close()
