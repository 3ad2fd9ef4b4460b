"""Answers that are begun in the background of their provider: who runs the step again attaches to the same one."""

from __future__ import annotations

import math

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.engine import Done, RetryLater
from celery_agents.worker.errors import JobEnded
from celery_agents.worker.state import ExecutionBudget, StopReason

from support.engine import Bench, WorkerDied
from support.later_driver import LOST_REPLY, LaterDriver

HOUR = 3600.0


@pytest.fixture
def driver() -> LaterDriver:
    return LaterDriver()


def background_bench(driver: LaterDriver) -> Bench:
    return Bench(Agent("report", driver=driver, background=True), driver_attempts=3)


def test_whoever_runs_the_step_again_attaches_to_the_same_answer(driver: LaterDriver) -> None:
    bench = background_bench(driver)
    session = bench.submit()
    driver.answers = ["once", "twice"]

    def die() -> None:
        raise WorkerDied

    driver.created = die
    bench.worker_died(session)
    driver.created = lambda: None
    assert isinstance(bench.step(session), Done)
    assert bench.record(session).final_response == "once"
    assert len(driver.jobs) == 1
    assert math.isclose(bench.record(session).cost or 0.0, 0.1)
    (left,) = bench.store.housekeeping.past_jobs(bench.store.context.shards, {"report"})
    assert not left.is_open
    bench.close()


def test_a_stream_that_breaks_is_attached_to_in_the_same_step(driver: LaterDriver) -> None:
    bench = background_bench(driver)
    session = bench.submit()
    driver.answers = ["whole"]
    broken = [LOST_REPLY]

    def lose() -> None:
        if broken:
            raise broken.pop()

    driver.created = lose
    assert isinstance(bench.step(session), Done)
    assert bench.record(session).final_response == "whole"
    assert (len(driver.jobs), driver.asked_at_once) == (1, 2)
    bench.close()


def test_an_answer_that_its_provider_has_forgotten_is_asked_for_again(driver: LaterDriver) -> None:
    bench = background_bench(driver)
    session = bench.submit()
    driver.answers = [JobEnded("forgotten", "the provider does not know the answer"), "second"]
    assert isinstance(bench.step(session), Done)
    assert bench.record(session).final_response == "second"
    assert len(driver.jobs) == 2
    bench.close()


def test_the_time_of_an_answer_in_the_background_counts(driver: LaterDriver) -> None:
    bench = background_bench(driver)
    session = bench.submit(budget=ExecutionBudget(max_seconds=30))
    driver.answers = ["late"]

    def die() -> None:
        raise WorkerDied

    driver.created = die
    bench.worker_died(session)
    bench.clock.go_on(31)
    bench.run(session)
    assert bench.record(session).stop_reason is StopReason.TIME_LIMIT_REACHED
    bench.close()


def outlasting(bench: Bench, driver: LaterDriver, seconds: float) -> None:
    """Let each request of the driver take so long, and end without an answer."""

    def hang() -> None:
        bench.clock.go_on(seconds)
        raise LOST_REPLY

    driver.created = driver.attached = hang


def test_an_answer_that_takes_longer_than_its_step_is_attached_to_by_the_next_one(driver: LaterDriver) -> None:
    bench = background_bench(driver)
    session = bench.submit()
    driver.answers = ["late"]
    outlasting(bench, driver, 901)
    for _ in range(10):  # more than a step has attempts
        outcome = bench.step(session)
        assert isinstance(outcome, RetryLater)
        assert outcome.reason == "the answer takes longer than the step may"
    driver.attached = lambda: None
    assert isinstance(bench.step(session), Done)
    assert bench.record(session).final_response == "late"
    assert len(driver.jobs) == 1
    assert math.isclose(bench.record(session).cost or 0.0, 0.1)
    bench.close()


def test_an_answer_in_the_background_that_never_comes_fails_in_the_end(driver: LaterDriver) -> None:
    bench = background_bench(driver)
    session = bench.submit()
    driver.answers = ["never"]
    outlasting(bench, driver, 8 * HOUR)
    assert [type(bench.step(session)) for _ in range(3)] == [RetryLater, RetryLater, Done]
    record = bench.record(session)
    assert (record.status, record.stop_reason) == ("failed", "time_limit")
    assert len(driver.jobs) == 1
    bench.close()
