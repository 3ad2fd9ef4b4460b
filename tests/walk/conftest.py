"""A newcomer's machine: the wheel in a fresh environment, another service around it, and other Redis servers."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.documents import ROOT
from support.hostile import hostile_environment, write_files_of_another_service
from support.processes import Process
from support.product import tracked_files
from support.redis_server import RedisServer


@dataclass
class Newcomer:
    """Types commands in a shell, in an environment that is set up for another service.

    Attributes:
        bin: The programs of the fresh environment.
        home: Where it works.
        environment: All variables; `PYTHONPATH` is not among them.
        transcript: What was typed and printed, for the message of a failure.
    """

    bin: Path
    home: Path
    environment: dict[str, str]
    transcript: list[str] = field(default_factory=list)
    _terminals: list[Process] = field(default_factory=list)

    def type(self, line: str, *, folder: Path | None = None, expect: int = 0, timeout: float = 120) -> str:
        """Type a line, wait for its end, and return what it printed to standard output."""
        done = subprocess.run(
            f"set -o pipefail; {line}", shell=True, cwd=folder or self.home, env=self.environment, capture_output=True, text=True,
            timeout=timeout, check=False, executable="/bin/bash",
        )  # fmt: skip
        self.transcript.append(f"$ {line}\n{done.stdout}{done.stderr}")
        assert done.returncode == expect, "\n".join(self.transcript[-3:]) + "\n".join(t.tail() for t in self._terminals)
        return done.stdout

    def open_terminal(self, line: str, *, folder: Path | None = None, until: str, timeout: float = 60) -> Process:
        """Start a command that stays, and wait until it has printed a text."""
        name = f"terminal-{len(self._terminals) + 1}"
        terminal = Process(name, ["/bin/bash", "-c", f"exec {line}"], folder or self.home, dict(self.environment))
        self._terminals.append(terminal)
        terminal.env["PYTHONPATH"] = None  # type: ignore[assignment]
        terminal.start()
        terminal.wait_for_text(until, timeout)
        return terminal

    def export(self, assignment: str) -> None:
        """Do what `export NAME=value` does."""
        name, _, value = shlex.split(assignment.removeprefix("export "))[0].partition("=")
        self.environment[name] = value

    def leave(self) -> None:
        """Close all terminals."""
        for terminal in reversed(self._terminals):
            terminal.end(patience=15.0)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from what is tracked."""
    clone, target = tmp_path_factory.mktemp("clone") / "celery-agents", tmp_path_factory.mktemp("wheel")
    for path in tracked_files():
        (clone / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, clone / path)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(target), str(clone)]
    subprocess.run(command, check=True, timeout=300)
    (found,) = target.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def fresh_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with the wheel and its extras, from what the locks name."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=True)
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    (extras,) = re.findall(r"pip install 'celery-agents\[(.+)\]'", (ROOT / "docs" / "quickstart.md").read_text())
    constraints = home / "constraints.txt"
    freeze = subprocess.run(
        [sys.executable, "-m", "pip", "freeze", "--exclude-editable"], capture_output=True, text=True, check=True
    )
    constraints.write_text(freeze.stdout)
    more = ["pytest", "fastapi", "uvicorn", "mypy"]
    subprocess.run([*pip, "-c", str(constraints), f"{wheel}[{extras}]", *more], check=True, timeout=600)
    return home / "bin"


@pytest.fixture(scope="session")
def other_services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RedisServer]]:
    """Another service's Redis, and a Redis on the default port when nobody has it."""
    with contextlib.ExitStack() as running:
        servers = {"other": running.enter_context(RedisServer(tmp_path_factory.mktemp("other-redis")))}
        if _is_free(6379):
            servers["default"] = running.enter_context(RedisServer(tmp_path_factory.mktemp("default"), port=6379))
        yield servers


@pytest.fixture
def newcomer(fresh_environment: Path, other_services: dict[str, RedisServer], tmp_path: Path) -> Iterator[Newcomer]:
    home = tmp_path / "home"
    home.mkdir()
    write_files_of_another_service(home)
    kept = ("HOME", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE", "PIP_INDEX_URL", "PIP_CONFIG_FILE")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment |= hostile_environment(other_services["other"].url())
    environment |= {
        "PATH": f"{fresh_environment}:/usr/local/bin:/usr/bin:/bin",
        "PYTHONUNBUFFERED": "1",
        "NO_PROXY": "127.0.0.1,localhost",
        "COLUMNS": "120",
    }
    assert "PYTHONPATH" not in environment
    someone = Newcomer(bin=fresh_environment, home=home, environment=environment)
    yield someone
    someone.leave()
    for name, server in other_services.items():
        with server.client() as client:
            assert client.dbsize() == 0, f"written into the {name} Redis: {client.keys('*')[:10]}"


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@pytest.fixture(autouse=True)
def _no_process_left_over() -> None:
    """The servers of these tests live as long as the session; `newcomer` closes its own terminals."""
