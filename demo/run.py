"""Run the demo: submit both jobs, kill both workers at the worst moment, tell what happens, compare."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..tasks.local.dev_stack import flower_is_installed, new_credentials
from ..worker.store import Event, Result
from .agents import NAME
from .ledger import Entry, Kind, Side
from .narrator import Narrator
from .plain_worker import TASK
from .report import Report, SideReport
from .shop import MESSAGE
from .stage import Stage, open_stage

if TYPE_CHECKING:
    from ..tasks.client.job import Job

_POLL_SECONDS: Final = 0.1
_PATIENCE_SECONDS: Final = 120.0
_FLOWER_PORT: Final = 5555

_NOTES: Final = """
Plain Celery was this quick because its visibility timeout is {seconds} s here; by default it waits an hour.
A key made from the task's id would save the second refund. The answers would still be paid twice.
"""

_NEXT_COMMANDS: Final = (
    ("up", "Redis, a worker with this agent, and Flower"),
    ('submit support "Order 18 arrived broken" --wait', "in another terminal"),
    ("new my_shop", "an agent of your own, with its test, settings and compose file"),
)
_COMMAND_WIDTH: Final = max(len(command) for command, _ in _NEXT_COMMANDS)


def run_demo(
    *, model: str | None, base_url: str | None, data: Path | None, keep: bool, say: Callable[[str], None]
) -> Report:
    """Run the demo and print the comparison.

    Args:
        model: Model id of pydantic-ai; None: a deterministic function in its place.
        base_url: A server that speaks the provider's protocol.
        data: Folder of Redis's data and the logs; None: a temporary one.
        keep: Leave the agent, Redis and Flower running, and say how to look at it.
        say: Takes a line for people.
    """
    how = f"with {model}" if model else "with a function in the model's place (no key needed)"
    say(f"A support agent refunds an order, {how}.")
    say("Twice the same job: on celery-agents, and as an ordinary Celery task with late acknowledgement.")
    say("Each has two workers. The one that refunds is killed -9 when the money is out and nobody has noted it.")
    say("\nstarting Redis, the ledger and four workers")
    with open_stage(model, base_url, data) as stage:
        say(f"\nCustomer: {MESSAGE}\n")
        performance = Performance(stage, say)
        report = performance.run()
        say(f"\nAnswer: {report.agents.answer}\n")
        say("\n".join(report.lines()))
        say(_NOTES.format(seconds=stage.visibility_seconds))
        if keep:
            _keep(stage, performance.job, say)
        say("Next:")
        for command, what in _NEXT_COMMANDS:
            say(f"  {_program()} {command:{_COMMAND_WIDTH}}  {what}")
        return report


class Performance:
    """Both jobs from their submit to their end.

    Args:
        stage: The processes.
        say: Takes a line for people.
    """

    def __init__(self, stage: Stage, say: Callable[[str], None]) -> None:
        self._stage = stage
        self._say = say
        self._seen_lines = 0
        self._seen_event: str | None = None
        self._killed: set[Side] = set()
        self._told: list[tuple[float, str]] = []
        self._ended_at: dict[Side, float] = {}
        self._began_at = time.time()
        self._narrator = Narrator(self._began_at)
        self.job: Job = stage.client.submit(NAME, MESSAGE)
        stage.plain_app.send_task(TASK, kwargs={"message": MESSAGE})

    def run(self) -> Report:
        """Tell what happens until both jobs have ended, and compare them.

        Raises:
            TimeoutError: One of them has not ended in two minutes.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while len(self._ended_at) < len(Side):
            events, entries = self._new_events(), self._new_entries()
            moments = [(event.at_ms / 1000, partial(self._tell_event, event)) for event in events]
            moments += [(entry.at, partial(self._tell_entry, entry)) for entry in entries]
            for _, tell in sorted(moments, key=lambda moment: moment[0]):
                tell()
            self._print_told()
            if time.monotonic() > deadline:
                missing = ", ".join(side for side in Side if side not in self._ended_at)
                logs = self._stage.stack.redis.data
                raise TimeoutError(f"not done after {_PATIENCE_SECONDS:g} s: {missing}; the logs were in {logs}")
            time.sleep(_POLL_SECONDS)
        return self._compare(self._stage.ledger.entries(), self.job.result(timeout=10.0))

    def _tell_entry(self, entry: Entry) -> None:
        self._tell(entry.at, self._narrator.describe(entry))
        if entry.kind is Kind.REFUND and entry.side not in self._killed:
            self._kill(entry)
        elif entry.kind is Kind.ENDED:
            self._ended_at[entry.side] = entry.at

    def _tell_event(self, event: Event) -> None:
        line = self._narrator.describe_event(event)
        if line is not None:
            self._tell(event.at_ms / 1000, line)
        if event.type in ("execution_completed", "execution_failed", "execution_stopped"):
            self._ended_at[Side.AGENTS] = event.at_ms / 1000

    def _new_entries(self) -> list[Entry]:
        entries = self._stage.ledger.entries()
        new, self._seen_lines = entries[self._seen_lines :], len(entries)
        return new

    def _new_events(self) -> list[Event]:
        events = self._stage.client.store.sessions.events(self.job.session_id)
        known = next((n for n, event in enumerate(events, start=1) if event.id == self._seen_event), 0)
        if events:
            self._seen_event = events[-1].id
        return events[known:]

    def _kill(self, entry: Entry) -> None:
        """Kill the worker that has just paid a refund out and waits for the ledger's reply."""
        self._killed.add(entry.side)
        worker = self._stage.workers[entry.side, entry.worker]
        worker.kill()
        killed_at = time.time()
        self._tell(
            killed_at, self._narrator.line(entry.side, killed_at, f"kill -9 {entry.worker} (process {worker.pid})")
        )
        other = next(name for side, name in self._stage.workers if side is entry.side and name != entry.worker)
        if entry.side is Side.AGENTS:
            lease = self._stage.client.settings.lease_seconds
            why = f"{other} waits until the lease of {entry.worker} has run out ({lease:g} s): it might only be slow"
        else:
            seconds = self._stage.visibility_seconds
            why = f"{other} gets the message after the visibility timeout ({seconds} s here, by default 1 h)"
        self._tell(killed_at, self._narrator.line(entry.side, killed_at, why))

    def _tell(self, at: float, line: str) -> None:
        self._told.append((at, line))

    def _print_told(self) -> None:
        """Print what was told in this pass by its time: a kill is later than what the other side did before it."""
        for _, line in sorted(self._told, key=lambda told: told[0]):
            self._say(line)
        self._told.clear()

    def _compare(self, entries: list[Entry], result: Result) -> Report:
        plain_answer = next((each.text for each in entries if each.kind is Kind.ENDED), "")
        return Report(
            agents=self._count(Side.AGENTS, entries, result.final_response),
            plain=self._count(Side.PLAIN, entries, plain_answer),
            steps=result.step_count if result.status == "completed" else 0,
        )

    def _count(self, side: Side, entries: list[Entry], answer: str) -> SideReport:
        return SideReport.count(side, entries, seconds=self._ended_at[side] - self._began_at, answer=answer)


def _program() -> str:
    """Name the command as this shell finds it: `make demo` runs it from an environment that is not active."""
    if shutil.which("celery-agents") is not None:
        return "celery-agents"
    path = Path(sys.executable).with_name("celery-agents")
    return min(str(path), os.path.relpath(path), key=len)


def _keep(stage: Stage, job: Job, say: Callable[[str], None]) -> None:
    """Leave our side running with Flower, and say how to look at it and how to end it.

    The plain workers end here: nothing asks them again, and one that is ended together with its Redis can need many
    seconds, because redis-py repeats each of its commands with growing pauses.
    """
    stack = stage.stack
    ours = [worker for (side, _), worker in stage.workers.items() if side is Side.AGENTS and worker.is_alive]
    for worker in stage.workers.values():
        if worker not in ours:
            stack.stop(worker)
    flower = None
    if flower_is_installed():
        credentials = new_credentials()
        flower = stack.start_flower(_FLOWER_PORT, credentials)
        say(f"Flower: {stack.flower_url}  (user and password: {credentials})")
    stack.keep()
    say("The agent runs on. Look at it:")
    say(f"  export CELERY_AGENTS_REDIS_URL={stack.redis.url}")
    say(f"  {_program()} show {job.session_id}")
    pids = [worker.pid for worker in ours]
    pids += [stage.ledger_process.pid, *([flower.pid] if flower else []), stack.redis.child.pid]
    say(f"End it with: kill {' '.join(map(str, pids))}\n")
