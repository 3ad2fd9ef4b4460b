"""Pages of the client's listings: a loop over one goes on with those that follow."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from celery_agents import AgentClient, AsyncAgentClient
from celery_agents.config.settings import Settings
from celery_agents.worker.agent import Agent, AgentRegistry
from celery_agents.worker.concurrency.event_loop import EventLoopThread
from celery_agents.worker.concurrency.tool_threads import ToolThreads
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.engine import EngineServices, LeaseKeeper, StepRunner, Waiting
from celery_agents.worker.store.records import StepRef
from celery_agents.worker.tools import tool

pytestmark = [
    pytest.mark.filterwarnings("ignore:no worker has registered"),
    pytest.mark.leaves_keys("sessions wait for answers"),
]


@pytest.fixture
def client(redis_url: str) -> Iterator[AgentClient]:
    with AgentClient(settings=Settings.build(redis_url=redis_url)) as made:
        yield made


@tool(effect="pure", approval="always")
def pay() -> str:
    """Pay."""
    return "paid"


@contextmanager
def engine(client: AgentClient) -> Iterator[StepRunner]:
    """A worker's engine in this process."""
    loop, keeper = EventLoopThread(), LeaseKeeper(client.store, client.settings)
    services = EngineServices(
        store=client.store, settings=client.settings, keeper=keeper, loop=loop, threads=ToolThreads()
    )
    keeper.start()
    agent = Agent("a", driver=lambda _: [CallTool("pay")], tools=[pay])
    try:
        yield StepRunner(services, AgentRegistry([agent]), worker="here")
    finally:
        keeper.close()
        loop.close()


def test_a_loop_over_sessions_gets_those_of_all_pages(client: AgentClient) -> None:
    made = {client.submit("a", f"number {number}").session_id for number in range(7)}
    page = client.list(limit=3)
    assert len(page.items) == 3
    found = [header.session_id for header in page]
    assert len(found) == 7
    assert set(found) == made
    assert [header.session_id for header in client.list(limit=3, status="failed")] == []
    assert len(list(client.list(limit=100))) == 7


def test_on_asyncio_a_loop_gets_those_of_all_pages_without_blocking(client: AgentClient, redis_url: str) -> None:
    for number in range(7):
        client.submit("a", f"number {number}")

    async def collect() -> list[str]:
        async with AsyncAgentClient.of(client) as using:
            return [header.session_id async for header in await using.list(limit=2)]

    assert len(set(asyncio.run(collect()))) == 7


def test_a_loop_over_requests_gets_those_of_all_pages(client: AgentClient) -> None:
    jobs = [client.submit("a", f"number {number}") for number in range(5)]
    with engine(client) as runner:
        for job in jobs:
            assert isinstance(runner.run_step(StepRef(job.session_id, job.execution_id, 1)), Waiting)
    asked = {job.session_id for job in jobs}
    assert len(client.requests(limit=2).requests) == 2
    found = [each.summary.session_id for each in client.requests(limit=2)]
    assert len(found) == 5
    assert set(found) == asked
    assert [each.summary.session_id for each in client.requests(jobs[0].session_id, limit=1)] == [jobs[0].session_id]

    async def collect() -> set[str]:
        return {each.summary.session_id async for each in await AsyncAgentClient.of(client).requests(limit=2)}

    assert asyncio.run(collect()) == asked
