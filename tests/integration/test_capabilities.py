"""A capability in real workers: its parts go from one to the other, and count each step once."""

from __future__ import annotations

from collections.abc import Callable

from celery_agents import AgentClient

from support.counting_agents import STEPS, Counted, Entries
from support.lab import QUICK
from support.wait import wait_until
from support.worker_process import WorkerProcess


def test_parts_count_each_step_once_across_two_workers_one_of_them_killed(
    new_worker: Callable[..., WorkerProcess], redis_url: str
) -> None:
    client = AgentClient(redis_url)
    doomed = new_worker(agents="support.counting_agents", env=dict(QUICK))
    job = client.submit("counting", "go")
    wait_until(lambda: client.show(job.session_id).state.step_count >= 5, "the first worker has made five steps", 30)
    new_worker(agents="support.counting_agents", env=dict(QUICK))
    doomed.kill()
    assert job.result(timeout=60).final_response == f"counted {STEPS - 1}"
    state = client.show(job.session_id).state
    assert state.part(Counted).steps == STEPS
    assert [entry.step for entry in state.part(Entries)] == list(range(1, STEPS + 1))
