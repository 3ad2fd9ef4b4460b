"""Sessions that stay with their worker, in real workers: fewer messages, the same tasks, and nobody starves."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_agents import AgentClient
from celery_agents.tasks.app import create_app
from celery_agents.tasks.names import STEP

from support.wait import wait_until
from support.worker_process import WorkerProcess

STEPS = 60
AGENT = f'''
import asyncio

from celery_agents import Agent, tool
from celery_agents.testing import CallTool, script


@tool(effect="keyed")
async def work() -> str:
    """Take a moment."""
    await asyncio.sleep(0.02)
    return "worked"


walker = Agent("walker", driver=script(*[CallTool("work")] * {STEPS - 1}, "arrived"), tools=[work])
'''


@pytest.fixture
def worker(new_worker: Callable[..., WorkerProcess], tmp_path: Path) -> Callable[..., WorkerProcess]:
    (tmp_path / "walkers.py").write_text(AGENT, encoding="utf-8")

    def start(name: str = "one", **env: str) -> WorkerProcess:
        found = {"PYTHONPATH": str(tmp_path), "CELERY_AGENTS_CONCURRENCY": "40"}
        return new_worker(agents="walkers", env=found | env, arguments=("--name", f"{name}@here"))

    return start


@pytest.fixture
def client(redis_url: str) -> AgentClient:
    return AgentClient(redis_url)


@pytest.fixture
def control(client: AgentClient) -> Any:
    return create_app(client.settings).control


def tasks_of(control: Any, workers: int = 1) -> dict[str, int]:
    """Steps that were tasks of each worker."""
    stats = control.inspect(timeout=5, limit=workers).stats() or {}
    return {name.partition("@")[0]: told["total"].get(STEP, 0) for name, told in stats.items()}


def progress(client: AgentClient, jobs: list[Any]) -> list[int]:
    """Steps that each job has made."""
    return [client.show(job.session_id).state.step_count for job in jobs]


def begun(client: AgentClient, jobs: list[Any], steps: int = 2) -> None:
    wait_until(lambda: min(progress(client, jobs)) > steps, f"each has made {steps} steps", 20)


def completed(jobs: list[Any]) -> None:
    records = [job.result(timeout=60) for job in jobs]
    assert {(record.status, record.step_count) for record in records} == {("completed", STEPS)}


def test_each_step_is_a_task_and_few_messages_travel(
    worker: Callable[..., WorkerProcess], client: AgentClient, control: Any, redis_client: redis.Redis
) -> None:
    worker()
    redis_client.config_resetstat()
    completed([client.submit("walker", "go")])
    wait_until(lambda: tasks_of(control) == {"one": STEPS}, "each step was a task", 10)
    calls: Any = redis_client.info("commandstats")
    assert calls["cmdstat_lpush"]["calls"] < STEPS / 3


def test_switched_off_every_message_travels(
    worker: Callable[..., WorkerProcess], client: AgentClient, redis_client: redis.Redis
) -> None:
    worker(CELERY_AGENTS_STICKY_SECONDS="0")
    redis_client.config_resetstat()
    completed([client.submit("walker", "go")])
    calls: Any = redis_client.info("commandstats")
    assert calls["cmdstat_lpush"]["calls"] >= STEPS


def test_a_worker_that_comes_later_gets_its_share(
    worker: Callable[..., WorkerProcess], client: AgentClient, control: Any
) -> None:
    worker("one")
    jobs = [client.submit("walker", "go") for _ in range(12)]
    begun(client, jobs)
    worker("two")
    later = [client.submit("walker", "go") for _ in range(12)]
    completed([*jobs, *later])
    shares = tasks_of(control, 2)
    assert shares["two"] > 24 * STEPS / 10, shares


def test_a_worker_that_is_told_to_end_hands_its_sessions_over_at_once(
    worker: Callable[..., WorkerProcess], client: AgentClient
) -> None:
    first = worker("one")
    worker("two")
    jobs = [client.submit("walker", "go") for _ in range(6)]
    begun(client, jobs)
    assert first.stop() == 0
    before, made = time.monotonic(), progress(client, jobs)
    wait_until(
        lambda: all(now > then for now, then in zip(progress(client, jobs), made, strict=True)),
        "the other one carries them all on", 10,
    )  # fmt: skip
    assert time.monotonic() - before < client.settings.lease_seconds / 2, "their leases did not have to end"
    completed(jobs)


def test_a_worker_that_may_consume_no_more_keeps_nothing(
    worker: Callable[..., WorkerProcess], client: AgentClient, control: Any
) -> None:
    worker("one")
    worker("two")
    jobs = [client.submit("walker", "go") for _ in range(6)]
    begun(client, jobs)
    control.cancel_consumer(client.settings.queue, destination=["one@here"], reply=True, limit=1)
    completed(jobs)
    before = tasks_of(control, 2)
    completed([client.submit("walker", "go") for _ in range(3)])
    after = tasks_of(control, 2)
    assert (after["one"] - before["one"], after["two"] - before["two"]) == (0, 3 * STEPS)


def test_a_rate_limit_of_the_step_slows_it_down_and_loses_nothing(
    worker: Callable[..., WorkerProcess], client: AgentClient, control: Any
) -> None:
    worker("one")
    jobs = [client.submit("walker", "go")]
    begun(client, jobs)
    control.rate_limit(STEP, "10/s", reply=True, limit=1)
    (done,) = progress(client, jobs)
    time.sleep(2.0)
    (slowed,) = progress(client, jobs)
    assert 0 < slowed - done < 30
    control.rate_limit(STEP, "0", reply=True, limit=1)
    completed(jobs)


def test_a_revoked_step_that_was_kept_stops_its_session(
    worker: Callable[..., WorkerProcess], client: AgentClient, control: Any
) -> None:
    worker("one")
    job = client.submit("walker", "go", delay=timedelta(seconds=2))  # the revoke is there before the steps
    control.revoke(f"{job.execution_id}.{STEPS // 2}", reply=True, limit=1)
    assert job.result(timeout=30).status == "stopped"
    assert progress(client, [job])[0] < STEPS
