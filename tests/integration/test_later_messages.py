"""People see the messages that come while an approval waits, in each way there is, and approve what they have seen."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from celery_agents import Approve, AsyncAgentClient, Deny
from celery_agents.tasks.client.job import Job
from celery_agents.tasks.client.pending import ToolApprovalResolution, pending_approvals
from celery_agents.worker.errors import InvalidInput, MessagesUnseen

from support import fork_server
from support.agents import call, plan
from support.lab import Lab
from support.serve_process import ServeProcess
from support.wait import wait_until

pytestmark = pytest.mark.timeout(240)

TOKEN = "token-of-operator-0123456789"
ENV = {
    "CELERY_AGENTS_TOKEN_SECRET": "not-a-secret-but-long-enough",
    "CELERY_AGENTS_HTTP_TOKEN_SECRETS": f"{TOKEN}:admin",
}
RACES = 16
_WRITER = """
import sys
from celery_agents import AgentClient
client = AgentClient()
print("ready", flush=True)
for name in sys.stdin.read().split():
    client.send_message(name, "do not")
    print("sent", flush=True)
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("later") / "lab", agents="support.asking_agents", env=ENV) as started:
        started.worker(CELERY_AGENTS_CONTROL_TASKS="answer,answer_by_token")
        yield started


@pytest.fixture(scope="module")
def http(lab: Lab) -> Iterator[httpx.Client]:
    serve = ServeProcess(lab.directory / "serve", lab.store_url, ENV)
    serve.start()
    try:
        with serve.http(TOKEN) as client:
            yield client
    finally:
        serve.end()


def ask(lab: Lab, work: str, *messages: str, tool: str = "careful") -> tuple[Job, str]:
    """A job that waits for an approval, and got these messages since; the id of its request."""
    job = lab.client.submit("asking", plan([call(tool, work=work)]))
    wait_until(lambda: lab.client.header(job.session_id).status == "waiting", "it waits", 30)
    for text in messages:
        lab.client.send_message(job.session_id, text)
    (found,) = lab.client.requests(job.session_id).requests
    return job, found.summary.id


def effects(lab: Lab, work: str) -> int:
    return sum(e["kind"] == "effect" and e["effect"] and e["work"] == work for e in lab.ledger.entries())


def end(lab: Lab, job: Job, work: str) -> None:
    assert job.result(timeout=60).status == "completed"
    assert effects(lab, work) == 1


def test_nobody_approves_what_a_message_took_back_without_having_seen_it(lab: Lab) -> None:
    client = lab.client
    job, request = ask(lab, "seen")
    message = client.send_message(job.session_id, "do not pay")
    (listed,) = client.requests().requests
    found = client.request(job.session_id, request)
    assert listed.messages == found.messages
    assert [(m.number, m.text, m.operation_id) for m in found.messages] == [(1, "do not pay", message.operation_id)]
    with pytest.raises(InvalidInput, match="seen: request"):
        client.answer(job.session_id, {request: Approve()})
    with pytest.raises(MessagesUnseen, match="message 1, and the answer names 0"):
        client.answer(job.session_id, {request: Approve()}, seen=0)
    for wrong in (-1, True, "1", 2):
        with pytest.raises(InvalidInput, match="seen"):
            client.answer(job.session_id, {request: Approve()}, seen=wrong)  # type: ignore[arg-type]
    assert effects(lab, "seen") == 0
    client.withdraw_message(job.session_id, message.operation_id)
    assert client.request(job.session_id, request).newest_message == 1
    client.answer(job.session_id, {request: Approve()}, seen=1)
    end(lab, job, "seen")


def test_an_approval_and_a_message_that_race_are_in_one_order(lab: Lab) -> None:
    client = lab.client
    jobs = {f"race-{n}": client.submit("asking", plan([call("refund", work=f"race-{n}")])) for n in range(RACES)}
    for job in jobs.values():
        wait_until(lambda job=job: client.header(job.session_id).status == "waiting", "it waits", 30)
    asked = {name: (job, client.requests(job.session_id).requests[0].summary.id) for name, job in jobs.items()}
    env = {**os.environ, "CELERY_AGENTS_REDIS_URL": lab.store_url}
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    refused: set[str] = set()
    for number, (name, (job, request)) in enumerate(reversed(asked.items())):
        try:
            client.answer(job.session_id, {request: Approve()}, seen=0)
        except MessagesUnseen:
            refused.add(name)
        if number == 0:  # the others race from the other end, where a message is first
            writer.stdin.write(" ".join(job.session_id for job, _ in asked.values()))
            writer.stdin.close()
            assert writer.stdout.readline() == "sent\n"
    assert writer.wait(30) == 0
    assert 0 < len(refused) < RACES, "both orders are seen"
    for name, (job, request) in asked.items():
        wait_until(lambda name=name, is_made=name not in refused: effects(lab, name) == is_made, f"{name} is made", 30)
        types = [event.type for event in client.store.sessions.events(job.session_id)]
        if name in refused:
            assert "request_answered" not in types
            client.answer(job.session_id, {request: Deny("it was taken back")}, seen=1)
        elif "message_received" in types:
            assert types.index("request_answered") < types.index("message_received")
    for name, (job, _) in asked.items():
        assert job.result(timeout=60).status in ("completed", "stopped")
        assert effects(lab, name) == (name not in refused)


def test_over_http_and_by_a_link(lab: Lab, http: httpx.Client) -> None:
    job, request = ask(lab, "http", "do not", "or do")
    path = f"/v1/sessions/{job.session_id}"
    (listed,) = http.get(f"{path}/requests").json()["requests"]
    shown = http.get(f"{path}/requests/{request}").json()
    assert shown["newest_message"] == listed["newest_message"] == 2
    assert shown["needs_seen"] is True
    assert [(m["number"], m["text"], m["session_id"]) for m in shown["messages"]] == [
        (1, "do not", job.session_id), (2, "or do", job.session_id),
    ]  # fmt: skip
    answers: dict[str, Any] = {"answers": {request: {"approve": True}}}
    assert http.post(f"{path}/answers", json=answers).status_code == 422
    assert http.post(f"{path}/answers", json={**answers, "seen": -1}).status_code == 422
    refused = http.post(f"{path}/answers", json={**answers, "seen": 1})
    assert (refused.status_code, refused.json()["newest_message"], refused.json()["seen"]) == (409, 2, 1)
    assert refused.json()["type"].endswith("messages-unseen")
    link = http.post(f"{path}/requests/{request}/links", json={}).headers["Location"]
    assert http.get(link).json()["newest_message"] == 2
    assert http.post(link, json={"answer": {"approve": True}}).status_code == 422
    assert http.post(link, json={"answer": {"approve": True}, "seen": 0}).status_code == 409
    assert http.post(link, json={"answer": {"approve": True}, "seen": 2}).status_code == 200
    end(lab, job, "http")
    assert "newest_message" not in {
        name for name, value in http.get(f"{path}/requests/{request}").json().items() if value
    }


def test_an_agui_run_is_resumed_with_what_was_shown(lab: Lab, http: httpx.Client) -> None:
    job, request = ask(lab, "agui", "do not")

    def run(**payload: Any) -> httpx.Response:
        entry = {"interruptId": request, "status": "resolved", "payload": {"approved": True, **payload}}
        given = {
            "threadId": job.session_id, "runId": "r", "messages": [], "tools": [], "context": [], "state": {},
            "forwardedProps": {}, "resume": [entry],
        }  # fmt: skip
        return http.post("/agui/asking", json=given)

    assert run().status_code == 422
    assert run(seen=0).status_code == 409
    assert run(seen=1).status_code == 200
    end(lab, job, "agui")


def test_by_command(lab: Lab) -> None:
    def run(*words: str, code: int = 0) -> str:
        env = {**os.environ, "CELERY_AGENTS_REDIS_URL": lab.store_url, "COLUMNS": "200"}
        done = fork_server.run([sys.executable, "-m", "celery_agents", *words], env=env)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    job, request = ask(lab, "command", "do not", "do")
    listed = run("requests", job.session_id)
    assert f"{request[:12]}  message 1: do not\n{request[:12]}  message 2: do\n" in listed
    (line,) = run("requests", job.session_id, "--json").splitlines()
    assert [each["text"] for each in json.loads(line)["messages"]] == ["do not", "do"]
    assert "seen" in run("approve", job.session_id, code=2)
    assert "answer with seen=2" in run("approve", job.session_id, "--seen", "1", code=1)
    run("approve", job.session_id, "--seen", "2")
    end(lab, job, "command")


def test_by_task_by_views_and_asynchronously(lab: Lab) -> None:
    client, app = lab.client, lab.client._own_app
    assert app is not None
    job, request = ask(lab, "task", "do not")
    for seen in (0, 1):
        named = {"session_id": job.session_id, "answers": {request: {"approve": True}}, "seen": seen}
        app.send_task("celery_agents.answer", kwargs=named)
    end(lab, job, "task")
    job, request = ask(lab, "view", "do not")
    (pending,) = pending_approvals(client, job.session_id)
    newest = pending.metadata["newest_message"]
    with pytest.raises(MessagesUnseen):
        client.resolve_tool_approval(job.session_id, ToolApprovalResolution(id=request, approved=True, seen=newest - 1))
    client.resolve_tool_approval(job.session_id, ToolApprovalResolution(id=request, approved=True, seen=newest))
    end(lab, job, "view")
    job, request = ask(lab, "loop", "do not")

    async def approve() -> None:
        async with AsyncAgentClient(settings=client.settings) as loop:
            found = await loop.request(job.session_id, request)
            with pytest.raises(MessagesUnseen):
                await loop.answer(job.session_id, {request: Approve()}, seen=0)
            await loop.answer(job.session_id, {request: Approve()}, seen=found.newest_message)

    asyncio.run(approve())
    end(lab, job, "loop")


def test_a_denial_needs_no_number(lab: Lab) -> None:
    job, request = ask(lab, "denied", "do not")
    lab.client.answer(job.session_id, {request: Deny("no")})
    assert job.result(timeout=60).status == "completed"
    assert effects(lab, "denied") == 0
