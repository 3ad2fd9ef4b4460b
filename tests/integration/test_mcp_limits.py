"""A real worker beside servers that send too much: its memory, its other sessions, and what the model reads."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.test_limits import MOST_BYTES, peak_bytes

from celery_agents.tasks.client.job import Job

from support.agents import call, plan
from support.lab import Lab
from support.mcp_hostile import HostileServer
from support.mcp_process import outcomes
from support.worker_process import WorkerProcess

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc"),
]

CALLS = 40


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    server = HostileServer()
    env = {"TEST_HOSTILE_URL": server.url}
    with Lab(tmp_path_factory.mktemp("hostile") / "lab", agents="support.mcp_hostile_agents", env=env) as started:
        yield started
    server.close()


@pytest.fixture(scope="module")
def worker(lab: Lab) -> WorkerProcess:
    return lab.worker()


def submit(lab: Lab, agent: str, calls: int = 1) -> Job:
    return lab.client.submit(agent, plan([call("s_go", x="a" * 40 + "!")] * calls))


def texts(lab: Lab, job: Job) -> set[str]:
    assert job.result(timeout=120).status == "completed"
    return {text for _, text in outcomes(lab, job)}


def is_harmless(worker: WorkerProcess) -> None:
    assert worker.alive, worker.tail()
    assert peak_bytes(worker.pid) < MOST_BYTES


@pytest.mark.parametrize("way", ["json", "stdio", pytest.param("sse", marks=pytest.mark.long)])
def test_a_result_that_is_too_long_is_an_error_of_its_call(lab: Lab, worker: WorkerProcess, way: str) -> None:
    (text,) = texts(lab, submit(lab, f"{way}_endless", CALLS if way != "stdio" else 2))
    assert "the tool has run, but its result cannot be read: the answer has more than 1000000 bytes" in text
    is_harmless(worker)


@pytest.mark.parametrize("way", ["json", *(pytest.param(way, marks=pytest.mark.long) for way in ("sse", "stdio"))])
def test_results_of_very_many_values_are_kept_as_text(lab: Lab, worker: WorkerProcess, way: str) -> None:
    jobs = [submit(lab, f"{way}_many_values", CALLS // 4) for _ in range(2)]
    for job in jobs:
        (text,) = texts(lab, job)
        assert "characters left out]" in text
    is_harmless(worker)


def test_lists_and_descriptions_are_cut_and_output_schemas_are_not_run(lab: Lab, worker: WorkerProcess) -> None:
    assert texts(lab, submit(lab, "json_many_tools")) == {"went"}
    assert "MCP server s: 3501 tools are left out" in worker.text()
    assert texts(lab, submit(lab, "sse_long_description")) == {"went"}
    (text,) = texts(lab, submit(lab, "json_output_schema"))
    assert "aaaa!" in text
    is_harmless(worker)


def test_a_long_question_is_asked_short(lab: Lab, worker: WorkerProcess) -> None:
    job = submit(lab, "stdio_long_question")
    deadline = time.monotonic() + 40
    while lab.client.header(job.session_id).status != "waiting":
        assert time.monotonic() < deadline, worker.tail()
        time.sleep(0.05)
    (asked,) = lab.client.requests(job.session_id).requests
    assert len(asked.summary.text) < 5_000
    assert "pattern" not in str(asked)
    lab.client.stop(job.session_id)


@pytest.mark.parametrize("way", [pytest.param("sse", marks=pytest.mark.long), "stdio"])
def test_a_flood_of_notifications_leaves_other_sessions_their_time(lab: Lab, worker: WorkerProcess, way: str) -> None:
    jobs = [submit(lab, f"{way}_flood") for _ in range(3)]
    times: list[float] = []
    until = time.monotonic() + 4
    while time.monotonic() < until:
        began = time.monotonic()
        assert lab.client.submit("planned", plan([call("pure", work="x")])).result(timeout=60).status == "completed"
        times.append(time.monotonic() - began)
    assert statistics.median(times) < 1, times
    for job in jobs:
        assert job.result(timeout=120).status == "completed"
    assert "sends more than it was asked for" in worker.text()
    is_harmless(worker)


@pytest.mark.long
def test_questions_without_end_cost_the_server_its_connection(lab: Lab, worker: WorkerProcess) -> None:
    (text,) = texts(lab, submit(lab, "stdio_questions"))
    assert text
    is_harmless(worker)


@pytest.mark.long
def test_a_servers_log_does_not_fill_the_workers(lab: Lab, worker: WorkerProcess) -> None:
    before = len(worker.text())
    assert texts(lab, submit(lab, "stdio_log")) == {"went"}
    assert len(worker.text()) - before < 500_000
    is_harmless(worker)
