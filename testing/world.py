"""Virtual time and the places where a simulated worker may come to harm. One thread, so that a run can be repeated."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from ..worker.errors import StoreUnavailable
from .faults import Fault, FaultKind

MOST_PAUSED: Final = 2


class WorkerKilled(BaseException):
    """The worker that ran this code is gone. Below everything that an agent's code may catch."""


class Mortal:
    """Something that can be killed.

    Attributes:
        is_busy: It is in the middle of something, perhaps standing still.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.is_busy = False


class World:
    """Time, faults and what has happened so far."""

    def __init__(self, start_ms: int, faults: Sequence[Fault] = ()) -> None:
        """
        Args:
            start_ms: Unix time in milliseconds at which it begins.
            faults: What goes wrong.

        `while_paused` is called while a worker stands still, with the second at which it wakes up.
        """
        self._start_ms = start_ms
        self.seconds = 0.0
        self.current: Mortal | None = None
        self.passed: list[str] = []
        self.fired: list[Fault] = []
        self.trace: list[str] = []
        self.while_paused: Callable[[float], None] = _nobody_else
        self._counts: Counter[str] = Counter()
        self._faults = {(fault.point, fault.nth): fault for fault in faults}
        self._paused = 0
        self._thread = threading.get_ident()

    def now_ms(self) -> int:
        """Unix time in milliseconds."""
        return self._start_ms + round(self.seconds * 1000)

    def monotonic(self) -> float:
        """Seconds since the beginning."""
        return self.seconds

    def go_on(self, seconds: float) -> None:
        """Let time pass."""
        self.seconds += seconds

    def say(self, text: str) -> None:
        """For whoever reads a failing run."""
        self.trace.append(f"{self.seconds:9.3f}  {text}")

    def at(self, point: str) -> None:
        """The current worker passes a place.

        Raises:
            WorkerKilled: It is dead, or dies here.
            StoreUnavailable: What it sends, or the reply, is lost.
        """
        if self.current is None or threading.get_ident() != self._thread:
            return
        fault = self.passing(point)
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
                pass  # of messages only; whoever delivers them asks `passing`

    def passing(self, point: str) -> Fault | None:
        """Note that a place is passed; the fault that is planned for it, which counts as fired."""
        if self.current is not None and not self.current.is_alive:
            raise WorkerKilled(self.current.name)
        self.passed.append(point)
        self._counts[point] += 1
        fault = self._faults.pop((point, self._counts[point]), None)
        if fault is not None:
            self.fired.append(fault)
            self.say(f"{self.current.name if self.current else 'the queue'}: {fault}")
        return fault

    def _pause(self, worker: Mortal, fault: Fault) -> None:
        """It stands still, and the others do what there is to do; they may stand still in their turn."""
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
        self.say(f"{worker.name} wakes up")


def _nobody_else(until: float) -> None:
    """There is no other worker."""
    del until
