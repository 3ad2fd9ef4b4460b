"""Flower over a real worker, through its HTTP API: what its rows say, and what its buttons do."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_agents import AgentClient
from celery_agents.tasks.app import create_app
from celery_agents.tasks.names import STEP
from celery_agents.tasks.observability.flower import flower_app

from support.processes import Process, free_port
from support.projects import AGENTS
from support.redis_server import RedisServer
from support.wait import wait_until
from support.worker_process import WorkerProcess

CREDENTIALS = "ops:not-a-real-password"

SPEAKING_AGENTS = f"""{AGENTS}
from celery_agents.worker.state import InferenceResponse, InferenceUsage, ToolCall


@tool(effect="pure")
def search_docs(query: str) -> str:
    '''Search.'''
    return query


@tool(effect="pure")
def read_file(name: str) -> str:
    '''Read.'''
    return name


def research(state):
    usage = InferenceUsage(input=400, output=12)
    if state.execution.step_count:
        return InferenceResponse(content="done", usage=usage)
    calls = [("search_docs", {{"query": "a"}}), ("search_docs", {{"query": "b"}}), ("read_file", {{"name": "c"}})]
    made = tuple(ToolCall(id=f"call{{i}}", name=name, args=args) for i, (name, args) in enumerate(calls))
    return InferenceResponse(tool_calls=made, usage=usage)


reader = Agent("reader", driver=research, tools=[search_docs, read_file])
"""


class Flower:
    """Flower of the product, in a process of its own."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.port = free_port()
        arguments = ["flower", "--port", str(self.port), "--redis-url", redis_url]
        self.process = Process(
            "flower", [sys.executable, "-m", "celery_agents", *arguments], folder, {"FLOWER_BASIC_AUTH": CREDENTIALS}
        )
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(self, path: str, body: Any = None, *, credentials: str | None = CREDENTIALS, **query: str) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}?{urllib.parse.urlencode(query)}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        if credentials:
            request.add_header("Authorization", "Basic " + base64.b64encode(credentials.encode()).decode())
        with self._opener.open(request, timeout=10) as answer:
            text = answer.read().decode()
            return json.loads(text) if text.startswith(("{", "[")) else text

    def rows(self, search: str) -> list[dict[str, Any]]:
        """Rows of the tasks page, by task id."""
        found = self.ask("/api/tasks", search=search)
        rows = list(found.values()) if isinstance(found, dict) else found
        return sorted(rows, key=lambda row: row["uuid"])

    def states(self, search: str) -> list[str]:
        return [row["state"] for row in self.rows(search)]


@pytest.fixture(scope="module")
def redis_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with RedisServer(tmp_path_factory.mktemp("redis-of-flower")) as server:
        yield server.url()


@pytest.fixture(scope="module")
def worker(redis_of_all: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    folder = tmp_path_factory.mktemp("speaking")
    (folder / "speaking.py").write_text(SPEAKING_AGENTS, encoding="utf-8")
    started = WorkerProcess(
        folder,
        redis_of_all,
        "speaking",
        env={"PYTHONPATH": str(folder), "CELERY_AGENTS_CONTROL_TASKS": "all"},
        arguments=("-c", "2"),
    )
    started.start()
    yield started
    started.end(patience=1.0)


@pytest.fixture(scope="module")
def flower(redis_of_all: str, tmp_path_factory: pytest.TempPathFactory, worker: WorkerProcess) -> Iterator[Flower]:
    """One worker of two slots and one Flower for all tests here: each takes seconds to start."""
    started = Flower(tmp_path_factory.mktemp("flower"), redis_of_all)
    started.process.start()
    wait_until(lambda: started.ask("/healthcheck"), "Flower answers", 30, ignoring=(OSError,))
    wait_until(lambda: started.ask("/api/workers"), "Flower sees the worker", 20, ignoring=(OSError,))
    yield started
    started.process.end(patience=2.0)


@pytest.fixture
def client(redis_of_all: str) -> AgentClient:
    return AgentClient(redis_of_all)


def test_each_step_is_a_row_that_says_what_it_did(flower: Flower, client: AgentClient) -> None:
    job = client.submit("reader", "go")
    job.result(timeout=20)
    mine = f"kwargs:session_id={job.session_id}"
    wait_until(lambda: flower.states(mine) == ["SUCCESS"] * 2, "both steps are shown", 10)
    first, second = flower.rows(mine)
    assert [row["name"] for row in (first, second)] == [STEP, STEP]
    assert first["result"] == "'3 tool calls · search_docs ×2, read_file · 412 tokens · next step 2'"
    assert second["result"] == "'412 tokens · completed'"
    assert (first["uuid"], second["uuid"]) == (f"{job.execution_id}.1", f"{job.execution_id}.2")
    info = flower.ask(f"/api/task/info/{second['uuid']}")
    assert (info["root_id"], info["parent_id"]) == (first["uuid"], first["uuid"])

    # The same message once more, and one for a step that is long gone: the rows stay as they are.
    app = create_app(client.settings)
    for step, task_id in ((1, first["uuid"]), (2, second["uuid"])):
        kwargs = {"session_id": job.session_id, "execution_id": job.execution_id, "step": step}
        app.send_task(STEP, kwargs=kwargs, task_id=task_id, queue="celery_agents.steps")
    after = client.submit("reader", "go")
    after.result(timeout=20)
    theirs = f"kwargs:session_id={after.session_id}"
    wait_until(lambda: flower.states(theirs) == ["SUCCESS"] * 2, "what came behind is shown", 10)
    assert [(row["state"], row["result"]) for row in flower.rows(mine)] == [
        ("SUCCESS", first["result"]), ("SUCCESS", second["result"]),
    ]  # fmt: skip


def test_a_failed_execution_is_red_and_its_reason_redacted(flower: Flower, client: AgentClient) -> None:
    job = client.submit("clerk", "fail")
    assert job.result(timeout=20).status == "failed"
    wait_until(lambda: flower.states(f"kwargs:session_id={job.session_id}") == ["FAILURE"], "it is red", 10)
    (row,) = flower.rows(f"kwargs:session_id={job.session_id}")
    assert "ExecutionFailed" in row["exception"]
    assert "no such thing" in row["exception"]
    assert "sk-abc" not in json.dumps(row)

    client.retry(job.session_id).result(timeout=20)
    mine = f"kwargs:session_id={job.session_id}"
    wait_until(lambda: flower.states(mine) == ["FAILURE"] * 2, "the retry has a row of its own", 10)
    assert [row["uuid"] for row in flower.rows(mine)] == [f"{job.execution_id}.1", f"{job.execution_id}.1.r1"]


def test_jobs_are_submitted_stopped_and_retried_over_http(flower: Flower, client: AgentClient) -> None:
    body = {"kwargs": {"agent": "reader", "message": "go", "session_id": "over-http"}}
    assert flower.ask("/api/task/send-task/celery_agents.submit", body)["task-id"]
    wait_until(lambda: client.header("over-http").status == "completed", "it is done", 20, ignoring=(Exception,))
    body = {"kwargs": {"agent": "clerk", "message": "slow", "session_id": "over-http-2"}}
    assert flower.ask("/api/task/async-apply/celery_agents.submit", body)["task-id"]
    wait_until(lambda: client.header("over-http-2").status == "in_progress", "it runs", 20, ignoring=(Exception,))
    flower.ask("/api/task/async-apply/celery_agents.stop", {"kwargs": {"session_id": "over-http-2"}})
    wait_until(lambda: client.header("over-http-2").status == "stopped", "it was stopped", 20)
    flower.ask("/api/task/send-task/celery_agents.retry", {"kwargs": {"session_id": "over-http-2"}})
    wait_until(lambda: client.header("over-http-2").status == "in_progress", "it runs again", 20)
    with pytest.raises(urllib.error.HTTPError, match="401"):
        flower.ask("/api/task/send-task/celery_agents.stop", {"kwargs": {"session_id": "x"}}, credentials=None)
    flower.ask(f"/api/task/revoke/{client.header('over-http-2').execution_id}.1.r1", {}, terminate="true")
    wait_until(lambda: client.header("over-http-2").status == "stopped", "its revoke has stopped it", 20)


def test_revoking_a_step_stops_its_session_wherever_the_step_is(flower: Flower, client: AgentClient) -> None:
    running = [client.submit("clerk", "slow") for _ in range(2)]
    for job in running:
        wait_until(lambda: client.header(job.session_id).status == "in_progress", "it runs", 20)  # noqa: B023
    waiting = client.submit("reader", "go")
    for job in (waiting, running[0]):
        flower.ask(f"/api/task/revoke/{job.execution_id}.1", {})
    for job in (running[0], waiting):
        assert job.result(timeout=10).status == "stopped"
    page = f"/api/task/info/{waiting.execution_id}.1"
    wait_until(lambda: flower.ask(page)["state"] == "REVOKED", "the row is marked", 10, ignoring=(OSError,))
    assert client.header(running[1].session_id).status == "in_progress", "the neighbour goes on"
    assert client.retry(waiting.session_id).result(timeout=20).status == "completed"
    client.stop(running[1].session_id)


def test_flower_shows_no_prompt_of_a_job_submitted_by_name(flower: Flower, client: AgentClient) -> None:
    app = create_app(client.settings)
    kwargs = {"agent": "reader", "message": "the secret prompt", "session_id": "named", "metadata": {"a": "private"}}
    sent = app.send_task("celery_agents.submit", kwargs=kwargs, queue="celery_agents.control")
    wait_until(lambda: client.header("named").status == "completed", "it is done", 20, ignoring=(Exception,))
    page = f"/api/task/info/{sent.id}"
    wait_until(lambda: flower.ask(page)["state"] == "SUCCESS", "the row is there", 10, ignoring=(OSError,))
    row = json.dumps(flower.ask(page))
    assert "named" in row
    assert "the secret prompt" not in row
    assert "private" not in row


FORGED: list[Any] = [{"a": 1}, ["x"], 5, None, "", "<script>alert(1)</script>", "a/b", "half \ud800", "x" * 400]


def test_forged_worker_names_and_events_do_not_break_flower(
    flower: Flower, client: AgentClient, redis_of_all: str
) -> None:
    heartbeat = {
        "type": "worker-heartbeat",
        "freq": 2.0,
        "timestamp": time.time(),
        "utcoffset": 0,
        "clock": 1,
        "pid": 1,
    }
    events: list[Any] = [{**heartbeat, "hostname": name} for name in FORGED]
    events += [{**heartbeat, "hostname": "forged@x", name: {}} for name in heartbeat]
    task = {"type": "task-received", "hostname": "forged@y", "uuid": "u", "name": "n", "timestamp": time.time()}
    events += [{**task, name: value} for name in task for value in ({}, [[]], 5.5e300, None)]
    events += [[], "x", 7, [{}], [[heartbeat]]]
    with redis.Redis.from_url(redis_of_all) as broker:
        for number, event in enumerate(events):
            broker.publish("/0.celery-agents.events/worker.heartbeat", json.dumps(_event_message(event, number)))
    job = client.submit("reader", "go")
    job.result(timeout=20)
    mine = f"kwargs:session_id={job.session_id}"
    wait_until(lambda: flower.states(mine) == ["SUCCESS"] * 2, "Flower still hears of steps", 20, ignoring=(OSError,))
    for path in ("/api/workers", "/api/tasks", "/workers", "/tasks", "/metrics", "/healthcheck"):
        flower.ask(path)
    names = flower.ask("/api/workers").keys()
    assert not [name for name in names if "forged@x" in name or "script" in name], names


def _event_message(event: Any, number: int) -> dict[str, Any]:
    return {
        "body": base64.b64encode(json.dumps(event).encode()).decode(), "content-type": "application/json",
        "content-encoding": "utf-8", "headers": {"hostname": "forged"},
        "properties": {
            "body_encoding": "base64", "delivery_tag": str(number), "priority": 0,
            "delivery_info": {"exchange": "celery-agents.events", "routing_key": "worker.heartbeat"},
        },
    }  # fmt: skip


def test_flower_neither_makes_nor_restores_records_of_unacknowledged_messages(client: AgentClient) -> None:
    theirs, workers = (
        app.conf.broker_transport_options for app in (flower_app(client.settings), create_app(client.settings))
    )
    assert theirs["ack_emulation"] is False
    assert "ack_emulation" not in workers
    assert theirs["socket_timeout"] == workers["socket_timeout"]


def test_flower_listens_beyond_this_machine_with_credentials_only(tmp_path: Path, redis_url: str) -> None:
    command = [sys.executable, "-m", "celery_agents", "flower", "--address", "0.0.0.0", "--port", str(free_port())]
    done = subprocess.run(
        [*command, "--redis-url", redis_url], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2
    assert "FLOWER_BASIC_AUTH" in done.stderr
    assert "Traceback" not in done.stderr
