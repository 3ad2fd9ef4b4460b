from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from celery_agents import AgentClient

from support.agents import call, driver_key, plan
from support.ledger import Ledger
from support.wait import wait_until
from support.worker_process import WorkerProcess

NewWorker = Callable[..., WorkerProcess]


@pytest.fixture
def client(redis_url: str) -> AgentClient:
    return AgentClient(redis_url)


def test_a_worker_is_ready_when_it_has_started(new_worker: NewWorker, client: AgentClient, ledger: Ledger) -> None:
    worker = new_worker(env=ledger.env)
    job = client.submit("planned", plan([call("keyed", work="a"), call("pure", work="b")], answer="both done"))
    assert job.result(timeout=20).final_response == "both done"
    assert ledger.deliveries()[driver_key(job.execution_id, 1)] == 1
    assert [entry["work"] for entry in ledger.entries() if entry["kind"] == "effect"] == ["a"]
    assert worker.stop() == 0


def test_a_killed_worker_is_gone_and_another_carries_on(
    new_worker: NewWorker, client: AgentClient, ledger: Ledger
) -> None:
    first = new_worker(env=ledger.env)
    job = client.submit("planned", plan([call("keyed", work="a", gate="hold")]))
    wait_until(lambda: [entry for entry in ledger.entries() if entry.get("work") == "a"], "the effect has happened")
    first.kill()
    assert first.exit_code == -signal.SIGKILL
    ledger.open("hold")
    new_worker(env=ledger.env)
    assert job.result(timeout=20).final_response == "done"
    key = next(entry["key"] for entry in ledger.entries() if entry["kind"] == "effect")
    assert (ledger.deliveries()[key], ledger.effects()[key]) == (2, 1)
    assert ledger.deliveries()[driver_key(job.execution_id, 1)] == 1


def test_a_worker_that_cannot_start_shows_why(new_worker: NewWorker) -> None:
    with pytest.raises(AssertionError, match="no_such_module"):
        new_worker(agents="no_such_module")
