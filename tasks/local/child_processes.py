"""Processes that this process starts and that end with it, even when it is killed."""

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

# Its input ends when the process that started it ends, in whatever way; then the children have a moment to end.
# A death signal (prctl) would do on Linux only, and it follows the thread that started a child, not the process.
_WARDEN: Final = """
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
    """A child process ended before it was of use. The message holds the end of its log."""


class Child:
    """One child process in a process group of its own, so that Ctrl-C in the terminal reaches its parent only.

    Args:
        name: For messages.
        command: Program and arguments.
        log: File to which its output is appended; None: this process's own output.
        environment: The whole environment; None: this process's.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path | None, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
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
            )
        _warden.tell("add", self.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal's number when a signal ended it."""
        return self._process.poll()

    @property
    def is_alive(self) -> bool:
        return self.exit_code is None

    def must_live(self) -> None:
        """Do nothing while it runs.

        Raises:
            ChildEnded: It has ended.
        """
        if not self.is_alive:
            raise ChildEnded(f"the {self.name} ended with exit code {self.exit_code}{self.last_words()}")

    def last_words(self, lines: int = 5) -> str:
        """The end of its log, indented, on lines of their own; empty without a log."""
        if self.log is None or not self.log.exists():
            return ""
        with self.log.open(encoding="utf-8", errors="replace") as stream:
            return "".join(f"\n    {line.rstrip()}" for line in deque(stream, lines))

    def stop(self, patience_seconds: float) -> None:
        """SIGTERM, and SIGKILL for its whole group when it has not ended in time."""
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_seconds)
        self.kill()

    def kill(self) -> None:
        """SIGKILL its whole group and wait until it is gone; does nothing more when it has ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        _warden.tell("drop", self.pid)

    def leave(self) -> None:
        """Let it live on when this process ends."""
        _warden.tell("drop", self.pid)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)


class _Warden:
    """One small guard process for all children of this process, started with the first."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def tell(self, verb: str, pid: int) -> None:
        process = self._process or self._started()
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(f"{verb} {pid}\n")
                process.stdin.flush()

    def _started(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", _WARDEN],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        atexit.register(_leave, self._process)
        return self._process


def _leave(process: subprocess.Popen[str]) -> None:
    """At an orderly exit nothing is left to guard but what was not stopped; its guard goes on alone."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


_warden: Final = _Warden()
