"""`World`: virtual time and the faults of a run. It uses one thread, so that every run has the same order."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from ..worker.errors import StoreUnavailable
from .faults import Fault, FaultKind

MOST_PAUSED: Final = 2


class WorkerKilled(BaseException):
    """The simulated worker has died. A BaseException, so that an agent's code does not catch it."""


class SimulatedProcess:
    """A simulated process that a fault can kill or pause.

    Attributes:
        is_busy: It runs a step; it may be paused in it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.is_busy = False


class World:
    """Virtual time, planned faults, and a trace of what has happened."""

    def __init__(self, start_ms: int, faults: Sequence[Fault] = ()) -> None:
        """
        Args:
            start_ms: Unix time in milliseconds at which the run starts.
            faults: Planned faults.

        `while_paused` is called while a worker is paused, with the second at which the pause ends.
        """
        self._start_ms = start_ms
        self.seconds = 0.0
        self.current: SimulatedProcess | None = None
        self.passed: list[str] = []
        self.fired: list[Fault] = []
        self.trace: list[str] = []
        self.while_paused: Callable[[float], None] = _run_no_other
        self._counts: Counter[str] = Counter()
        self._faults = {(fault.point, fault.nth): fault for fault in faults}
        self._paused = 0
        self._thread = threading.get_ident()

    def now_ms(self) -> int:
        """Unix time in milliseconds."""
        return self._start_ms + round(self.seconds * 1000)

    def monotonic(self) -> float:
        """Seconds since the start."""
        return self.seconds

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.seconds += seconds

    def record(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.seconds:9.3f}  {text}")

    def at(self, point: str) -> None:
        """Let the current worker pass a point, and apply the fault that is planned there.

        Raises:
            WorkerKilled: The worker is dead, or dies here.
            StoreUnavailable: The command or its reply is lost.
        """
        if self.current is None or threading.get_ident() != self._thread:
            return
        fault = self.pass_point(point)
        if fault is None:
            return
        match fault.kind:
            case FaultKind.KILL:
                self.current.is_alive = False
                raise WorkerKilled(self.current.name)
            case FaultKind.PAUSE:
                self._pause(self.current, fault)
            case FaultKind.REFUSE | FaultKind.LOSE_REPLY:
                raise StoreUnavailable(f"simulated: {fault}")
            case FaultKind.LOSE_MESSAGE | FaultKind.DOUBLE_MESSAGE:
                pass  # faults of messages; the delivery calls `pass_point` itself

    def pass_point(self, point: str) -> Fault | None:
        """Count a passed point, and return the fault that is planned for it, which counts as fired."""
        if self.current is not None and not self.current.is_alive:
            raise WorkerKilled(self.current.name)
        self.passed.append(point)
        self._counts[point] += 1
        fault = self._faults.pop((point, self._counts[point]), None)
        if fault is not None:
            self.fired.append(fault)
            self.record(f"{self.current.name if self.current else 'the queue'}: {fault}")
        return fault

    def _pause(self, worker: SimulatedProcess, fault: Fault) -> None:
        """Pause the worker while the others work; they may be paused in turn."""
        until = self.seconds + fault.seconds
        if self._paused < MOST_PAUSED:
            self._paused += 1
            self.current = None
            try:
                self.while_paused(until)
            finally:
                self.current = worker
                self._paused -= 1
        self.seconds = max(self.seconds, until)
        self.record(f"{worker.name} continues")


def _run_no_other(until: float) -> None:
    """Do nothing: there is no other worker."""
    del until
