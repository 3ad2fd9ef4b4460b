"""Slots of a real worker: steps leave theirs when they have their answers, and models are not called more often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import pytest

from celery_agents import AgentClient

from support.worker_process import WorkerProcess

SLOTS, SESSIONS, STEPS = 16, 48, 5
AGENT = f'''
import asyncio
import os
import time

from celery_agents import Agent, tool
from celery_agents.worker.drivers import FunctionDriver
from celery_agents.worker.state import InferenceResponse, ToolCall

notes = open(os.environ["NOTES"], "a", buffering=1)


def note(change):
    notes.write(f"{{time.monotonic()}} {{change}}\\n")


@tool(effect="keyed")
async def work(seconds: float) -> str:
    """Take a moment, or none."""
    note("tool")
    await asyncio.sleep(seconds)
    note("worked")
    return "worked"


async def model(state):
    note("asked")
    await asyncio.sleep(0.25)
    note("answered")
    number = state.execution.step_count + 1
    if number == {STEPS}:
        return InferenceResponse(content="arrived")
    seconds = 0.15 if number % 2 else 0.0
    return InferenceResponse(content="on", tool_calls=(ToolCall(id=f"c{{number}}", name="work", args={{"seconds": seconds}}),))


walker = Agent("walker", driver=FunctionDriver(model), tools=[work])
'''


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


@pytest.fixture
def worker(new_worker: Callable[..., WorkerProcess], tmp_path: Path, notes: Path) -> WorkerProcess:
    (tmp_path / "walkers.py").write_text(AGENT, encoding="utf-8")
    env = {"PYTHONPATH": str(tmp_path), "CELERY_AGENTS_CONCURRENCY": str(SLOTS), "NOTES": str(notes)}
    return new_worker(agents="walkers", env=env)


@pytest.mark.usefixtures("worker")
def test_steps_with_answers_leave_their_slots_to_others_and_models_are_called_no_more_often(
    redis_url: str, notes: Path
) -> None:
    client = AgentClient(redis_url)
    jobs = [client.submit("walker", "go") for _ in range(SESSIONS)]
    records = [job.result(timeout=60) for job in jobs]
    assert {(record.status, record.step_count) for record in records} == {("completed", STEPS)}
    noted = [line.split() for line in notes.read_text(encoding="utf-8").splitlines()]
    assert Counter(what for _, what in noted) == {
        "asked": SESSIONS * STEPS,
        "answered": SESSIONS * STEPS,
        "tool": SESSIONS * (STEPS - 1),
        "worked": SESSIONS * (STEPS - 1),
    }
    asking = _most(noted, {"asked": 1, "answered": -1})
    # A tool that takes longer than a moment needs a slot again, and half of them may have been given away.
    assert SLOTS <= asking <= SLOTS + SLOTS // 2
    at_work = _most(noted, {"asked": 1, "answered": -1, "tool": 1, "worked": -1})
    assert SLOTS < at_work <= SLOTS + SLOTS // 2, "some have left their slots to others"


def _most(noted: list[list[str]], changes: dict[str, int]) -> int:
    return max(accumulate(changes.get(what, 0) for _, what in noted))
