"""Without any single undocumented attribute of a library, workers start, clients are imported and jobs complete."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_agents import AgentClient
from celery_agents.tasks.consumer.internals import WITHOUT
from celery_agents.worker.store import keys

from support.processes import TESTS, Process
from support.wait import wait_until

AGENT = """\
from celery_agents import Agent, tool
from celery_agents.worker.drivers import CallTool


@tool(effect="pure")
def look_up(word: str) -> str:
    '''Look a word up.'''
    return word.upper()


def answer(state):
    return [CallTool("look_up", word="agents")] if state.messages[-1].role == "user" else "found"


clerk = Agent("clerk", driver=answer, tools=[look_up])
"""

SCRIPT = """\
import sys
import support.renamed_internals
{statement}
"""
WORK = "from celery_agents.tasks.cli import main; main(['worker'])"
SUBMIT = "from celery_agents import AgentClient; print(AgentClient().submit('clerk', 'look it up').session_id)"
PREPARE_FLOWER = """
from kombu.transport.redis import Channel
from celery_agents.tasks.consumer import internals

assert internals.without_binding_scripts(Channel) is Channel
print(*internals.missing_internals())
"""
ANOTHER_STRATEGY = """
import inspect
import celery.worker.strategy as strategies

stock = strategies.default


def make(*args, **options):
    take = stock(*args, **options)

    def take_message(*given):
        return take(*given)

    take_message.__signature__ = inspect.signature(lambda message: None)
    return take_message


strategies.default = make
"""


@dataclass(frozen=True)
class Renamed:
    """An attribute that a library has under another name.

    Attributes:
        path: As the worker's facts name it.
        where: Modules in which the name is replaced.
        pool: The worker's pool.
    """

    path: str
    where: str
    pool: str = "greenlets"

    @property
    def name(self) -> str:
        return self.path.partition(":")[2].rpartition(".")[2].partition("|")[0]


REDIS = "kombu.transport.redis"
CASES = [
    Renamed(f"{REDIS}:Channel.subclient", "kombu"),
    Renamed("celery.worker.state:reserved_requests", "celery", pool="threads"),
    Renamed("celery.worker.state:active_requests", "celery"),
    Renamed("celery.worker.state:revoked", "celery.worker"),
    Renamed("celery.events.dispatcher:EventDispatcher.buffer_limit", "celery"),
    Renamed("celery.events.dispatcher:EventDispatcher.on_send_buffered", "celery"),
    Renamed("redis.connection:Connection._sock", "redis,kombu"),
    Renamed("redis.connection:Connection._parser.parse_error", "redis"),
]
FLOWER_CASES = [
    Renamed(f"{REDIS}:Channel._refresh_binding", "kombu"),
    Renamed(f"{REDIS}:Channel.sweep_bindings", "kombu"),
]
STRATEGY = "celery.worker.strategy:default"


def identify(case: Renamed) -> str:
    return case.path


@pytest.fixture
def environment(request: pytest.FixtureRequest, tmp_path: Path, redis_url: str) -> dict[str, str]:
    case: Renamed = request.param
    (tmp_path / "clerks.py").write_text(AGENT, encoding="utf-8")
    return {
        "PYTHONPATH": f"{TESTS}:{tmp_path}",
        "RENAMED_ATTRIBUTE": f"{case.where}:{case.name}",
        "CELERY_AGENTS_REDIS_URL": redis_url,
        "CELERY_AGENTS_AGENTS": "clerks",
        "CELERY_AGENTS_CONCURRENCY": "2",
        "CELERY_AGENTS_POOL": case.pool,
        "CELERY_AGENTS_SWEEP_SECONDS": "0.2",
        "NO_PROXY": "127.0.0.1,localhost",
    }


@pytest.fixture
def worker(environment: dict[str, str], tmp_path: Path) -> Iterator[Process]:
    process = Process("worker", [sys.executable, "-c", SCRIPT.format(statement=WORK)], tmp_path, environment)
    process.start()
    process.wait_for_text("ready.", 30)
    yield process
    process.end(patience=1.0)


def facts(client: redis.Redis) -> dict[str, Any]:
    return next((json.loads(each) for each in client.hvals(keys.FLEET.workers)), {})


@pytest.mark.parametrize(
    ("environment", "case"),
    [pytest.param(case, case, marks=pytest.mark.long if n % 5 else ()) for n, case in enumerate(CASES)],
    indirect=["environment"],
    ids=identify,
)
def test_a_job_completes_without(
    case: Renamed,
    worker: Process,
    environment: dict[str, str],
    tmp_path: Path,
    redis_url: str,
    redis_client: redis.Redis,
) -> None:
    wait_until(lambda: facts(redis_client), "the worker is registered", 10, details=worker.tail)
    submitted = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(statement=SUBMIT)],
        cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert submitted.returncode == 0, submitted.stderr
    result = AgentClient(redis_url).job(submitted.stdout.strip()).result(timeout=15)
    assert (result.status, result.final_response) == ("completed", "found"), worker.tail()
    # An attribute that only an object can lack is known when the object is there.
    wait_until(lambda: case.path in facts(redis_client)["missing"], f"{case.path} is named", 10, details=worker.tail)
    assert f"{case.path}; this worker goes on, but {WITHOUT[case.path]}" in worker.text()


def test_steps_are_left_to_kombu_where_celery_takes_a_message_in_another_form(tmp_path: Path, redis_url: str) -> None:
    (tmp_path / "clerks.py").write_text(AGENT, encoding="utf-8")
    environment = {"CELERY_AGENTS_REDIS_URL": redis_url, "CELERY_AGENTS_AGENTS": "clerks", "PYTHONPATH": str(tmp_path)}
    process = Process("worker", [sys.executable, "-c", ANOTHER_STRATEGY + WORK], tmp_path, environment)
    process.start()
    try:
        process.wait_for_text("ready.", 30)
        client = AgentClient(redis_url)
        client.wait_for_agent("clerk")
        assert [client.submit("clerk", "look it up").result(timeout=20).final_response for _ in range(3)] == [
            "found"
        ] * 3
    finally:
        process.end(patience=1.0)
    assert f"{STRATEGY}; this worker goes on, but {WITHOUT[STRATEGY]}" in process.text()


@pytest.mark.parametrize("case", FLOWER_CASES, ids=identify)
def test_flower_leaves_kombu_as_it_is_without(case: Renamed, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(statement=PREPARE_FLOWER)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(TESTS), "RENAMED_ATTRIBUTE": f"{case.where}:{case.name}"},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout.strip()) == (0, case.path), ended.stderr
    assert WITHOUT[case.path] in ended.stderr


def test_every_undocumented_attribute_is_tried() -> None:
    assert set(WITHOUT) == {STRATEGY, *(case.path for case in (*CASES, *FLOWER_CASES))}
