"""Answers that were paid for, in real workers that die while they read them."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from celery_agents import AgentClient

from support.agents import driver_key
from support.deadly_agents import READ, STEPS
from support.lab import QUICK
from support.ledger import Ledger
from support.worker_process import WorkerProcess


def test_an_answer_that_kills_who_reads_it_is_asked_for_once(
    new_worker: Callable[..., WorkerProcess], redis_url: str, ledger: Ledger, tmp_path: Path
) -> None:
    env = {**ledger.env, **QUICK, READ: str(tmp_path)}
    job = AgentClient(redis_url).submit("deadly", "go")
    for _ in range(STEPS):
        worker = new_worker(agents="support.deadly_agents", env=env, wait=False)
        worker.wait(30)
        assert worker.exit_code == -signal.SIGKILL
    new_worker(agents="support.deadly_agents", env=env)
    assert job.result(timeout=30).final_response == "done"
    assert ledger.deliveries() == {driver_key(job.execution_id, step): 1 for step in range(1, STEPS + 1)}
