"""The pools a worker may have, and what steps that share a thread must not do to each other."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from celery_agents import AgentClient
from celery_agents.tasks.app import create_app

from support.task_events import task_events
from support.wait import wait_until
from support.worker_process import WorkerProcess

IMPLEMENTATIONS = {"greenlets": "consumer.pool:", "threads": "thread:", "prefork": "prefork:", "solo": "solo:"}
AGENTS = '''
import asyncio
import threading
import time
from pathlib import Path

from celery_agents import Agent, Hook, HookPoint, ToolContext, tool
from celery_agents.testing import CallTool, script
from celery_agents.worker.drivers import FunctionDriver

HERE = Path(__file__).parent


@tool(effect="keyed")
def plain(seconds: float) -> str:
    """Block a thread."""
    time.sleep(seconds)
    return threading.current_thread().name


@tool(effect="keyed")
async def nimble(seconds: float) -> str:
    """Wait on the loop."""
    await asyncio.sleep(seconds)
    return threading.current_thread().name


@tool(effect="keyed", timeout=30)
async def rude() -> str:
    """Block the loop for ever, the first time."""
    with (HERE / "calls").open("a") as calls:
        calls.write("called\\n")
    if not (HERE / "was-rude").exists():
        (HERE / "was-rude").touch()
        time.sleep(3600)
    return "polite"


def slow_hook(context):
    time.sleep(1.0)


def slow_choice(state, prompt):
    time.sleep(1.0)
    return prompt


def slow_join(present, brought):
    time.sleep(1.0)
    return brought


def find(context):
    return context.changed(state=context.state.with_metadata("found", 1, now=context.state.updated_at))


@tool(effect="pure")
async def ask(ctx: ToolContext) -> str:
    """Ask the model, in a thread that waits for the loop."""
    return (await ctx.ask_model("why", "Why?")).content


async def look_up(state):
    """Answer as a driver does whose connection is new: it looks its provider up in a thread of the loop."""
    await asyncio.get_running_loop().getaddrinfo("localhost", 80)
    await asyncio.sleep(0.3)
    last = state.messages[-1]
    return CallTool("ask") if last.content == "go" else "done" if last.role == "tool" else "because"


mixed = Agent(
    "mixed", driver=script(CallTool("plain", seconds=0.01), CallTool("nimble", seconds=0.01), "done"),
    tools=[plain, nimble],
)
patient = Agent("patient", driver=script(CallTool("plain", seconds=1.0), "done"), tools=[plain])
hooked = Agent("hooked", driver=script("done"), hooks=[Hook(HookPoint.BEFORE_INFERENCE, slow_hook)])
finder = Agent("finder", driver=script("done"), hooks=[Hook(HookPoint.AFTER_STEP, find)])
joining = Agent(
    "joining", driver=script(CallTool("find", prompt="go"), "done"),
    tools=[finder.as_tool("find", context=slow_choice, merge={"found": slow_join})],
)
asking = Agent("asking", driver=FunctionDriver(look_up), tools=[ask])
blocking = Agent("blocking", driver=script(CallTool("rude"), "done"), tools=[rude])
'''


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "mixed_agents.py").write_text(AGENTS, encoding="utf-8")
    return {"PYTHONPATH": str(tmp_path), "CELERY_AGENTS_TASK_EVENTS": "false"}


@pytest.fixture
def worker(new_worker: Callable[..., WorkerProcess], environment: dict[str, str]) -> Callable[..., WorkerProcess]:
    def start(**more: str) -> WorkerProcess:
        return new_worker(agents="mixed_agents", env=environment | more)

    return start


@pytest.mark.parametrize("pool", ["greenlets", "threads", "prefork", "solo"])
def test_every_pool_carries_plain_and_async_steps_and_drains(
    worker: Callable[..., WorkerProcess], redis_url: str, pool: str
) -> None:
    first = worker(CELERY_AGENTS_POOL=pool, CELERY_AGENTS_CONCURRENCY="4")
    client = AgentClient(redis_url)
    jobs = [client.submit("mixed", "go") for _ in range(12)]
    assert [job.result(timeout=60).final_response for job in jobs] == ["done"] * 12
    stats = create_app(client.settings).control.inspect(timeout=5, limit=1).stats()
    (told,) = (stats or {}).values()
    assert IMPLEMENTATIONS[pool] in told["pool"].get("implementation", ""), told["pool"]
    assert first.stop() == 0


def test_the_events_of_a_step_that_ends_while_its_worker_drains_are_sent(
    worker: Callable[..., WorkerProcess], redis_url: str
) -> None:
    first = worker(CELERY_AGENTS_TASK_EVENTS="true")
    client = AgentClient(redis_url)
    with task_events(redis_url, "task-started") as started, task_events(redis_url, "task-succeeded") as succeeded:
        job = client.submit("patient", "go")
        step = f"{job.execution_id}.1"
        wait_until(lambda: step in started, "the step has begun", 10, details=first.tail)
        assert first.stop() == 0
        wait_until(lambda: step in succeeded, "its end was told", 5, details=first.tail)


def client_of_forty_slots(worker: Callable[..., WorkerProcess], redis_url: str) -> AgentClient:
    """The client of a worker that has run its first step already."""
    worker(CELERY_AGENTS_CONCURRENCY="40")
    client = AgentClient(redis_url)
    client.submit("mixed", "warm up").result(timeout=20)
    return client


def test_plain_functions_and_hooks_that_block_keep_no_other_step_waiting(
    worker: Callable[..., WorkerProcess], redis_url: str
) -> None:
    client = client_of_forty_slots(worker, redis_url)
    before = time.monotonic()
    jobs = [client.submit(name, "go") for name in ("patient", "hooked") for _ in range(15)]
    for job in jobs:
        assert job.result(timeout=30).status == "completed"
    assert time.monotonic() - before < 10, "30 seconds of blocking were waited for one after the other"


def test_rules_of_children_that_block_keep_no_other_step_waiting(
    worker: Callable[..., WorkerProcess], redis_url: str
) -> None:
    client = client_of_forty_slots(worker, redis_url)
    before = time.monotonic()
    jobs = [client.submit("joining", "go") for _ in range(15)]
    for job in jobs:
        assert job.result(timeout=60).status == "completed"
        assert client.show(job.session_id).state.metadata["found"] == 1
    assert time.monotonic() - before < 15, "30 seconds of blocking were waited for one after the other"


@pytest.mark.parametrize("pool", ["greenlets", "threads"])
def test_tools_that_ask_their_model_side_by_side_leave_the_loop_the_threads_that_it_needs(
    worker: Callable[..., WorkerProcess], redis_url: str, pool: str
) -> None:
    worker(CELERY_AGENTS_POOL=pool, CELERY_AGENTS_CONCURRENCY="60")
    client = AgentClient(redis_url)
    jobs = [client.submit("asking", "go") for _ in range(60)]
    assert [job.result(timeout=30).final_response for job in jobs] == ["done"] * 60


def test_a_loop_that_is_blocked_is_shown_and_ends_its_worker_and_another_one_carries_on(
    worker: Callable[..., WorkerProcess], redis_url: str
) -> None:
    rude = worker(CELERY_AGENTS_LOOP_BLOCKED_SECONDS="5")
    client = AgentClient(redis_url)
    job = client.submit("blocking", "go")
    rude.wait_for_text("the event loop stands still", 20)
    beside = client.submit("mixed", "go")
    assert "in rude" in rude.text(), "where it stands"
    rude.wait(20)
    assert rude.exit_code == 1
    worker()
    assert job.result(timeout=30).final_response == "done"
    assert beside.result(timeout=30).final_response == "done"


def test_a_loop_that_turns_again_in_time_loses_nothing(
    worker: Callable[..., WorkerProcess], redis_url: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    text = (tmp_path / "mixed_agents.py").read_text(encoding="utf-8").replace("time.sleep(3600)", "time.sleep(6)")
    (tmp_path / "mixed_agents.py").write_text(text, encoding="utf-8")
    rude = worker(CELERY_AGENTS_LEASE_SECONDS="2", CELERY_AGENTS_LEASE_RENEW_SECONDS="0.5")
    client = AgentClient(redis_url)
    job = client.submit("blocking", "go")
    wait_until(lambda: (tmp_path / "was-rude").exists(), "the loop is blocked", 20)
    beside = client.submit("mixed", "go")
    assert job.result(timeout=30).final_response == "done"
    assert beside.result(timeout=30).final_response == "done"
    assert (tmp_path / "calls").read_text() == "called\n", "its lease ended although its worker lived"
    assert rude.alive


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a test choose the thread that takes a signal")
def test_a_signal_that_another_thread_takes_ends_the_worker_as_well(new_worker: Callable[..., WorkerProcess]) -> None:
    worker = new_worker()
    threads = {int(task.name) for task in Path(f"/proc/{worker.pid}/task").iterdir()} - {worker.pid}
    for thread in sorted(threads)[:3]:
        os.kill(thread, signal.SIGTERM)
    assert worker.wait(10) == 0
    assert "Warm shutdown" in worker.text()


@pytest.mark.timeout(60)
def test_a_worker_ends_when_functions_beyond_their_time_hold_its_slots(
    redis_url: str, new_worker: Callable[..., WorkerProcess]
) -> None:
    env = {"CELERY_AGENTS_CONCURRENCY": "5", "CELERY_AGENTS_DRAIN_SECONDS": "1"}
    worker = new_worker(agents="support.fault_agents", env=env)
    AgentClient(redis_url).submit("unanswered", "forever")
    worker.wait_for_text("1 of 5 slots are lost; draining and exiting", 30)
    assert worker.wait(20) == 1
