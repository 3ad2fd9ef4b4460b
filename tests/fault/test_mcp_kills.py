"""Many jobs with MCP tools, while workers and both servers are killed in turn, without a plan."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from celery_agents.worker.state import ToolOutcome

from support.agents import call
from support.lab import Lab
from support.mcp_process import MCPServerProcess, outcomes, submit
from support.wait import wait_until

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(600)]

JOBS_A_KILL = 4
KILLS = 18


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MCPServerProcess]:
    started = MCPServerProcess(tmp_path / "mcp")
    started.begin()
    yield started
    started.end()


@pytest.fixture
def lab(tmp_path: Path, server: MCPServerProcess) -> Iterator[Lab]:
    with Lab(tmp_path / "lab", agents="support.mcp_agents", env=server.worker_env()) as started:
        yield started


def kill_stdio_server(lab: Lab) -> None:
    """Kill the server that a worker has started."""
    for worker in lab.workers:
        for child in psutil.Process(worker.pid).children(recursive=True) if worker.alive else ():
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                if "support.mcp_server" in child.cmdline():
                    os.kill(child.pid, signal.SIGKILL)
                    return


def test_no_keyed_effect_doubles_and_no_unsafe_call_runs_again(lab: Lab, server: MCPServerProcess) -> None:
    seed = random.SystemRandom().randrange(10_000)
    print(f"seed {seed}")
    chance = random.Random(seed)
    tools = [f"{name}_{tool}" for name in "sh" for tool in ("put_keyed", "fire", "look", "render")]
    lab.worker()
    lab.worker()
    jobs = {}
    for kill in range(KILLS):
        seen = len(server.lines())
        for number in range(kill * JOBS_A_KILL, (kill + 1) * JOBS_A_KILL):
            calls = [
                call(tool, work=f"{number}.{place}.{tool}", **({"seconds": 1} if "render" in tool else {"before": 0.6}))
                for place, tool in enumerate(chance.sample(tools, 4))
            ]
            jobs[number] = (submit(lab, calls[:2], calls[2:]), calls)
        wait_until(lambda: len(server.lines()) > seen + 1, "calls run", 60)  # noqa: B023
        time.sleep(chance.uniform(0, 0.5))
        if kill % 3 == 0:
            chance.choice([each for each in lab.workers if each.alive]).kill_alone()
            lab.worker(wait=False)
        elif kill % 3 == 1:
            kill_stdio_server(lab)
        else:
            with server.away():
                time.sleep(chance.uniform(0, 0.5))
    for job, _ in jobs.values():
        assert job.result(timeout=240).status == "completed"
    delivered, counts = server.lines(), Counter[tuple[str, str]]()
    for job, calls in jobs.values():
        ended = [each for step in (1, 2) for each in outcomes(lab, job, step)]
        for asked, (outcome, text) in zip(calls, ended, strict=True):
            work, tool = asked["arguments"]["work"], asked["tool"][2:]
            lines = [each for each in delivered if each["work"] == work]
            counts[tool, outcome.value] += 1
            assert sum(each["effect"] for each in lines) <= 1 or tool == "look", (seed, work, lines)
            if tool in ("look", "put_keyed"):
                assert outcome is ToolOutcome.OK, (seed, work, text)
            else:
                assert outcome in (ToolOutcome.OK, ToolOutcome.UNKNOWN), (seed, work, text)
                assert len(lines) == 1 or (outcome is ToolOutcome.UNKNOWN and not lines), (seed, work, lines)
    keys = [each["key"] for each in delivered if each["kind"] != "cancel"]
    repeated = len(keys) - len(set(keys))
    print(f"outcomes {dict(counts)}, {repeated} deliveries were repeated")
    assert repeated, "no kill has met a call; the test shows nothing"
