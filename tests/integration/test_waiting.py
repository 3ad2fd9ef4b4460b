"""Steps that wait, with real workers: they are killed between the question and the answer, and all are started anew."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from celery_agents.tasks.client.job import Job
from celery_agents.worker.errors import RequestNotOpen
from celery_agents.worker.requests import TokenPurpose, TokenSigner, check_answer
from celery_agents.worker.state import (
    Answer,
    AnswerNote,
    Approve,
    Complete,
    Deny,
    GivenAnswer,
    Request,
    RequestKind,
)
from celery_agents.worker.store import AnswerAction, RequestFilter

from support.agents import call, driver_key, plan
from support.lab import Lab
from support.wait import wait_until

pytestmark = pytest.mark.timeout(240)

SECRET = "not-a-secret-but-long-enough"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    env = {"CELERY_AGENTS_TOKEN_SECRET": SECRET}
    with Lab(tmp_path / "lab", agents="support.asking_agents", env=env) as started:
        yield started


def submit(lab: Lab, *steps: list[dict[str, Any]]) -> Job:
    return lab.client.submit("asking", plan(*steps))


def open_requests(lab: Lab, job: Job) -> list[Request]:
    page = lab.client.store.requests.page(RequestFilter(session_id=job.session_id))
    return sorted((each.request for each in page.requests if each.request), key=lambda request: request.place)


def wait_for_requests(lab: Lab, job: Job, count: int) -> list[Request]:
    wait_until(lambda: lab.client.header(job.session_id).status == "waiting", "it waits", 30)
    requests = open_requests(lab, job)
    assert len(requests) == count
    return requests


def answer(lab: Lab, job: Job, answers: Mapping[str, GivenAnswer], by: str = "reviewer") -> None:
    about = AnswerNote(operation_id=uuid.uuid4().hex, by=by)
    lab.client.store.requests.answer(job.session_id, AnswerAction(answers=answers, about=about, check=check_answer))


def effects(lab: Lab) -> Counter[str]:
    """How many effects each piece of work had."""
    return Counter(entry["work"] for entry in lab.ledger.entries() if entry["kind"] == "effect" and entry["effect"])


def assert_model_was_asked_once_a_step(lab: Lab, job: Job, steps: int) -> None:
    asked = lab.ledger.deliveries()
    assert [asked[driver_key(job.execution_id, step)] for step in range(1, steps + 1)] == [1] * steps


def test_what_a_dead_worker_asked_is_answered_from_here_and_runs_once_on_another(lab: Lab) -> None:
    doomed = lab.worker()
    question = call(
        "ask_user_question", questions=[{"question": "Which?", "options": [{"label": "A"}, {"label": "B"}]}]
    )
    job = submit(lab, [call("refund", work="a"), question, call("keyed", work="b"), call("measured", work="c")])
    refund, asked, measured = wait_for_requests(lab, job, 3)
    assert effects(lab) == {"b": 1}, "a call that needs nobody runs at once"
    doomed.kill()
    # No worker runs: the answers are stored, and the message of the woken step waits in the queue.
    answer(lab, job, {measured.id: Answer({"size": "L"})})
    answer(lab, job, {refund.id: Approve({"work": "a, but less"}), asked.id: Answer({"Which?": "B"})})
    with pytest.raises(RequestNotOpen, match="by reviewer"):
        answer(lab, job, {refund.id: Deny("too late")}, by="auditor")
    lab.worker()
    assert job.result(timeout=60).status == "completed"
    assert effects(lab) == {"a, but less": 1, "b": 1, "c L": 1}
    assert_model_was_asked_once_a_step(lab, job, 2)
    (step,) = lab.client.show(job.session_id).state.steps[:1]
    texts = [made.as_message() for made in step.tool_executions]
    assert texts[0] == "a, but less done"
    assert '"values":["B"]' in texts[1]
    assert texts[3] == "c L done"


@pytest.mark.parametrize("point", ["w0", "w1", "w3", "c5"])
def test_a_worker_killed_at_any_point_asks_once_and_runs_what_was_approved_once(lab: Lab, point: str) -> None:
    is_early = point in ("w0", "w1")
    first = lab.worker(wait=False, crash=f"{point}:1:1" if is_early else "")
    job = submit(lab, [call("refund", work="a"), call("refund", work="b")])
    if is_early:
        first.wait(30)
        lab.worker()
    requests = wait_for_requests(lab, job, 2)
    if not is_early:
        first.kill()
        doomed = lab.worker(wait=False, crash=f"{point}:1:1")
        answer(lab, job, {requests[0].id: Approve()})
        doomed.wait(30)
        lab.worker()
        answer(lab, job, {requests[1].id: Approve()})
    else:
        answer(lab, job, {request.id: Approve() for request in requests})
    assert job.result(timeout=60).status == "completed"
    assert effects(lab) == {"a": 1, "b": 1}
    assert_model_was_asked_once_a_step(lab, job, 2)


def test_an_expiry_while_no_worker_is_up_does_what_it_says(lab: Lab) -> None:
    doomed = lab.worker()
    job = submit(lab, [call("dangerous", work="a")])
    wait_for_requests(lab, job, 1)
    doomed.kill()
    wait_until(lambda: lab.client.store.housekeeping.now_ms() > open_requests_end(lab, job), "it has expired", 10)
    assert effects(lab) == {}
    lab.worker()
    assert job.result(timeout=60).status == "completed"
    assert effects(lab) == {"a": 1}


def open_requests_end(lab: Lab, job: Job) -> int:
    (request,) = open_requests(lab, job)
    return request.expires_at_ms or 0


def test_a_service_completes_a_call_with_its_token_after_the_worker_that_started_it_died(lab: Lab) -> None:
    doomed = lab.worker()
    job = submit(lab, [call("render", work="film")])
    (request,) = wait_for_requests(lab, job, 1)
    assert request.kind is RequestKind.EXTERNAL
    doomed.kill()
    (started,) = [entry for entry in lab.ledger.entries() if entry["kind"] == "start"]
    claims = TokenSigner(SECRET).read(started["token"], TokenPurpose.COMPLETE, 0)
    assert (claims.session_id, claims.request_id) == (job.session_id, request.id)
    answer(lab, job, {claims.request_id: Complete({"file": "film.mp4"})}, by="renderer")
    lab.worker()
    assert job.result(timeout=60).status == "completed"
    (made,) = lab.client.show(job.session_id).state.steps[0].tool_executions
    assert made.value == {"file": "film.mp4"}
    assert [each.by for each in made.resolutions] == ["renderer"]
    assert len([entry for entry in lab.ledger.entries() if entry["kind"] == "start"]) == 1


def test_a_stop_of_a_waiting_job_ends_it_and_nothing_runs(lab: Lab) -> None:
    lab.worker()
    job = submit(lab, [call("refund", work="a"), call("keyed", work="b")])
    wait_for_requests(lab, job, 1)
    lab.client.stop(job.session_id)
    assert job.result(timeout=30).status == "stopped"
    assert effects(lab) == {"b": 1}
    assert open_requests(lab, job) == []
