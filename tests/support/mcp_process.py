"""The HTTP server of `support.mcp_server` as a process, with its ledger, and what tests ask of them."""

from __future__ import annotations

import contextlib
import json
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from celery_agents.tasks.client.job import Job
from celery_agents.tasks.observability.waiting_reasons import waiting_reason
from celery_agents.worker.state import RequestSummary, ToolOutcome

from .agents import plan
from .lab import Lab
from .processes import TESTS, Process, free_port
from .wait import wait_until
from .worker_process import WorkerProcess


class MCPServerProcess(Process):
    """The HTTP server; its ledger is that of the servers over standard streams, too."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.port, self.ledger = free_port(), directory / "ledger.jsonl"
        argv = [sys.executable, "-m", "support.mcp_server", "http", str(self.ledger), str(self.port)]
        super().__init__("mcp-server", argv, directory, {"PYTHONPATH": str(TESTS)})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def begin(self) -> None:
        """Start it, and wait until it answers."""
        self.start()
        wait_until(self._answers, "the MCP server answers", 30, details=self.tail)

    def _answers(self) -> bool:
        with contextlib.suppress(urllib.error.HTTPError):
            try:
                urllib.request.urlopen(self.url, timeout=5)
            except urllib.error.HTTPError:
                return True
            except OSError:
                return False
        return True

    def lines(self) -> list[dict[str, Any]]:
        """Every delivery in order."""
        return [json.loads(line) for line in self.ledger.read_text().splitlines()] if self.ledger.exists() else []

    def deliveries(self, *works: str) -> Counter[str]:
        return Counter(each["work"] for each in self.lines() if each["work"] in works)

    def effects(self, *works: str) -> Counter[str]:
        return Counter(each["work"] for each in self.lines() if each["work"] in works and each["effect"])

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Be killed, and come back at the end."""
        self.kill()
        try:
            yield
        finally:
            self.begin()

    @contextlib.contextmanager
    def closed_gate(self) -> Iterator[None]:
        """Hold back every tool that is called with `gate`."""
        gate = self.ledger.with_suffix(".gate")
        gate.touch()
        try:
            yield
        finally:
            gate.unlink(missing_ok=True)

    def worker_env(self) -> dict[str, str]:
        """What the workers' environment needs for the agents of `support.mcp_agents`."""
        return {"TEST_MCP_URL": self.url, "TEST_MCP_LEDGER": str(self.ledger)}


def submit(lab: Lab, *steps: Sequence[dict[str, Any]], agent: str = "ledgers", **driver: Any) -> Job:
    """Submit a plan to an agent with MCP tools."""
    return lab.client.submit(agent, plan(*map(list, steps), **driver))


def outcomes(lab: Lab, job: Job, step: int = 1) -> list[tuple[ToolOutcome, str]]:
    """What came of the calls of a step, with what the model reads."""
    executions = lab.client.show(job.session_id).state.steps[step - 1].tool_executions
    return [(each.outcome, each.as_message()) for each in executions]


def reason(lab: Lab, job: Job) -> str:
    """Why a session waits."""
    return waiting_reason(lab.client.store, lab.client.header(job.session_id))


def wait_for_lines(server: MCPServerProcess, works: Sequence[str], worker: WorkerProcess) -> None:
    """Wait until the servers have written these works down."""
    wait_until(
        lambda: set(works) <= set(server.deliveries(*works)), f"{works} reach their servers", 40, details=worker.tail
    )


def wait_for_question(lab: Lab, job: Job, text: str = "") -> RequestSummary:
    """Wait until a job asks exactly one thing, with this text in it, and its other calls have run."""

    def asks() -> bool:
        open_requests = lab.client.requests(job.session_id).requests
        is_waiting = lab.client.header(job.session_id).status == "waiting"
        return is_waiting and any(text in each.summary.text for each in open_requests)

    wait_until(asks, "it asks", 40)
    (asked,) = lab.client.requests(job.session_id).requests
    return asked.summary
