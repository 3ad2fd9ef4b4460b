"""The asyncio client: the same verbs, and an event loop that goes on meanwhile."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable

import pytest
import redis

import celery_agents
from celery_agents import AgentClient, AsyncAgentClient, ExecutionBudget
from celery_agents.config.settings import Settings
from celery_agents.tasks.client.async_client import AsyncConcurrencyLimits, AsyncProviderLimits, AsyncSchedules
from celery_agents.tasks.client.fleet_values import ConcurrencyLimits, ProviderLimits
from celery_agents.tasks.client.schedules import Schedules
from celery_agents.worker.errors import InvalidInput, SessionExpired, SessionNotFound
from celery_agents.worker.state import LLMConfig

from support.agents import call, plan
from support.ledger import Ledger
from support.worker_process import WorkerProcess

pytestmark = pytest.mark.filterwarnings("ignore:no worker has registered")

PARTS = {"limits", "concurrency", "caps", "shares", "schedules"}
NOT_VERBS = {*PARTS, "store", "session_store", "settings", "stream_batches", "wait_for_agent"}


def test_every_verb_of_the_client_is_there_with_the_same_arguments() -> None:
    for of, mine in (
        (AgentClient, AsyncAgentClient), (ProviderLimits, AsyncProviderLimits),
        (ConcurrencyLimits, AsyncConcurrencyLimits), (Schedules, AsyncSchedules),
    ):  # fmt: skip
        for name, verb in inspect.getmembers(of):
            if name.startswith("_") or name in NOT_VERBS:
                continue
            ours = inspect.signature(getattr(mine, name)).parameters
            assert {each: p.default for each, p in ours.items()} == {
                each: p.default for each, p in inspect.signature(verb).parameters.items()
            }, name


def test_it_is_loaded_on_first_use_from_the_package() -> None:
    assert celery_agents.AsyncAgentClient is AsyncAgentClient
    assert "AsyncAgentClient" in dir(celery_agents)


@pytest.mark.timeout(150)
def test_a_service_submits_follows_talks_and_reads(
    redis_url: str, ledger: Ledger, new_worker: Callable[..., WorkerProcess]
) -> None:
    new_worker(env=ledger.env)

    async def service() -> None:
        client = AsyncAgentClient(settings=Settings.build(redis_url=redis_url))
        await client.wait_for_agent("planned")
        assert "planned" in await client.agents()
        work = plan([call("pure", work="a")], [call("keyed", work="b")], answer="the answer")
        job = await client.submit("planned", work, idempotency_key="k", metadata={"a": 1})
        again = await client.submit("planned", work, idempotency_key="k", metadata={"a": 1})
        assert await again.execution_id() == await job.execution_id()

        events = [event async for event in job.events(timeout=60)]
        assert [event.type for event in events][-1] == "execution_completed"
        assert [event.type for event in events].count("step_committed") == 3
        later = [event async for event in job.events(events[2].id, timeout=60)]
        assert later == events[3:]
        result = await job.result(timeout=10)
        assert (result.status, result.final_response) == ("completed", "the answer")

        await client.write_metadata(job.session_id, "b", 2)
        await client.change_system_prompt(job.session_id, "be brief")
        await client.change_model(job.session_id, LLMConfig(model="x:y"))
        stored = await client.show(job.session_id)
        assert dict(stored.state.metadata) == {"a": 1, "b": 2}
        assert (await client.header(job.session_id)).status == "completed"
        assert [header.session_id for header in (await client.list(limit=5)).items] == [job.session_id]

        budget = ExecutionBudget(max_steps=1)
        limited = await client.send_message(job.session_id, work, budget=budget)
        assert (await limited.result(timeout=60)).stop_reason == "steps_limit"
        retried = await client.retry(job.session_id, budget=ExecutionBudget(max_steps=9))
        assert (await retried.result(timeout=60)).status == "completed"
        assert [job async for job in client.retry_failed(dry_run=True)] == []
        with pytest.raises(SessionNotFound):
            await client.job("none")
        with pytest.raises(InvalidInput):
            job.events("yesterday")

    asyncio.run(service())


def test_the_event_loop_goes_on_while_a_hundred_jobs_are_waited_for(redis_url: str) -> None:
    async def service() -> float:
        client = AsyncAgentClient.of(AgentClient(settings=Settings.build(redis_url=redis_url)))
        jobs = [await client.submit("nobody", f"job {number}") for number in range(100)]

        async def follow(number: int) -> str:
            return [event.type async for event in jobs[number].events(timeout=60)][-1]

        waiting = [asyncio.create_task(follow(number)) for number in range(100)]
        longest, last = 0.0, time.monotonic()
        for _ in range(50):
            await asyncio.sleep(0.01)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        assert not any(task.done() for task in waiting)
        await asyncio.gather(*(client.stop(job.session_id) for job in jobs))
        assert set(await asyncio.gather(*waiting)) == {"execution_stopped"}
        return longest

    assert asyncio.run(service()) < 1.0


def test_a_watcher_that_is_cancelled_does_not_wait_for_redis(redis_url: str) -> None:
    async def service() -> float:
        client = AsyncAgentClient.of(AgentClient(settings=Settings.build(redis_url=redis_url)))
        job = await client.submit("nobody", "hello")

        async def follow() -> None:
            async for _ in job.events():
                pass

        task = asyncio.create_task(follow())
        await asyncio.sleep(0.3)
        began = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        took = time.monotonic() - began
        with pytest.raises(TimeoutError):
            await job.result(timeout=0.1)
        await client.stop(job.session_id)
        return took

    assert asyncio.run(service()) < 1.0


def test_a_client_is_closed_at_the_end_of_its_block_and_may_be_used_again(redis_url: str) -> None:
    async def service() -> None:
        async with AsyncAgentClient.of(AgentClient(settings=Settings.build(redis_url=redis_url))) as client:
            job = await client.submit("nobody", "hello")
        assert (await client.header(job.session_id)).status == "pending"
        await client.close()

    asyncio.run(service())


def test_waiting_for_a_job_whose_session_has_expired_says_so(redis_url: str) -> None:
    settings = Settings.build(redis_url=redis_url)
    with AgentClient(settings=settings) as client:
        job = client.submit("nobody", "hello")
        with redis.Redis.from_url(redis_url) as raw:
            raw.delete(*raw.keys(f"*{job.session_id}*"))
        with pytest.raises(SessionExpired, match="its retention is over"):
            job.result(timeout=5)
        with pytest.raises(SessionNotFound):  # a stranger cannot tell that it ever was there
            client.job(job.session_id)
