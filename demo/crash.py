"""The demo with a worker that is killed -9 in the middle of a step: another worker finishes the job.

Two workers run. In its second step the agent files a note with a service that stores it and answers late; meanwhile the
waiting worker is killed. The effect has happened and is not recorded: the worst moment for a step to die. A ledger in
another process counts driver calls and effects.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ..tasks.local.child_processes import Child
from ..tasks.local.embedded_redis import free_port
from .ledger import DRIVER_CALL, EFFECT, URL_VARIABLE, Entry, Ledger
from .run import Follow, Research, dev_stack_for, say, submitted

if TYPE_CHECKING:
    from ..tasks.client.job import Result
    from ..tasks.local.dev_stack import DevStack

AGENTS_MODULE: Final = "celery_agents.demo.crash_agents"
WORKERS: Final = 2
_POLL_SECONDS: Final = 0.02
_PATIENCE_SECONDS: Final = 30.0


@dataclass
class WorkerKiller:
    """Kills, once, the worker whose tool has had its effect and waits for the answer."""

    ledger: Ledger
    workers: list[Child]
    at: float | None = None
    """Time of the kill (seconds since the epoch); None before."""
    victim: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Wait for the first effect, then kill its worker."""
        while not self.over.wait(_POLL_SECONDS):
            for entry in self.ledger.entries(EFFECT):
                self._kill(int(entry["pid"]), int(entry["step"]))
                return

    def _kill(self, pid: int, step: int) -> None:
        number = next(number for number, worker in enumerate(self.workers, start=1) if worker.pid == pid)
        self.at, self.victim = time.time(), pid
        os.kill(pid, signal.SIGKILL)
        say(f"  kill -9 worker {number} (pid {pid}) in step {step}: its note is filed, and not yet recorded")


@dataclass(frozen=True)
class CrashReport:
    """Counts of the ledger and the result of the session."""

    result: Result
    driver_calls: Counter[str]
    deliveries: list[Entry]
    killed_at: float | None

    @property
    def effects(self) -> int:
        """Number of notes that the service stored: one for each key."""
        return len({entry["key"] for entry in self.deliveries})

    @property
    def recovery_seconds(self) -> float | None:
        """Seconds from the kill until another worker called the same tool; None when none did."""
        later = [entry["at"] for entry in self.deliveries if entry["repeated"]]
        return later[0] - self.killed_at if later and self.killed_at is not None else None

    @property
    def holds(self) -> bool:
        """The job is done, every step's driver was asked once, the effect happened once, and a worker was killed."""
        once = set(self.driver_calls.values()) == {1} and len(self.driver_calls) == self.result.step_count
        return self.result.status == "completed" and once and self.effects == 1 and self.recovery_seconds is not None

    def lines(self) -> list[str]:
        """Write the report for people."""
        calls, again = sum(self.driver_calls.values()), len(self.deliveries)
        seconds = self.recovery_seconds
        return [
            "The ledger, kept by another process:",
            f"  steps committed     {self.result.step_count}",
            f"  driver calls        {calls}   the killed step's answer was in its journal: nobody asked for it again",
            f"  tool effects        {self.effects}   delivered {again} times under one idempotency key",
            "  recovered after     "
            + ("never" if seconds is None else f"{seconds:.1f} s")
            + "   (promised: within 10 s)",
        ]


def crash(research: Research, follow: Follow) -> CrashReport:
    """Run the job, kill its worker in the middle of a step, print the answer and the report."""
    with dev_stack_for(research, AGENTS_MODULE) as machine:
        ledger = _start_ledger(machine)
        workers = [machine.start_worker() for _ in range(WORKERS)]
        say(research.headline())
        say(
            f"Redis {machine.redis.url}, workers {' and '.join(str(each.pid) for each in workers)}, ledger {ledger.url}"
        )
        say(f"\nQuestion: {research.question}\n")
        killer = WorkerKiller(ledger, workers)
        job = submitted(machine, research.question)
        thread = threading.Thread(target=killer.run, daemon=True)
        thread.start()
        try:
            result = follow(job)
        finally:
            killer.over.set()
        report = _make_report(ledger, killer, result)
        say(f"\n{result.final_response}\n")
        say("\n".join(report.lines()))
        return report


def _make_report(ledger: Ledger, killer: WorkerKiller, result: Result) -> CrashReport:
    calls = Counter(str(entry["key"]) for entry in ledger.entries(DRIVER_CALL))
    return CrashReport(result=result, driver_calls=calls, deliveries=ledger.entries(EFFECT), killed_at=killer.at)


def _start_ledger(machine: DevStack) -> Ledger:
    """Start the ledger in a process of its own, which survives the workers."""
    port = free_port()
    ledger = Ledger(f"http://127.0.0.1:{port}/")
    file = machine.redis.data / "ledger.jsonl"
    command = [sys.executable, "-P", "-m", "celery_agents.demo.ledger", str(port), str(file)]
    child = machine.start("ledger", command)
    machine.environment[URL_VARIABLE] = ledger.url
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not is_ready(ledger):
        child.check_alive()
        if time.monotonic() > deadline:
            raise TimeoutError("the ledger did not start")
        time.sleep(_POLL_SECONDS)
    return ledger


def is_ready(ledger: Ledger) -> bool:
    """Whether the ledger answers."""
    try:
        ledger.entries()
    except OSError:
        return False
    return True
