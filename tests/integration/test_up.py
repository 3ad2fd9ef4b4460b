"""`celery-agents up`: one block when it is ready, restarts, data that stay, and reloads."""

from __future__ import annotations

import os
import re
import signal
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import fork_server
from support.hostile import hostile_environment, write_files_of_another_service
from support.processes import Process, free_port
from support.redis_server import RedisServer
from support.wait import wait_until

AGENTS = """
from celery_agents import Agent
echo = Agent("echo", driver=lambda state: "{answer} " + state.messages[-1].content)
"""


class Up(Process):
    """`celery-agents up` in a folder, and the commands of another terminal beside it."""

    def __init__(self, folder: Path, *arguments: str, env: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.given = env or {}
        self.port = free_port()
        command = [sys.executable, "-P", "-m", "celery_agents", "up", "--port", str(self.port), *arguments]
        super().__init__("up", command, folder, {**self.given, "PYTHONUNBUFFERED": "1"})

    def wait_until_ready(self) -> str:
        since = len(self.text())
        self.start()
        self.wait_for_text("Ctrl-C ends everything", 40, since=since)
        return self.text()[since:]

    def run(self, *arguments: str) -> str:
        environment = {**os.environ, **self.given, "CELERY_AGENTS_REDIS_URL": f"redis://127.0.0.1:{self.port}/0"}
        command = [sys.executable, "-P", "-m", "celery_agents", *arguments]
        done = fork_server.run(command, cwd=self.folder, env=environment)
        return done.stdout + (done.stderr if done.returncode else "")

    def leave(self) -> None:
        self.terminate()
        assert self.wait(40) == 0, self.tail()


@pytest.fixture
def new_up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []
    (tmp_path / "my_agents.py").write_text(AGENTS.format(answer="you said"))

    def make(*arguments: str, **options: dict[str, str]) -> Up:
        started.append(Up(tmp_path, *arguments, **options))
        return started[-1]

    yield make
    for each in started:
        each.end(patience=10.0)


def _read(url: str) -> bytes:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5) as answer:
        return answer.read()


def worker_pid(text: str) -> int:
    return int(re.findall(r"process (\d+)", text)[-1])


def test_what_dies_is_started_again_and_the_data_stay_for_the_next_time(new_up: Callable[..., Up]) -> None:
    up = new_up("--agents", "my_agents", "--no-flower", "--no-http")
    block = up.wait_until_ready()
    assert re.search(r"Agents +echo +\(from my_agents\)", block)
    assert f"redis://127.0.0.1:{up.port}/0" in block
    assert str(up.folder / ".celery-agents") in block
    assert (up.folder / ".celery-agents" / ".gitignore").read_text() == "*\n"
    assert up.run("submit", "echo", "hello", "--wait") == "you said hello\n"

    os.kill(worker_pid(block), signal.SIGKILL)
    up.wait_for_text("the worker was killed by SIGKILL; it starts again in 0.5 s", 10)
    up.wait_for_text("the worker is ready again", 30)
    assert up.run("submit", "echo", "again", "--wait") == "you said again\n"
    assert "[queues]" not in up.text(), "Celery's banner stays in the log file, after a restart, too"

    redis_pid = int(re.findall(r"process_id:(\d+)", _info(up.port))[0])
    os.kill(redis_pid, signal.SIGKILL)
    up.wait_for_text("Redis was killed by SIGKILL; it starts again", 10)
    wait_until(lambda: _info(up.port), "Redis answers again", timeout=20, ignoring=OSError)
    assert up.run("submit", "echo", "once more", "--wait", "--timeout", "40s") == "you said once more\n"
    up.leave()

    port = free_port()
    second = new_up("--agents", "my_agents", "--no-flower", "--http-port", str(port))
    assert re.search(rf"Page +http://127.0.0.1:{port}/\n", second.wait_until_ready())
    assert len(second.run("list", "--json").splitlines()) == 3
    wait_until(lambda: b"echo" in _read(f"http://127.0.0.1:{port}/v1/agents"), "HTTP answers", 30, ignoring=OSError)
    assert b"modulepreload" in _read(f"http://127.0.0.1:{port}/sessions")
    third = fork_server.run([sys.executable, "-P", "-m", "celery_agents", "up", "--agents", "my_agents"], cwd=up.folder)
    assert third.returncode == 2
    assert "is in use by another celery-agents" in third.stderr.splitlines()[-1]


def test_a_changed_file_restarts_the_worker_and_a_broken_one_waits_for_the_next_change(
    new_up: Callable[..., Up],
) -> None:
    up = new_up("--agents", "my_agents", "--no-flower", "--no-http", "--reload")
    up.wait_until_ready()
    agents = up.folder / "my_agents.py"
    agents.write_text("this is no Python\n")
    up.wait_for_text("it starts again when a file changes", 30)
    agents.write_text(AGENTS.format(answer="it is said that"))
    up.wait_for_text("the worker is ready again", 30)
    assert up.run("submit", "echo", "hello", "--wait") == "it is said that hello\n"


@pytest.mark.parametrize(
    ("modules", "last_line"),
    [
        ("no_such_agents", "No module named 'no_such_agents'"),
        ("broken", "NameError: name 'Agnet' is not defined"),
    ],
)
def test_wrong_agents_are_explained_in_the_last_line(tmp_path: Path, modules: str, last_line: str) -> None:
    (tmp_path / "broken.py").write_text("helper = Agnet('x')\n")
    command = [sys.executable, "-P", "-m", "celery_agents", "up", "--agents", modules, "--port", str(free_port())]
    done = fork_server.run(command, cwd=tmp_path)
    assert done.returncode == 2
    assert last_line in done.stderr.splitlines()[-1]
    assert modules in done.stderr.splitlines()[-1]
    assert "is ready" not in done.stdout


def test_it_runs_beside_another_service_and_on_another_port(
    new_up: Callable[..., Up], new_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    other = new_redis()
    write_files_of_another_service(tmp_path)
    up = new_up("--agents", "my_agents", env=hostile_environment(other.url()))
    up.argv[up.argv.index("--port") + 1] = str(other.port)  # taken, as 6379 is by another Redis
    block = up.wait_until_ready()
    (url,) = set(re.findall(r"export CELERY_AGENTS_REDIS_URL=(\S+)", block))
    up.port = int(re.findall(r":(\d+)/", url)[0])
    assert up.port != other.port
    assert up.run("submit", "echo", "hello", "--wait") == "you said hello\n"
    assert re.search(r"Flower +http://127.0.0.1:\d+ +\(user and password: ", block)
    with other.client() as client:
        assert client.dbsize() == 0


def _info(port: int) -> str:
    import redis

    with redis.Redis(port=port) as client:
        return f"process_id:{client.info('server')['process_id']}"
