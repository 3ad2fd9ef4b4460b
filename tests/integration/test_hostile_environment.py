"""Commands in an environment that is set up for another Celery service, with that service's files in the folder."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from support.agents import plan
from support.hostile import hostile_environment, write_files_of_another_service
from support.ledger import Ledger
from support.processes import TESTS, Process, free_port
from support.redis_server import RedisServer
from support.serve_process import ServeProcess
from support.wait import wait_until
from support.worker_process import WorkerProcess


@pytest.fixture
def other_redis(new_redis: Callable[..., RedisServer]) -> Iterator[RedisServer]:
    """The other service's Redis, which nobody of ours may touch."""
    server = new_redis()
    yield server
    with server.client() as client:
        assert client.dbsize() == 0, f"written into another service's Redis: {client.keys('*')[:10]}"


@pytest.fixture
def hostile(other_redis: RedisServer, tmp_path: Path) -> dict[str, str]:
    write_files_of_another_service(tmp_path)
    return hostile_environment(other_redis.url())


def run(folder: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("celery-agents")), *arguments]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "pool", ["prefork", *(pytest.param(pool, marks=pytest.mark.long) for pool in ("greenlets", "threads", "solo"))]
)
def test_a_job_is_done_in_each_pool_with_the_store_s_redis_as_broker(
    pool: str,
    hostile: dict[str, str],
    tmp_path: Path,
    redis_url: str,
    new_worker: Callable[..., WorkerProcess],
    ledger: Ledger,
) -> None:
    folder = tmp_path / "worker-1"
    folder.mkdir()
    write_files_of_another_service(folder)
    worker = new_worker(env={**hostile, **ledger.env, "CELERY_AGENTS_POOL": pool, "CELERY_AGENTS_CONCURRENCY": "2"})
    environment = {**hostile, "CELERY_AGENTS_REDIS_URL": redis_url}
    done = run(tmp_path, environment, "submit", "planned", plan(answer="said"), "--wait", "--timeout", "30s")
    assert done.stdout == "said\n", done.stderr + worker.text()
    doctor = run(tmp_path, environment, "doctor")
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr


@pytest.mark.parametrize("settings_module", [pytest.param("another.settings", marks=pytest.mark.long), "shop_settings"])
def test_a_django_project_around_us_is_not_imported(
    settings_module: str,
    hostile: dict[str, str],
    tmp_path: Path,
    redis_url: str,
    new_worker: Callable[..., WorkerProcess],
    ledger: Ledger,
) -> None:
    """Django is installed here; `shop_settings` can be imported, and `another.settings` does not exist."""
    project = tmp_path / "project"
    (project / "django" / "conf").mkdir(parents=True)
    (project / "django" / "__init__.py").write_text("VERSION = (5, 2)\n")
    (project / "django" / "conf" / "__init__.py").write_text("raise RuntimeError('settings were looked for')\n")
    (project / "shop_settings.py").write_text("raise RuntimeError('the settings of a project were imported')\n")
    path = f"{project}:{TESTS}"
    environment = {**hostile, **ledger.env, "DJANGO_SETTINGS_MODULE": settings_module, "PYTHONPATH": path}
    worker = new_worker(env=environment)
    environment["CELERY_AGENTS_REDIS_URL"] = redis_url
    done = run(tmp_path, environment, "submit", "planned", plan(answer="said"), "--wait", "--timeout", "30s")
    assert done.stdout == "said\n", done.stderr + worker.text()
    doctor = run(tmp_path, environment, "doctor")
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr


def test_the_http_interface_starts_and_answers(hostile: dict[str, str], tmp_path: Path, redis_url: str) -> None:
    server = ServeProcess(tmp_path / "serve", redis_url, hostile)
    try:
        server.start()
        assert server.http().get("/v1/agents").status_code == 200
    finally:
        server.end(patience=2.0)


def test_flower_shows_the_workers_of_the_store_s_redis_where_its_options_say(
    hostile: dict[str, str], tmp_path: Path, redis_url: str, new_worker: Callable[..., WorkerProcess]
) -> None:
    new_worker()
    port = free_port()
    command = [sys.executable, "-P", "-m", "celery_agents", "flower", "--port", str(port)]
    environment = {**hostile, "CELERY_AGENTS_REDIS_URL": redis_url, "FLOWER_BASIC_AUTH": "ops:secret"}
    flower = Process("flower", command, tmp_path, environment)
    flower.start()
    credentials = base64.b64encode(b"ops:secret").decode()
    request = Request(
        f"http://127.0.0.1:{port}/api/workers?refresh=1", headers={"Authorization": f"Basic {credentials}"}
    )

    def shown() -> bool:
        assert flower.alive, flower.text()
        try:
            with urlopen(request, timeout=5) as answer:
                return b"celery_agents.step" in answer.read()
        except OSError:
            return False

    try:
        wait_until(shown, "Flower shows the worker", timeout=30)
    finally:
        flower.end(patience=2.0)


def test_doctor_fails_when_messages_get_old_while_slots_are_free(
    redis_url: str, new_worker: Callable[..., WorkerProcess], tmp_path: Path, new_redis: Callable[..., RedisServer]
) -> None:
    """A worker whose broker is another Redis takes no message, and looks alive."""
    elsewhere = new_redis()
    new_worker(env={"CELERY_AGENTS_BROKER_URL": elsewhere.url()}, wait=False)
    environment = {"CELERY_AGENTS_REDIS_URL": redis_url}

    def registered() -> bool:
        return '"worker ' in run(tmp_path, environment, "doctor", "--json").stdout

    wait_until(registered, "the worker is registered", timeout=30)
    assert run(tmp_path, environment, "submit", "planned", plan(answer="said")).returncode == 0

    def told() -> bool:
        done = run(tmp_path, environment, "doctor")
        return done.returncode == 1 and "while" in done.stdout and "slots are free" in done.stdout

    wait_until(told, "doctor names the old message", timeout=40)
