"""Child processes that end with this process, even when it is killed."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

# Standard input of the guard ends when this process ends, in whatever way; the guard then ends the children.
# A death signal (prctl) exists on Linux only, and it follows the thread that started a child, not the process.
_GUARD_SOURCE: Final = """
import os, signal, sys, time
pids = set()
for line in sys.stdin:
    verb, pid = line.split()
    (pids.add if verb == "add" else pids.discard)(int(pid))
for number in (signal.SIGTERM, signal.SIGKILL):
    for pid in pids:
        try:
            os.killpg(pid, number)
        except OSError:
            pass
    if pids and number == signal.SIGTERM:
        time.sleep(3)
"""


class ChildEnded(RuntimeError):
    """A child process ended too early. The message holds the end of its log."""


class Child:
    """A child process in a process group of its own, so that Ctrl-C in the terminal reaches its parent only.

    Args:
        name: For messages.
        command: Program and arguments.
        log: File to which its output is appended; None: this process's own output.
        environment: The whole environment; None: this process's.
        keep_open: File descriptors that the child inherits.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path | None,
        environment: Mapping[str, str] | None = None,
        *,
        keep_open: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.command = tuple(command)
        self.log = log
        with contextlib.ExitStack() as opened:
            output = None if log is None else opened.enter_context(log.open("ab"))
            self._process = subprocess.Popen(
                list(command),
                env=None if environment is None else dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
                start_new_session=True,
                pass_fds=tuple(keep_open),
            )
        _guard.send("add", self.pid)

    @property
    def pid(self) -> int:
        """Process id, which is its process group too."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal's number when a signal ended it."""
        return self._process.poll()

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self.exit_code is None

    def check_alive(self) -> None:
        """Check that the process still runs.

        Raises:
            ChildEnded: It has ended.
        """
        if not self.is_alive:
            raise ChildEnded(f"the {self.name} {self.describe_end()}{self.read_log_tail()}")

    def describe_end(self) -> str:
        """Say how the process has ended, such as `ended with exit code 1` or `was killed by SIGKILL`."""
        code = self.exit_code
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def read_log_tail(self, lines: int = 5) -> str:
        """Read the last lines of its log, indented, each on a new line; empty without a log."""
        if self.log is None or not self.log.exists():
            return ""
        with self.log.open(encoding="utf-8", errors="replace") as stream:
            return "".join(f"\n    {line.rstrip()}" for line in deque(stream, lines))

    def stop(self, timeout_seconds: float) -> None:
        """Send SIGTERM, and after the timeout SIGKILL to its whole group."""
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_seconds)
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL to what is left of its group and wait until the process has ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.is_alive or not is_taken(self.pid):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        _guard.send("drop", self.pid)

    def detach(self) -> None:
        """Let it run on when this process ends."""
        _guard.send("drop", self.pid)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)


def is_taken(pid: int) -> bool:
    """Whether the number of a process that has ended belongs to another one, which no group with members allows."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


class _GuardProcess:
    """A small process that ends the children when this process has ended; it starts with the first child."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def send(self, verb: str, pid: int) -> None:
        """Tell the guard to "add" or to "drop" a child."""
        process = self._process or self._start()
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(f"{verb} {pid}\n")
                process.stdin.flush()

    def _start(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", _GUARD_SOURCE],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        atexit.register(_close_input, self._process)
        return self._process


def _close_input(process: subprocess.Popen[str]) -> None:
    """End the input of the guard at an orderly exit, so that it ends the children that were not stopped."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


_guard: Final = _GuardProcess()
