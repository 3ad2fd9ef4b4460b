"""Processes of a test: each in its own group with a log file, and none left over, even when pytest is killed."""

from __future__ import annotations

import abc
import atexit
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from celery_agents.tasks.local.child_processes import is_taken

from . import fork_server
from .wait import wait_until

TESTS = Path(__file__).resolve().parents[1]

# Below the range of outgoing connections: a server that was stopped finds its port free when it comes back.
_PORTS = range(20_000, 32_000)

# Kills the groups it was told of once its input ends, which also happens when the telling process was killed.
_WARDEN = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    verb, group = line.split()
    (groups.add if verb == "add" else groups.discard)(int(group))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


# The ports that were given last, each held for this process: a UDP socket takes the number from nobody who speaks TCP.
_given: deque[socket.socket] = deque(maxlen=500)


def free_port() -> int:
    """A TCP port of the loopback interface on which nobody listens, and which no other caller was given lately.

    Also another process gets none of the last 500 that this one was given, for as long as this one lives.
    """
    for port in random.sample(_PORTS, 200):
        claim = socket.socket(type=socket.SOCK_DGRAM)
        with socket.socket() as probe, contextlib.suppress(OSError):
            claim.bind(("127.0.0.1", port))
            probe.bind(("127.0.0.1", port))
            if len(_given) == _given.maxlen:
                _given.popleft().close()
            _given.append(claim)
            return port
        claim.close()
    raise OSError(f"no free port among 200 tried between {_PORTS.start} and {_PORTS.stop}")


def is_gone(pid: int) -> bool:
    """Whether a process has ended, also when nobody has waited for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


class _Warden:
    """One guard process for this process and every process that it starts."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0

    def tell(self, verb: str, group: int) -> None:
        if self._process is None or self._owner != os.getpid():
            self._owner = os.getpid()
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-c", _WARDEN],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                text=True,
            )
            atexit.register(self._leave, self._process)
        assert self._process.stdin is not None
        self._process.stdin.write(f"{verb} {group}\n")
        self._process.stdin.flush()

    def _leave(self, process: subprocess.Popen[str]) -> None:
        if self._owner == os.getpid() and process.stdin is not None:
            process.stdin.close()
            process.wait(timeout=10)


_warden = _Warden()
_running: dict[int, Process] = {}


def running() -> list[Process]:
    """The processes started here that have not been ended."""
    return list(_running.values())


class Process:
    """One child process in its own process group.

    Args:
        name: For messages and the name of the log file.
        argv: The command.
        directory: Working directory and home of the log `<name>.log`, to which stdout and stderr are appended.
        env: Added to this process's environment; a value None takes a name away.
        fresh: Start Python from nothing, also for a command that `fork_server` could fork.

    Attributes:
        prefix: Words before the command, such as those that run it on another host.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        directory: Path,
        env: Mapping[str, str | None] | None = None,
        *,
        fresh: bool = False,
    ) -> None:
        self.name = name
        self.argv = list(argv)
        self.prefix: Sequence[str] = ()
        self.directory = directory
        self.env = dict(env or {})
        self.log = directory / f"{name}.log"
        self.fresh = fresh
        self._popen: subprocess.Popen[bytes] | fork_server.Forked | None = None

    def start(self) -> None:
        """Start it; at once, without waiting for anything it does.

        Raises:
            AssertionError: It is running already.
        """
        assert not self.alive, f"{self.name} is running already"
        env = {**os.environ, **self.env}
        with self.log.open("ab") as log, open(os.devnull, "rb") as nothing:
            self._popen = fork_server.start(
                [*self.prefix, *self.argv],
                cwd=self.directory,
                env={name: value for name, value in env.items() if value is not None},
                stdin=nothing.fileno(),
                stdout=log.fileno(),
                stderr=log.fileno(),
                fresh=self.fresh,
            )
        _running[self._popen.pid] = self
        _warden.tell("add", self._popen.pid)

    @property
    def pid(self) -> int:
        assert self._popen is not None, f"{self.name} was never started"
        return self._popen.pid

    @property
    def alive(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal's number when a signal ended it."""
        return None if self._popen is None else self._popen.poll()

    def text(self) -> str:
        """All it printed, in every run."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def signal(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal to the process, or to what is left of its group; nothing when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            if group and (self.alive or not is_taken(self.pid)):
                os.killpg(self.pid, number)
            elif not group and self._popen is not None:
                self._popen.send_signal(number)

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        self.signal(signal.SIGTERM)

    def pause(self) -> None:
        """SIGSTOP: the process stands still, its connections stay."""
        self.signal(signal.SIGSTOP, group=True)

    def resume(self) -> None:
        self.signal(signal.SIGCONT, group=True)

    def kill(self) -> None:
        """SIGKILL the whole group and wait until it is gone."""
        self.signal(signal.SIGKILL, group=True)
        self.wait(10)

    def wait(self, timeout: float) -> int:
        """Wait for the process to end by itself and return its exit code.

        Raises:
            AssertionError: It still runs after `timeout` seconds; the message holds the end of its log.
        """
        assert self._popen is not None, f"{self.name} was never started"
        try:
            code = self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {timeout:g} s\n{self.tail()}") from None
        self._forget()
        return code

    def end(self, patience: float = 5.0) -> None:
        """End it and its group: SIGTERM, and SIGKILL after `patience` seconds. Does nothing when never started."""
        if self._popen is None:
            return
        self.resume()
        self.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(patience)
        self.signal(signal.SIGKILL, group=True)
        self._popen.wait()
        self._forget()

    def tail(self, lines: int = 40) -> str:
        last = "\n".join(self.text().splitlines()[-lines:])
        return f"--- end of {self.log} ---\n{last}"

    def wait_for_text(self, text: str, timeout: float = 15.0, *, since: int = 0) -> None:
        """Wait until its log holds `text` behind the first `since` characters.

        Raises:
            AssertionError: Not in time, or the process ended before; with the end of the log.
        """

        def seen_or_dead() -> bool:
            return text in self.text()[since:] or not self.alive

        wait_until(seen_or_dead, f"{self.name} prints {text!r}", timeout, details=self.tail)
        assert text in self.text()[since:], f"{self.name} ended with {self.exit_code} before {text!r}\n{self.tail()}"

    def _forget(self) -> None:
        if _running.pop(self.pid, None) is not None:
            _warden.tell("drop", self.pid)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class ProcessGroup(abc.ABC):
    """Several processes that serve together, for a `with` block; a start that fails leaves none behind."""

    @abc.abstractmethod
    def start(self) -> Self:
        """Start all, and wait until they serve."""

    @abc.abstractmethod
    def end(self) -> None:
        """End all, whatever state they are in."""

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.end()
            raise

    def __exit__(self, *_: object) -> None:
        self.end()
