"""The demo while its worker is killed -9 in the middle of a step: another carries on, and a ledger outside counts.

Two workers run. In its second step the agent reads files and files a note. The note's service writes it down and takes
its time to answer; meanwhile the worker that waits for it is killed. The effect has happened, nobody has recorded it:
the worst moment for a step to die.
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
class Killing:
    """Kills, once, the worker that has had an effect and waits to hear so."""

    ledger: Ledger
    workers: list[Child]
    at: float | None = None
    """When (seconds since the epoch); None: it has not happened."""
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
class Account:
    """What the ledger and the session say in the end."""

    result: Result
    driver_calls: Counter[str]
    deliveries: list[Entry]
    killed_at: float | None

    @property
    def effects(self) -> int:
        """Notes that were filed, as the service counts them: one for each key."""
        return len({entry["key"] for entry in self.deliveries})

    @property
    def recovery_seconds(self) -> float | None:
        """From the kill until another worker was at the same tool; None: that did not happen."""
        later = [entry["at"] for entry in self.deliveries if entry["repeated"]]
        return later[0] - self.killed_at if later and self.killed_at is not None else None

    @property
    def holds(self) -> bool:
        """The job is done, every step's driver was asked once, the effect happened once, and a worker was killed."""
        once = set(self.driver_calls.values()) == {1} and len(self.driver_calls) == self.result.step_count
        return self.result.status == "completed" and once and self.effects == 1 and self.recovery_seconds is not None

    def lines(self) -> list[str]:
        """The account for people."""
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


def crash(research: Research, follow: Follow) -> Account:
    """Run the job, kill its worker in the middle of a step, print the answer and the account."""
    with dev_stack_for(research, AGENTS_MODULE) as machine:
        ledger = _start_ledger(machine)
        workers = [machine.start_worker() for _ in range(WORKERS)]
        say(research.headline())
        say(
            f"Redis {machine.redis.url}, workers {' and '.join(str(each.pid) for each in workers)}, ledger {ledger.url}"
        )
        say(f"\nQuestion: {research.question}\n")
        killing = Killing(ledger, workers)
        job = submitted(machine, research.question)
        thread = threading.Thread(target=killing.run, daemon=True)
        thread.start()
        try:
            result = follow(job)
        finally:
            killing.over.set()
        account = _account(ledger, killing, result)
        say(f"\n{result.final_response}\n")
        say("\n".join(account.lines()))
        return account


def _account(ledger: Ledger, killing: Killing, result: Result) -> Account:
    calls = Counter(str(entry["key"]) for entry in ledger.entries(DRIVER_CALL))
    return Account(result, calls, ledger.entries(EFFECT), killing.at)


def _start_ledger(machine: DevStack) -> Ledger:
    """A process that no worker can take down."""
    port = free_port()
    ledger = Ledger(f"http://127.0.0.1:{port}/")
    file = machine.redis.data / "ledger.jsonl"
    command = [sys.executable, "-P", "-m", "celery_agents.demo.ledger", str(port), str(file)]
    child = machine.start("ledger", command)
    machine.environment[URL_VARIABLE] = ledger.url
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not answers(ledger):
        child.check_alive()
        if time.monotonic() > deadline:
            raise TimeoutError("the ledger did not start")
        time.sleep(_POLL_SECONDS)
    return ledger


def answers(ledger: Ledger) -> bool:
    """Whether the ledger is there."""
    try:
        ledger.entries()
    except OSError:
        return False
    return True
