"""Processes of ours: started in a group of their own, measured, ended by their own group and nothing else."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from .engine import NotMeasuredError


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Started:
    """One process and its children."""

    def __init__(
        self, argv: Sequence[str], folder: Path, name: str, env: Mapping[str, str] | None = None, *, pipes: bool = False
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                list(argv),
                cwd=folder,
                env={**os.environ, **(env or {})},
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else log,
                stderr=log,
                start_new_session=True,
            )
        self.pid = self._popen.pid

    def tail(self, lines: int = 25) -> str:
        return f"--- {self.log.name}\n" + "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def alive(self) -> bool:
        return self._popen.poll() is None

    def ask(self, line: str | None, timeout: float, needed: Sequence[Started] = ()) -> str:
        """Write a line (None: nothing), read a line.

        Args:
            timeout: Seconds.
            needed: Without these processes there will be no answer.
        Raises:
            NotMeasuredError: No answer in time, or the process or a needed one ended.
        """
        stdin, stdout = self._popen.stdin, self._popen.stdout
        assert stdin is not None
        assert stdout is not None
        if line is not None:
            stdin.write(line.encode() + b"\n")
            stdin.flush()
        end = time.monotonic() + timeout
        readable: list[object] = []
        while not readable and time.monotonic() < end and all(process.alive() for process in needed):
            readable, _, _ = select.select([stdout], [], [], 0.5)
        answer = stdout.readline() if readable else b""
        if not answer:
            raise NotMeasuredError(f"{self.name} gave no answer, given {timeout:.0f} s\n{self.tail()}")
        return answer.decode()

    def cpu_seconds(self) -> float:
        """User and system time of the process and its living children."""
        return sum(_cpu(process) for process in self._family())

    def peak_bytes(self) -> int:
        """Peak resident memory, each process's own peak added up."""
        return sum(_peak(process.pid) for process in self._family())

    def end(self, sig: signal.Signals = signal.SIGTERM, patience: float = 8.0) -> None:
        """Ask the process to end, then make sure that its group is gone."""
        if self.alive():
            self._popen.send_signal(sig)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(patience)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _family(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            mother = psutil.Process(self.pid)
            return [mother, *mother.children(recursive=True)]
        return []


def _cpu(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.NoSuchProcess):
        return sum(process.cpu_times()[:2])
    return 0.0


def _peak(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).memory_info().rss
    return 0


def wait_for(condition: object, why: str, timeout: float, *watched: Started) -> None:
    """Wait until `condition()` is true, or fail with the logs of the processes it depends on. `timeout` in seconds."""
    assert callable(condition)
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end or not all(process.alive() for process in watched):
            raise NotMeasuredError(
                f"{why}: not within {timeout:.0f} s\n" + "\n".join(process.tail() for process in watched)
            )
        time.sleep(0.02)
