"""Commands of the product without the second that each of them takes to import it: forks of a process that has done so.

A command that is started here is a process of its own all the same, with its own session, environment, folder, files,
signals and exit code, and it can be killed and stopped like any other. Only what Python imports at its start is shared,
which is most of the CPU time of a short command. What needs a Python that starts from nothing is started without this:
`processes.Process(…, fresh=True)`, or `subprocess`.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

_SERVER = Path(__file__).with_name("forking.py")
# The client and the server of tools of the tests are killed and started again dozens of times, and import as much as a command.
_WORDS = (
    ["-m", "celery_agents"], ["-P", "-m", "celery_agents"], ["-m", "support.rewinding_client"], ["-m", "support.mcp_server"],
)  # fmt: skip
# Read by the interpreter or by libraries when they are imported: a process that has others than ours has to start anew.
_READ_AT_START = (
    "PYTHON", "LANG", "LC_", "LD_", "MALLOC_", "C_", "CELERY_", "DJANGO_", "FORKED_", "KOMBU_", "OTEL_", "PSYCOPG_", "SQLALCHEMY_",
)  # fmt: skip
# These are applied in the fork; `CELERY_AGENTS_…` are read by the product when a command runs.
_APPLIED = ("PYTHONFAULTHANDLER", "PYTHONPATH", "PYTHONUNBUFFERED")


class Forked:
    """A process that the server has forked, with what is used of a `subprocess.Popen`."""

    def __init__(self, connection: socket.socket, argv: Sequence[str]) -> None:
        self.args = list(argv)
        self.returncode: int | None = None
        self._connection, self._lock = connection, threading.Lock()
        self._lines = connection.makefile("rb")
        self.pid = self._read()

    def _read(self) -> int:
        line = self._lines.readline()
        assert line, f"the server of forks has ended: {self.args}"
        return int(line)

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end.

        Raises:
            subprocess.TimeoutExpired: It still runs.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self._wait(0.5 if end is None else min(0.5, max(0.0, end - time.monotonic())))) is None:
            if end is not None and time.monotonic() >= end:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _wait(self, seconds: float) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], seconds)[0]:
            with self._lock:
                if self.returncode is None:
                    self.returncode = self._read()
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


class ForkServer:
    """One process that has imported what a command or a worker imports at its start. It ends with this process."""

    def __init__(self, modules: Sequence[str] = ()) -> None:
        self._channel, theirs = socket.socketpair()
        kept = {name: value for name, value in os.environ.items() if name not in _APPLIED}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_SERVER), str(theirs.fileno()), *modules],
                env=kept, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        self._lock = threading.Lock()
        atexit.register(self.end)

    def end(self) -> None:
        """End it; what it has forked runs on."""
        self._channel.close()
        self._process.wait(10)

    def start(
        self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdin: int, stdout: int, stderr: int
    ) -> Forked:
        """Start a command as `subprocess.Popen` does, in a session of its own."""
        mine, theirs = socket.socketpair()
        request = json.dumps({"argv": list(argv), "cwd": str(cwd), "env": dict(env)}).encode()
        with theirs, self._lock:
            socket.send_fds(self._channel, [len(request).to_bytes(8, "big")], [stdin, stdout, stderr, theirs.fileno()])
            self._channel.sendall(request)
        return Forked(mine, argv)


_is_enabled = False


def enable() -> None:
    """Let this process fork commands from now on: the tests do, campaigns of faults and benchmarks do not."""
    global _is_enabled
    _is_enabled = sys.platform == "linux"


@cache
def _server(owner: int) -> ForkServer:
    return ForkServer()


def can_fork(argv: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a command starts as it would from nothing: it is ours, and starts with our interpreter and locale."""
    own = _is_enabled and argv[0] == sys.executable and any(list(argv[1 : len(w) + 1]) == w for w in _WORDS)
    return own and _read_at_start(env) == _read_at_start(os.environ)


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in env.items()
        if name.startswith(_READ_AT_START) and name not in _APPLIED and not name.startswith("CELERY_AGENTS_")
    }


def start(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdin: int,
    stdout: int,
    stderr: int,
    fresh: bool = False,
) -> Forked | subprocess.Popen[bytes]:
    """Start a command in a session of its own, by a fork where it can be one and `fresh` is False."""
    if not fresh and can_fork(argv, env):
        return _server(os.getpid()).start(argv, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr)
    return subprocess.Popen(
        argv, cwd=cwd, env=dict(env), stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
    )


def run(
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    text: str = "",
    timeout: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with `text` as its input; what it wrote, and its exit code.

    Raises:
        subprocess.TimeoutExpired: It ran longer, and was killed with its group.
    """
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        given.write(text.encode())
        given.seek(0)
        process = start(
            argv,
            cwd=cwd or Path.cwd(),
            env=os.environ if env is None else env,
            stdin=given.fileno(),
            stdout=out.fileno(),
            stderr=errors.fileno(),
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        said = [(each.seek(0), each.read().decode())[1] for each in (out, errors)]
        return subprocess.CompletedProcess(list(argv), code, *said)
