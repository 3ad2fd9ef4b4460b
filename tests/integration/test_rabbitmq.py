"""Real workers whose broker is a real RabbitMQ that is restarted, or blocks those who publish."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import fork_server
from support.agents import call, plan
from support.lab import Lab
from support.rabbitmq import RABBITMQ_MISSING, RabbitmqServer, find_rabbitmq
from support.wait import wait_until

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(240),
    pytest.mark.skipif(find_rabbitmq() is None, reason=RABBITMQ_MISSING),
]


class RabbitmqLab(Lab):
    """A lab whose broker is this RabbitMQ."""

    def __init__(self, directory: Path, rabbitmq: RabbitmqServer, url: str) -> None:
        super().__init__(directory)
        self.rabbitmq = rabbitmq
        self._url = url

    @property
    def broker_url(self) -> str:
        return self._url


@pytest.fixture
def rabbitmq(tmp_path: Path) -> Iterator[RabbitmqServer]:
    server = RabbitmqServer(tmp_path / "rabbitmq")
    try:
        yield server.start()
    finally:
        server.end()


@pytest.fixture
def lab(tmp_path: Path, rabbitmq: RabbitmqServer) -> Iterator[RabbitmqLab]:
    with RabbitmqLab(tmp_path / "lab", rabbitmq, rabbitmq.url) as started:
        yield started


def test_a_worker_goes_on_when_rabbitmq_is_back_and_does_nothing_twice(lab: RabbitmqLab) -> None:
    worker = lab.worker(CELERY_AGENTS_CONCURRENCY="4")
    steps = [[call("unsafe", work="a")], [call("keyed", work="b"), call("unsafe", work="c")], [call("pure", work="d")]]
    jobs = [lab.client.submit("planned", plan(*steps, before=0.3)) for _ in range(30)]
    time.sleep(1.5)
    lab.rabbitmq.restart()
    assert {job.result(timeout=40).status for job in jobs} == {"completed"}, worker.tail()
    assert worker.alive
    assert "stands still" not in worker.text()
    unsafe = Counter(entry["key"] for entry in lab.ledger.entries() if entry.get("tool") == "unsafe")
    assert list(unsafe.values()) == [1] * 60


def test_a_submit_returns_while_rabbitmq_blocks_those_who_publish(lab: RabbitmqLab) -> None:
    worker = lab.worker()
    lab.rabbitmq.limit_memory(0.0001)
    env = {**os.environ, "CELERY_AGENTS_REDIS_URL": lab.store_url, "CELERY_AGENTS_BROKER_URL": lab.rabbitmq.url}
    command = [sys.executable, "-m", "celery_agents", "submit", "planned", plan(), "--session", "blocked"]
    submitted = fork_server.run(command, cwd=lab.directory, env=env)
    assert submitted.returncode == 0, submitted.stderr
    lab.rabbitmq.limit_memory(0.4)
    wait_until(lambda: lab.client.header("blocked").status == "completed", "the job is done", 40, details=worker.tail)


def test_workers_take_steps_from_queues_that_are_quorum_queues_by_the_default_of_their_virtual_host(
    tmp_path: Path, rabbitmq: RabbitmqServer
) -> None:
    """Celery does not learn of such a default: it ended at its first consumer, and so did its successors."""
    url = rabbitmq.add_vhost("jobs of ours/%", "quorum")
    steps = [[call("unsafe", work="a")], [call("keyed", work="b"), call("unsafe", work="c")]]
    with RabbitmqLab(tmp_path / "lab", rabbitmq, url) as lab:
        doomed = lab.worker(CELERY_AGENTS_CRASH="c8:1:4")
        jobs = [lab.client.submit("planned", plan(*steps)) for _ in range(10)]
        doomed.wait(40)
        lab.worker()
        assert {job.result(timeout=60).status for job in jobs} == {"completed"}, lab.workers[-1].tail()
        unsafe = Counter(entry["key"] for entry in lab.ledger.entries() if entry.get("tool") == "unsafe")
        assert set(unsafe.values()) == {1}


def test_a_worker_that_rabbitmq_refuses_says_so(tmp_path: Path, rabbitmq: RabbitmqServer) -> None:
    with RabbitmqLab(tmp_path / "lab", rabbitmq, rabbitmq.url.replace("guest:guest", "guest:secret")) as lab:
        worker = lab.worker(wait=False)
        assert worker.wait(30) == 2, worker.tail()
        assert "CELERY_AGENTS_BROKER_URL: RabbitMQ refuses this worker: " in worker.text()
        assert "Traceback" not in worker.text()
        assert "secret" not in worker.text()
