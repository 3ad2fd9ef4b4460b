"""`celery-agents doctor` over a real Redis, a real worker and an existing project with settings that conflict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from celery_agents import AgentClient
from celery_agents.worker.store import keys
from celery_agents.worker.store.shards import NEW

from support import fork_server
from support.projects import AGENTS, EXISTING
from support.redis_server import RedisServer
from support.wait import wait_until
from support.worker_process import WorkerProcess

Doctor = Callable[..., tuple[int, dict[str, dict[str, str]]]]


def ask(url: str, folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("CELERY_AGENTS_", "OPENAI_"))}
    command = [sys.executable, "-m", "celery_agents", "doctor", *arguments]
    return fork_server.run(command, cwd=folder, env={**mine, "CELERY_AGENTS_REDIS_URL": url, **env})


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    """Exit code and findings by name of `doctor --json`."""

    def examine(url: str, *arguments: str, **env: str) -> tuple[int, dict[str, dict[str, str]]]:
        done = ask(url, tmp_path, "--json", *arguments, **env)
        assert "Traceback" not in done.stderr, done.stderr
        findings = [json.loads(line) for line in done.stdout.splitlines()]
        assert all(finding["advice"] for finding in findings if finding["level"] != "ok")
        return done.returncode, {finding["name"]: finding for finding in findings}

    return examine


def test_an_installation_in_order_is_said_to_be(
    new_redis: Callable[..., RedisServer], new_worker: Callable[..., WorkerProcess], tmp_path: Path, doctor: Doctor
) -> None:
    server = new_redis(append_only="everysec")
    (tmp_path / "clerks.py").write_text(AGENTS, encoding="utf-8")
    new_worker(server.url(), agents="clerks", env={"PYTHONPATH": str(tmp_path)})
    done = ask(server.url(), tmp_path, CELERY_AGENTS_AGENTS="clerks")
    assert done.returncode == 0, done.stdout
    assert "fail  " not in done.stdout
    assert "0 failures, 0 warnings" in done.stdout
    assert "clerk here" in done.stdout
    code, found = doctor(server.url())
    assert code == 0
    assert found["persistence"]["level"] == found["agent clerk"]["level"] == "ok"
    (worker,) = (finding for name, finding in found.items() if name.startswith("worker "))
    assert "0 of 100 slots busy; clerk" in worker["what"]


def test_a_redis_that_may_lose_sessions_fails_or_warns(new_redis: Callable[..., RedisServer], doctor: Doctor) -> None:
    server = new_redis(append_only="no", config={"maxmemory": "50mb", "maxmemory-policy": "allkeys-lru"})
    code, found = doctor(server.url())
    assert code == 1
    assert (found["eviction"]["level"], found["eviction"]["what"]) == ("fail", "allkeys-lru")
    assert "noeviction" in found["eviction"]["advice"]
    assert found["persistence"]["level"] == "warn"
    assert found["workers"]["level"] == "fail"
    assert "of 50 MB" in found["memory"]["what"] or "of 52 MB" in found["memory"]["what"]


def test_without_redis_it_ends_with_3_and_says_what_to_do(tmp_path: Path, doctor: Doctor) -> None:
    code, found = doctor("redis://127.0.0.1:1/0")
    assert code == 3
    assert list(found) == ["redis"]
    assert "CELERY_AGENTS_REDIS_URL" in found["redis"]["advice"]


@pytest.mark.leaves_keys("a parked session is retried and done, but what was quarantined stays")
def test_parked_sessions_and_quarantined_messages_are_named_until_they_are_dealt_with(
    redis_url: str, redis_client: Any, new_worker: Callable[..., WorkerProcess], tmp_path: Path, doctor: Doctor
) -> None:
    (tmp_path / "clerks.py").write_text(AGENTS, encoding="utf-8")
    client = AgentClient(redis_url)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no worker has registered yet
        job = client.submit("clerk", "look")
    new_worker(agents="support.agents", env={"CELERY_AGENTS_AGENT_GRACE_SECONDS": "1"})
    wait_until(lambda: client.header(job.session_id).status == "parked", "it is parked", 20)
    redis_client.lpush("celery_agents.steps", "not json")
    wait_until(lambda: len(client.store.housekeeping.list_dead()) == 2, "the message was quarantined", 20)

    code, found = doctor(redis_url)
    assert code == 0, "nothing of this keeps other agents from running"
    assert job.session_id in found["parked at step 1"]["what"]
    assert "clerk" in found["parked at step 1"]["what"]
    assert f"celery-agents retry {job.session_id}" in found["parked at step 1"]["advice"]
    assert "not json" in found["quarantined message"]["what"]

    new_worker(agents="clerks", env={"PYTHONPATH": str(tmp_path)})
    assert job.result(timeout=20).status == "completed", "it comes back by itself"
    assert "parked at step 1" not in doctor(redis_url)[1]
    assert redis_client.exists(*(shard.dead for shard in keys.shard_keys(NEW)))


def test_settings_of_an_existing_app_that_conflict_are_named(redis_url: str, tmp_path: Path, doctor: Doctor) -> None:
    conflicting = (
        "worker_pool='gevent', accept_content=['pickle'], task_time_limit=60, task_default_rate_limit='10/m', "
        "worker_send_task_events=False, task_compression='gzip', task_protocol=1, timezone="
    )
    for name, text in EXISTING.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        changed = text.replace("timezone=", conflicting) if name == "proj/celery.py" else text
        (tmp_path / name).write_text(changed, encoding="utf-8")
    code, found = doctor(redis_url, "--app", "proj", PROJ_BROKER=redis_url)
    assert code == 1
    assert {name: found[name]["level"] for name in found if name.startswith(("worker_", "accept", "task_"))} == {
        "worker_pool": "fail", "accept_content": "fail", "task_time_limit": "warn",
        "task_default_rate_limit": "warn", "worker_send_task_events": "warn", "task_compression": "fail",
        "task_protocol": "fail",
    }  # fmt: skip
    assert found["clerk here"]["level"] == "ok"


def test_an_app_without_agents_and_one_that_is_not_there_are_told_apart(redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text("from celery import Celery\napp = Celery('bare')\n", encoding="utf-8")
    for name, words in (("bare", "celery_agents.install(app)"), ("missing", "cannot be imported")):
        done = ask(redis_url, tmp_path, "--app", name)
        assert done.returncode == 2
        assert words in done.stderr


def test_agents_that_cannot_work_here_are_named_with_what_they_lack(
    redis_url: str, tmp_path: Path, doctor: Doctor
) -> None:
    pytest.importorskip("pydantic_ai")
    modules = {
        "keyless.py": "from celery_agents import Agent\nwriter = Agent('writer', model='openai:gpt-5-mini')\n",
        "broken.py": "raise RuntimeError('no database')\n",
    }
    for name, text in modules.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    code, found = doctor(redis_url, CELERY_AGENTS_AGENTS="keyless,broken,absent")
    assert code == 1
    assert found["writer here"]["level"] == "fail"
    assert "OPENAI_API_KEY" in found["writer here"]["what"]
    assert found["module broken"]["what"] == "RuntimeError: no database"
    assert "absent" in found["module absent"]["what"]
