"""A message takes the place of an answer, against real workers: what was asked does not run, and the model reads both."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from celery_agents import Approve
from celery_agents.tasks.client.job import Job
from celery_agents.worker.errors import RequestNotOpen
from celery_agents.worker.state import AgentState, Role, ToolOutcome
from celery_agents.worker.state.execution.answers import MESSAGE_CAME_FIRST

from support.agents import call, plan
from support.lab import Lab
from support.wait import wait_until

pytestmark = pytest.mark.timeout(240)

RACES = 16
POINTS = ("w0", "w1", "w3", "c1", "c6", "c7")
PATIENT = {"CELERY_AGENTS_ATTEMPTS_LIMIT": "100", "CELERY_AGENTS_SUSPECT_ATTEMPTS": "90"}
QUESTION = call("ask_user_question", questions=[{"question": "Which?", "options": [{"label": "a"}, {"label": "b"}]}])
_WRITER = """
import sys
from celery_agents import AgentClient
client = AgentClient()
for name in sys.argv[1:]:
    client.send_message(name, "not that one", idempotency_key="no")
    print(name, flush=True)
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("yielding") / "lab", agents="support.asking_agents") as started:
        started.worker()
        yield started


def ask(lab: Lab, *calls: dict[str, object]) -> Job:
    """A job that waits for what these calls ask."""
    job = lab.client.submit("asking", plan([*calls]))
    wait_until(lambda: lab.client.header(job.session_id).status == "waiting", "it waits", 30)
    return job


def effects(lab: Lab, work: str) -> int:
    return sum(e["kind"] == "effect" and e["effect"] and e["work"] == work for e in lab.ledger.entries())


def state_of(lab: Lab, job: Job) -> AgentState:
    return lab.client.show(job.session_id).state


def test_the_model_reads_the_call_that_did_not_run_and_the_message(lab: Lab) -> None:
    client = lab.client
    job = ask(lab, call("yielding", work="first"), QUESTION, call("pure", work="p"))
    asked = client.requests(job.session_id).requests
    assert [each.request.while_waiting for each in asked if each.request] == ["withdraw", "withdraw"]
    message = client.send_message(job.session_id, "not that one")
    assert (message.placed, message.result(timeout=60).status) == ("joins", "completed")
    assert message.result().execution_id == job.execution_id
    state = state_of(lab, job)
    said = [(each.role, each.content) for each in state.messages[-5:]]
    assert [role for role, _ in said] == [Role.TOOL, Role.TOOL, Role.TOOL, Role.USER, Role.ASSISTANT]
    assert [MESSAGE_CAME_FIRST in text for _, text in said] == [True, True, False, False, False]
    assert said[-2][1] == "not that one"
    assert state.execution is not None
    calls = state.execution.step_executions[0].step.tool_executions
    assert [each.outcome for each in calls] == [ToolOutcome.NOT_RUN, ToolOutcome.NOT_RUN, ToolOutcome.OK]
    assert {each.resolutions[0].note for each in calls[:2]} == {f"message {message.operation_id}"}
    assert effects(lab, "first") == 0
    with pytest.raises(RequestNotOpen):
        client.answer(job.session_id, {asked[0].summary.id: Approve()})


def test_an_approval_that_is_to_be_held_is_waited_for(lab: Lab) -> None:
    client = lab.client
    job = ask(lab, call("yielding", work="taken back"), call("refund", work="held"))
    client.send_message(job.session_id, "not that one")
    wait_until(lambda: client.header(job.session_id).status == "waiting", "it waits again", 30)
    (held,) = client.requests(job.session_id).requests
    assert held.summary.tool == "refund"
    client.answer(job.session_id, {held.summary.id: Approve()})
    assert job.result(timeout=60).status == "completed"
    assert (effects(lab, "taken back"), effects(lab, "held")) == (0, 1)


def test_an_approval_and_a_message_that_race_have_one_winner(lab: Lab) -> None:
    client = lab.client
    jobs = {f"race-{n}": client.submit("asking", plan([call("yielding", work=f"race-{n}")])) for n in range(RACES)}
    for job in jobs.values():
        wait_until(lambda job=job: client.header(job.session_id).status == "waiting", "it waits", 30)
    asked = {name: client.requests(job.session_id).requests[0].summary.id for name, job in jobs.items()}
    last, *others = reversed(jobs)
    client.answer(
        jobs[last].session_id, {asked[last]: Approve()}
    )  # of this one the answer comes first, whoever is slow
    env = {**os.environ, "CELERY_AGENTS_REDIS_URL": lab.store_url}
    words = [sys.executable, "-c", _WRITER, *(job.session_id for job in jobs.values())]
    writer = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env)
    assert writer.stdout is not None
    assert writer.stdout.readline()
    refused: set[str] = set()
    for name in others:
        try:
            client.answer(jobs[name].session_id, {asked[name]: Approve()})
        except RequestNotOpen:
            refused.add(name)
    assert writer.wait(30) == 0
    assert 0 < len(refused) < RACES, "both orders are seen"
    for name, job in jobs.items():
        assert job.result(timeout=60).status == "completed"
        assert effects(lab, name) == (name not in refused)
        wait_until(lambda job=job: len(users(state_of(lab, job))) == 2, "the message is delivered", 30)


def users(state: AgentState) -> list[str]:
    return [each.content for each in state.messages if each.role is Role.USER]


def test_workers_that_die_close_once_and_deliver_once(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab", agents="support.asking_agents") as lab:
        client, deaths = lab.client, 0
        jobs = [
            client.submit("asking", plan([call("yielding", work=f"kill-{n}"), call("keyed", work=f"kept-{n}")]))
            for n in range(3 * len(POINTS))
        ]
        for seed, point in enumerate(POINTS):
            worker = lab.worker(wait=False, crash=f"{point}:0.4:{seed}", **PATIENT)
            for job in jobs[3 * seed : 3 * seed + 3]:
                sleep_until(lambda job=job, worker=worker: rests(lab, job) or not worker.alive, 10)
                client.send_message(job.session_id, "not that one", idempotency_key="no")
            sleep_until(lambda worker=worker: not worker.alive, 2)
            deaths += not worker.alive
            worker.kill()
        assert deaths
        lab.worker(**PATIENT)
        for n, job in enumerate(jobs):
            wait_until(lambda job=job: rests(lab, job), "it waits or has ended", 60)
            if client.requests(job.session_id).requests:  # the message had come before the model was asked
                client.send_message(job.session_id, "not that one", idempotency_key="once more")
            assert job.result(timeout=60).status == "completed"
            state = state_of(lab, job)
            assert {*users(state)[1:]} == {"not that one"}
            assert (effects(lab, f"kill-{n}"), effects(lab, f"kept-{n}")) == (0, 1)
            closed = [each for each in client.store.sessions.events(job.session_id) if each.type == "request_cancelled"]
            assert len(closed) == 1


def rests(lab: Lab, job: Job) -> bool:
    return lab.client.header(job.session_id).status in ("waiting", "completed")


def sleep_until(is_over: Callable[[], object], seconds: float) -> None:
    """Sleep for so many seconds, or until something has happened."""
    end = time.monotonic() + seconds
    while not is_over() and time.monotonic() < end:
        time.sleep(0.02)
