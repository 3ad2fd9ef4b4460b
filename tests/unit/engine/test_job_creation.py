"""A job whose creation is answered by an error, or interrupted: it may be there, and is known or looked for."""

from __future__ import annotations

import asyncio

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import InferenceRequest
from celery_agents.worker.drivers.protocol import CreatedJob, JobOrder
from celery_agents.worker.engine import RetryLater, provider_jobs
from celery_agents.worker.engine.leases import Interruption
from celery_agents.worker.state import ExecutionStatus

from support.engine import Bench
from support.later_driver import Job, LaterDriver, refused


def bench_of(driver: LaterDriver, window: str = "8h") -> Bench:
    return Bench(Agent("report", driver=driver, completion_window=window), driver_attempts=3)


def look(bench: Bench, session: str, seconds: float = 601.0) -> None:
    """Let the time of the next look come."""
    bench.clock.go_on(seconds)
    bench.step(session)


def past_jobs(bench: Bench) -> list[str]:
    """Jobs that are to be cancelled."""
    found = bench.store.housekeeping.past_jobs(bench.store.context.shards, {"report"})
    return [each.entry.id for each in found if each.is_open]


@pytest.mark.parametrize("status", [500, 502, 503, 504, 529])
def test_a_batch_behind_an_error_of_its_provider_is_looked_for(status: int) -> None:
    """A gateway may give up on a request that is carried out behind it."""
    driver, errors = LaterDriver(is_listed=True), [refused(status, transient=True)]
    bench = bench_of(driver, "24h")
    session = bench.submit()

    def fail() -> None:
        if errors:
            raise errors.pop()

    driver.created = fail
    assert isinstance(bench.step(session), RetryLater)
    driver.finish("found")
    look(bench, session)
    assert bench.record(session).final_response == "found"
    assert len(driver.jobs) == 1
    bench.close()


def test_a_batch_that_is_not_there_behind_an_error_of_its_provider_is_created_within_minutes() -> None:
    driver, errors = LaterDriver(is_listed=True), [refused(503, transient=True)]
    bench = bench_of(driver, "24h")
    session = bench.submit()

    def fail() -> None:
        if errors:
            raise errors.pop()

    driver.creating = fail
    assert isinstance(bench.step(session), RetryLater)
    assert driver.jobs == []
    look(bench, session, 90)
    assert len(driver.jobs) == 1
    bench.close()


class AsyncLater(LaterDriver):
    """A driver whose verbs are coroutines: an interruption cancels them."""

    is_async = True
    seconds = 0.05

    async def create_job(self, request: InferenceRequest, order: JobOrder) -> CreatedJob:  # type: ignore[override]
        self.creating()
        self.jobs.append(Job(order, len(request.messages)))
        await asyncio.to_thread(self.created)
        await asyncio.sleep(self.seconds)
        return self._job(len(self.jobs) - 1)

    async def collect_job(self, request: InferenceRequest, handle: str) -> bytes | None:  # type: ignore[override]
        return super().collect_job(request, handle)


@pytest.mark.parametrize("by", ["stop", "message", "drain", "deadline"])
def test_a_job_that_is_being_created_when_its_step_has_to_end_is_known(by: str) -> None:
    driver = AsyncLater()
    bench = bench_of(driver)
    session = bench.submit()

    def interrupt() -> None:
        if by == "stop":
            bench.stop(session)
        elif by == "message":
            bench.send(session, "wait", when="interrupt")
        elif by == "drain":
            bench.keeper.interrupt_all(Interruption.DRAIN)
        else:
            bench.clock.go_on(901)
        bench.keeper.tick()

    driver.created = interrupt
    bench.step(session)
    (entry,) = bench.store.housekeeping.provider_jobs()
    assert entry.id == "job-0"
    driver.created = lambda: None
    bench.run(session)
    assert past_jobs(bench) == (["job-0"] if by in ("stop", "message") else [])
    if by == "stop":
        assert bench.record(session).status is ExecutionStatus.STOPPED
    elif by != "message":
        driver.finish("done")
        look(bench, session)
        assert bench.record(session).final_response == "done"
        assert len(driver.jobs) == 1
    bench.close()


def test_a_creation_that_does_not_end_delays_a_stop_by_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_jobs, "_LAST_SECONDS", 0.1)
    driver = AsyncLater()
    driver.seconds = 60.0
    bench = bench_of(driver)
    session = bench.submit()

    def stop() -> None:
        bench.stop(session)
        bench.keeper.tick()

    driver.created = stop
    bench.step(session)
    assert bench.record(session).status is ExecutionStatus.STOPPED
    bench.close()
