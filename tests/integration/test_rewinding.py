"""Real sessions are taken back to a step, in each way there is, beside workers that are killed."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from celery_agents import AgentState, AsyncAgentClient
from celery_agents.tasks.app import create_app
from celery_agents.worker.errors import ActionRefused, InvalidInput, SessionConflict, SessionNotFound
from celery_agents.worker.requests.answers import Approve

from support import fork_server
from support.budget_agents import FOLDER, STEPS
from support.lab import Lab
from support.serve_process import ServeProcess
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore:no worker has registered")]

ADMIN, SUBMITTER = "token-of-admin-0123456789", "token-of-submitter-0123456789"
TOKENS = {"CELERY_AGENTS_HTTP_TOKEN_SECRETS": f"{ADMIN}:admin,{SUBMITTER}:submit+read+stop"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "stage"
    made.mkdir()
    return made


@pytest.fixture
def lab(tmp_path: Path, folder: Path) -> Iterator[Lab]:
    env = {FOLDER: str(folder), "CELERY_AGENTS_CONTROL_TASKS": "submit,rewind", **TOKENS}
    with Lab(tmp_path / "lab", agents="support.budget_agents", env=env) as started:
        yield started


def conversation(state: AgentState) -> list[tuple[str, str]]:
    return [(message.role.value, message.content) for message in state.store.section().messages]


def completed(lab: Lab) -> tuple[str, str]:
    """A session whose execution has ended, and the id of that."""
    job = lab.client.submit("working", "begin")
    assert job.result(timeout=60).step_count == STEPS
    return job.session_id, job.execution_id


def test_a_session_goes_on_from_the_step_beside_a_worker_that_is_killed(lab: Lab, folder: Path) -> None:
    first = lab.worker()
    client = lab.client
    session, execution = completed(lab)
    states = {number: client.state(session, at=number) for number in range(1, STEPS + 1)}
    spent = states[STEPS].execution.usage  # type: ignore[union-attr]
    version = client.rewind(session, to=2, by="ann")
    assert client.header(session).version == version
    now = client.show(session).state
    assert conversation(now) == conversation(states[2])
    assert now.execution is not None
    assert now.execution.usage == spent, "what was spent stays"
    with pytest.raises(ActionRefused, match="rewound"):
        client.retry(session)
    gate = folder / "model 2"
    gate.touch()
    job = client.send_message(session, "again")
    wait_until(lambda: len((folder / "ledger").read_text().split("asked 2")) == 3, "it goes on", timeout=30)
    first.kill()
    lab.worker()
    gate.unlink()
    assert job.result(timeout=60).status == "completed"
    said = conversation(client.show(session).state)
    assert said[: len(conversation(states[2])) + 1] == [*conversation(states[2]), ("user", "again")]
    for number, state in states.items():
        assert client.state(session, at=f"{execution}:{number}") == state
    fork = client.fork(session, at=f"{execution}:5")
    assert conversation(client.show(fork).state) == conversation(states[5]), "a fork reaches what was rewound"
    assert [e.type for e in client.store.sessions.events(session)].count("rewound") == 1


def test_an_execution_that_waits_is_stopped_with_its_request(lab: Lab) -> None:
    lab.worker()
    client = lab.client
    job = client.submit("asking", "first")
    wait_until(lambda: client.header(job.session_id).status == "waiting", "it waits", timeout=30)
    (request,) = client.requests(job.session_id).requests
    client.answer(job.session_id, {request.summary.id: Approve()})
    assert job.result(timeout=60).status == "completed"
    state = client.state(job.session_id, at=1)
    client.send_message(job.session_id, "second")
    wait_until(lambda: client.header(job.session_id).status == "waiting", "it waits again", timeout=30)
    client.rewind(job.session_id, to=f"{job.execution_id}:1")
    assert client.requests(job.session_id).requests == ()
    assert conversation(client.show(job.session_id).state) == conversation(state)
    assert client.header(job.session_id).status == "idle"
    assert [each.session_id for each in client.list(status="idle")] == [job.session_id]


def test_a_request_that_comes_again_is_known_although_its_number_means_another_step_by_now(
    lab: Lab, folder: Path
) -> None:
    lab.worker()
    client = lab.client
    session, _ = completed(lab)
    client.rewind(session, to=2, idempotency_key="once")
    (folder / "model 1").touch()
    job = client.send_message(session, "again")
    wait_until(lambda: client.header(session).status == "in_progress", "it runs", timeout=30)
    assert client.rewind(session, to=2, idempotency_key="once") == client.header(session).version
    (folder / "model 1").unlink()
    assert job.result(timeout=60).status == "completed"
    ended = client.show(session)
    assert client.rewind(session, to=2, idempotency_key="once") == ended.version
    assert client.show(session) == ended, "what was said since stays"


def test_a_rewind_that_ends_a_wait_takes_nothing_back_that_came_behind_it(lab: Lab) -> None:
    worker = lab.worker()
    client = lab.client
    job = client.submit("asking", "first")
    session = job.session_id

    def answer() -> None:
        wait_until(lambda: client.requests(session).requests, "it asks", timeout=30)
        (request,) = client.requests(session).requests
        client.answer(session, {request.summary.id: Approve()})

    answer()
    assert job.result(timeout=60).status == "completed"
    client.send_message(session, "second")
    wait_until(lambda: client.header(session).status == "waiting", "it waits again", timeout=30)
    seen = client.header(session).version
    worker.kill()
    place = f"{job.execution_id}:1"
    with ThreadPoolExecutor(1) as pool:
        rewinding = pool.submit(client.rewind, session, to=place, expected_version=seen)
        ctl = client.store.context.keys(session).ctl
        wait_until(lambda: lab.redis.hget(ctl, "cancel"), "the wait is stopped", timeout=30)
        third = client.send_message(session, "third")
        lab.worker()
        answer()
        with pytest.raises(SessionConflict, match="another execution"):
            rewinding.result(timeout=60)
    assert third.result(timeout=60).status == "completed"
    assert ("user", "third") in conversation(client.show(session).state)


def test_what_cannot_be_rewound_is_refused_and_says_why(lab: Lab, folder: Path) -> None:
    lab.worker()
    client = lab.client
    session, _ = completed(lab)
    version = client.header(session).version
    for wrong in (0, -1, STEPS + 1, "x", "other:1", None, True):
        with pytest.raises(InvalidInput, match="to"):
            client.rewind(session, to=wrong)  # type: ignore[arg-type]
    with pytest.raises(SessionNotFound):
        client.rewind("nobody", to=1)
    with pytest.raises(SessionConflict):
        client.rewind(session, to=1, expected_version=version - 1)
    (folder / "model 1").touch()
    client.send_message(session, "more")
    wait_until(lambda: client.header(session).status == "in_progress", "it runs", timeout=30)
    with pytest.raises(InvalidInput, match="has 0 committed steps"):
        client.rewind(session, to=1)
    earlier = client.header(session)
    with pytest.raises(ActionRefused, match="stop it"):
        client.rewind(session, to=f"{completed_execution(lab, session)}:1")
    assert client.header(session).version == earlier.version
    (folder / "model 1").unlink()


def completed_execution(lab: Lab, session: str) -> str:
    """The first execution of a session."""
    return next(e.execution_id for e in lab.client.store.sessions.events(session) if e.type == "execution_submitted")


def test_over_http_by_command_by_task_and_asynchronously(lab: Lab, tmp_path: Path) -> None:
    lab.worker()
    client = lab.client
    session, execution = completed(lab)
    path = f"/v1/sessions/{session}/rewind"
    serve = ServeProcess(tmp_path / "serve", lab.store_url, TOKENS)
    serve.start()
    try:
        with serve.http(SUBMITTER) as service, serve.http(ADMIN) as operator:
            assert service.post(path, json={"to": 4}).status_code == 403
            assert operator.post(path, json={"to": 4}, headers={"If-Match": '"1"'}).status_code == 412
            for body in ({}, {"to": None}, {"to": 0}, {"to": "x"}):
                assert operator.post(path, json=body).status_code == 422
            done = operator.post(path, json={"to": 5}, headers={"Idempotency-Key": "back"})
            assert (done.status_code, done.headers["ETag"]) == (204, f'"{client.header(session).version}"')
            again = operator.post(path, json={"to": 5}, headers={"Idempotency-Key": "back"})
            assert (again.status_code, again.headers["ETag"]) == (204, done.headers["ETag"])
    finally:
        serve.end()
    command = [sys.executable, "-P", "-m", "celery_agents", "rewind", session, "--to", f"{execution}:4", "--json"]
    env = {**os.environ, "CELERY_AGENTS_REDIS_URL": lab.store_url}
    ran = fork_server.run(command, env=env)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {"session_id": session, "version": client.header(session).version}
    named = {"session_id": session, "to": 3}
    for _ in range(2):
        create_app(client.settings).send_task(
            "celery_agents.rewind", kwargs=named, queue=client.settings.control_queue, task_id="one-task"
        )
    wait_until(
        lambda: conversation(client.show(session).state) == conversation(client.state(session, at=3)),
        "the task has rewound it",
        timeout=30,
    )

    async def rewind() -> int:
        async with AsyncAgentClient(settings=client.settings) as loop:
            return await loop.rewind(session, to="2")

    assert asyncio.run(rewind()) == client.header(session).version
    assert conversation(client.show(session).state) == conversation(client.state(session, at=2))
