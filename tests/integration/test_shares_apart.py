"""Fair shares where the broker is a Redis of its own: each server is killed, and comes back with what it has kept."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_agents.flow import FairShares
from celery_agents.tasks.client.job import Job
from celery_agents.tasks.observability.doctor.checks import examine
from celery_agents.worker.errors import StoreUnavailable

from support.lab import Lab
from support.redis_server import RedisServer
from support.shared_agents import work
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(180), pytest.mark.filterwarnings("ignore:no worker has registered")]


class LabApart(Lab):
    """A lab whose broker is another Redis than the store, and keeps nothing."""

    def __init__(self, directory: Path) -> None:
        options = {"append_only": "always"}
        env = {"CELERY_AGENTS_CONCURRENCY": "4"}
        super().__init__(directory, agents="support.shared_agents", redis_options=options, env=env)
        self.queues = RedisServer(directory / "queues")

    def __enter__(self) -> LabApart:
        self._closing.append(self.queues.end)
        self.queues.start()
        super().__enter__()
        return self

    @property
    def broker_url(self) -> str | None:
        return self.queues.url()

    def submit_for(self, customer: str, number: int) -> list[Job]:
        """Submit jobs of a customer."""
        text = work(customer, steps=2, seconds=0.2)
        return [self.client.submit("shared", text, labels={"customer": customer}) for _ in range(number)]

    def ended_of(self, jobs: list[Job]) -> int:
        return sum(self.client.header(job.session_id).status == "completed" for job in jobs)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[LabApart]:
    with LabApart(tmp_path / "lab") as started:
        started.worker()
        started.client.wait_for_agent("shared")
        started.client.shares.set(FairShares("customer"))
        yield started


def test_a_dead_worker_changes_no_share_and_its_steps_are_found_beside_a_backlog(lab: LabApart) -> None:
    other = lab.worker()
    heavy, light = lab.submit_for("heavy", 100), lab.submit_for("light", 10)
    assert {each.share for each in lab.client.shares.get().waiting} >= {"heavy"}
    sessions = {job.session_id for job in light}
    wait_until(lambda: any(held[0] in sessions for held in lab.death(other).held), "it runs a step of it", 30)
    other.kill()
    for job in light:
        assert job.result(timeout=60).status == "completed"
    assert lab.ended_of(heavy) < 80
    found = {each.name: each.what for each in examine(lab.client.settings)}
    assert "the oldest for" in found["queue"]
    assert "heavy" in found["shares"]


def test_what_a_killed_broker_or_store_has_lost_is_published_again(lab: LabApart) -> None:
    jobs = lab.submit_for("heavy", 24) + lab.submit_for("light", 4)
    wait_until(lambda: lab.ended_of(jobs) > 2, "steps run", 30)
    lab.queues.client().set("before", 1)
    lab.queues.kill()
    lab.queues.start()
    assert not lab.queues.client().exists("before"), "it has kept nothing"
    wait_until(lambda: lab.ended_of(jobs) > 10, "they go on", 60)
    lab.server.kill()
    lab.server.start()
    wait_until(lambda: lab.ended_of(jobs) == len(jobs), "all of them end", 60, ignoring=(StoreUnavailable,))
    assert lab.client.shares.get().waiting == ()


def test_turns_of_a_store_that_came_back_empty_stand_in_nobodys_way(lab: LabApart) -> None:
    lost = lab.submit_for("heavy", 24)
    wait_until(lambda: lab.ended_of(lost) > 2, "steps run", 30)
    lab.server.kill()
    shutil.rmtree(lab.server.directory / "appendonlydir", ignore_errors=True)
    (lab.server.directory / "appendonly.aof").unlink(missing_ok=True)
    lab.server.start()
    lab.client.wait_for_agent("shared", timeout=30)
    lab.client.shares.set(FairShares("customer"))
    began = time.monotonic()
    for job in lab.submit_for("light", 4):
        assert job.result(timeout=60).status == "completed"
    assert time.monotonic() - began < 20
    wait_until(lambda: lab.client.shares.get().waiting == (), "their turns are taken out", 30)
