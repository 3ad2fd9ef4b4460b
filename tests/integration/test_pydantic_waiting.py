"""Deferred calls of pydantic-ai in real workers that are killed: nothing is asked twice, nothing is done twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_agents import AgentClient, Answer, Approve, Job
from celery_agents.worker.errors import ActionRefused, InvalidInput
from celery_agents.worker.state import Complete, Request

from support.lab import Lab

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore:no worker has registered agent"),  # jobs are there before the first worker
]

SECRET = "not-a-secret-but-long-enough"
ENV = {"CELERY_AGENTS_TOKEN_SECRET": SECRET}
AGENTS = ("refunds", "guarded", "renders", "browser", "curious", "asking_big", "asking_render", "reviewed")
QUICK = ("w0", "w3")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab(tmp_path / "lab", agents="support.pydantic_waiting", env=ENV) as started:
        yield started


def reply_to(request: Request) -> Any:
    """What a person, or a service, says to a request of these agents."""
    match request.kind:
        case "approval" if request.tool == "refund":
            return Approve(args={"order": 7, "cents": 300})
        case "approval":
            return Approve()
        case "question":
            return Answer("green")
        case _:
            return Complete({"file": "sunset.png"})


def is_going_on(client: AgentClient, job: Job) -> bool:
    return client.header(job.session_id).status not in ("completed", "failed", "stopped")


def answer_all(client: AgentClient, jobs: dict[str, Job], seconds: float = 90) -> dict[str, set[str]]:
    """Answer whatever is asked until all jobs have ended; the ids of the requests, by agent."""
    asked: dict[str, set[str]] = {name: set() for name in jobs}
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(is_going_on(client, job) for job in jobs.values()):
        for name, job in jobs.items():
            for found in client.requests(session_id=job.session_id).requests:
                assert found.request is not None
                asked[name].add(found.request.id)
                try:
                    client.answer(job.session_id, {found.request.id: reply_to(found.request)}, by="tester")
                except (ActionRefused, InvalidInput):
                    continue  # it ended meanwhile
        time.sleep(0.1)
    return asked


@pytest.mark.parametrize(
    "point",
    [
        point if point in QUICK else pytest.param(point, marks=pytest.mark.long)
        for point in ("c2", "c3", "c4", "c5", "c7", "w0", "w1", "w3")
    ],
)
def test_every_kind_of_deferred_call_survives_a_kill(lab: Lab, point: str) -> None:
    chance = 1 if point.startswith("w") else 0.5
    doomed = lab.worker(wait=False, crash=f"{point}:{chance}:7")
    client = lab.client
    jobs = {name: client.submit(name, "go") for name in AGENTS}
    began = time.monotonic()
    while doomed.alive and time.monotonic() < began + 60:
        answer_all(client, jobs, seconds=0.5)
    assert not doomed.alive, "the worker was not killed"
    lab.worker()
    asked = answer_all(client, jobs)
    ended = {name: job.result(timeout=60) for name, job in jobs.items()}
    assert {result.status for result in ended.values()} == {"completed"}, ended
    effects = lab.ledger.deliveries()
    assert all(count == 1 for count in effects.values()), effects
    refunded = [key for key in effects if key.startswith("refund")]
    assert len(refunded) <= 2  # of refunds and asking_big, each once at most: their effect class is unsafe
    assert all(len(ids) <= 2 for ids in asked.values())


def test_a_service_that_has_the_token_brings_the_result_to_another_worker(lab: Lab) -> None:
    first = lab.worker()
    client = lab.client
    job = client.submit("asking_render", "go")
    (found,) = wait_for_requests(client, job)
    first.kill_alone()
    assert client.complete(client.token(found), "sunset.png").outcome in ("woken", "recorded")
    lab.worker()
    result = job.result(timeout=60)
    assert (result.status, result.final_response) == ("completed", "done")


def wait_for_requests(client: AgentClient, job: Job) -> Any:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = client.requests(session_id=job.session_id).requests
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("nobody was asked")
