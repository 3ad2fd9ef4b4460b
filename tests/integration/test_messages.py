"""Messages with a mode, against real workers that are killed: each is delivered once, in order, or taken back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from celery_agents import AgentClient, AsyncAgentClient
from celery_agents.tasks.app import create_app
from celery_agents.tasks.cli.program import program
from celery_agents.worker.errors import InvalidInput, MessageNotWaiting, MessageUndelivered, SessionBusy

from support.agents import call, plan
from support.lab import Lab
from support.serve_process import ServeProcess
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(180), pytest.mark.filterwarnings("ignore:no worker has registered")]

POINTS = ("c2", "c5", "c6", "c7", "c9")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab(tmp_path / "lab") as started:
        yield started


def working(name: str, **arguments: Any) -> str:
    """A message whose execution makes one keyed effect, and answers with its name."""
    return plan([call("keyed", work=name, **arguments)], answer=name)


def effects(lab: Lab) -> list[str]:
    """The works of the keyed effects, in the order in which they happened first."""
    return [each["work"] for each in lab.ledger.entries() if each.get("tool") == "keyed" and each["effect"]]


def busy(lab: Lab) -> str:
    """A session whose worker is in the first call of its first execution."""
    session = lab.client.submit("planned", working("first", gate="go")).session_id
    wait_until(lambda: "first" in effects(lab), "the call waits at its gate", 60)
    return session


def ask(lab: Lab, task: str, **kwargs: Any) -> None:
    """As a service does that has Celery alone."""
    create_app(lab.client.settings).send_task(f"celery_agents.{task}", kwargs=kwargs, queue="celery_agents.control")


def test_each_queued_message_has_its_execution_once_and_in_order_while_workers_die(lab: Lab) -> None:
    client = lab.client
    jobs = [client.submit("planned", working(f"{s}.0")) for s in range(6)]
    names: dict[str, list[str]] = {}
    for number, job in enumerate(jobs):
        sent = [client.send_message(job.session_id, working(f"{number}.{m}"), when="queue") for m in (1, 2, 3)]
        assert {each.placed for each in sent} == {"queued"}
        names[job.session_id] = [f"{number}.{m}" for m in range(4)]
    for seed, point in enumerate(POINTS):
        worker = lab.worker(wait=False, crash=f"{point}:0.3:{seed}", CELERY_AGENTS_CONCURRENCY="2")
        wait_until(lambda worker=worker: not worker.alive or _has_ended(client, names), f"it dies at {point}", 40)
    lab.worker()
    for session in names:
        wait_until(lambda session=session: _is_over(client, session, 4), f"{session} has had its four executions", 90)
    counted = effects(lab)
    for session, wanted in names.items():
        assert [each for each in counted if each in wanted] == wanted
        said = [record.final_response for record in client.store.sessions.records(session)]
        assert said == wanted
        assert client.queued(session).messages == ()


def _is_over(client: AgentClient, session: str, executions: int) -> bool:
    records = client.store.sessions.records(session)
    return len(records) == executions and client.header(session).status == "completed"


def _has_ended(client: AgentClient, names: dict[str, list[str]]) -> bool:
    return all(_is_over(client, session, 4) for session in names)


def test_a_killed_worker_changes_nothing_of_what_waits_behind_a_stop(lab: Lab) -> None:
    client, worker = lab.client, lab.worker()
    session = busy(lab)
    steering = client.send_message(session, "by the way")
    queued = client.send_message(session, working("queued"), when="queue")
    client.stop(session, timeout=0, by="ann")
    behind = client.send_message(session, working("behind"))
    assert (steering.placed, queued.placed, behind.placed) == ("joins", "queued", "joins")
    worker.kill()
    lab.ledger.open("go")
    lab.worker()
    assert behind.result(timeout=60).final_response == "behind"
    line = client.queued(session)
    assert ([each.placed for each in line.messages], line.held) == (["held", "held"], "stopped")
    assert [each.operation_id for each in line.messages] == [steering.operation_id, queued.operation_id]
    assert client.withdraw_message(session, steering.operation_id, by="ann")
    with pytest.raises(MessageUndelivered, match="withdrawn"):
        steering.result(timeout=5)
    assert client.release_queue(session)
    assert queued.result(timeout=60).final_response == "queued"
    assert effects(lab) in (["first", "behind", "queued"], ["behind", "queued"])


def test_http_and_the_command_line_and_tasks_do_what_the_client_does(lab: Lab) -> None:
    client = lab.client
    lab.worker()
    session = busy(lab)
    server = ServeProcess(lab.directory / "serve", lab.store_url)
    with server, server.http() as serve:
        path = f"/v1/sessions/{session}"
        sent = serve.post(f"{path}/messages", json={"message": working("second"), "when": "queue"}).json()
        assert (sent["placed"], sent["execution_id"]) == ("queued", "")
        busy_reply = serve.post(f"{path}/messages", json={"message": "now", "when": "refuse"})
        assert (busy_reply.status_code, busy_reply.json()["type"].rpartition(":")[2]) == (409, "session-busy")
        assert busy_reply.json()["step"] == 1
        assert serve.post(f"{path}/messages", json={"message": "now", "when": "later"}).status_code == 422
        line = serve.get(f"{path}/queue").json()
        assert ([each["placed"] for each in line["messages"]], line["held"]) == (["queued"], None)
        operation = sent["operation_id"]
        moved = serve.put(f"{path}/messages/{operation}/mode", json={"when": "steer"})
        assert moved.json() == {"placed": "joins"}
        assert serve.put(f"{path}/messages/{operation}/mode", json={"when": "queue"}).json() == {"placed": "queued"}
        assert serve.delete(f"{path}/messages/{operation}").json() == {"changed": True}
        assert serve.delete(f"{path}/messages/unknown").status_code == 409
        runner, env = CliRunner(), {"CELERY_AGENTS_REDIS_URL": lab.store_url}
        for name in ("third", "fourth"):
            done = runner.invoke(program, ["send", session, working(name), "--when", "queue"], env=env)
            assert done.exit_code == 0, done.output
        shown = runner.invoke(program, ["queue", session, "--json"], env=env)
        third, fourth = (each["operation_id"] for each in json.loads(shown.stdout)["messages"])
        assert runner.invoke(program, ["withdraw", session, fourth], env=env).stdout == "withdrawn\n"
        assert runner.invoke(program, ["mode", session, third, "steer"], env=env).stdout == "joins\n"
        assert runner.invoke(program, ["mode", session, third, "queue"], env=env).stdout == "queued\n"
        assert "user, queued: " in runner.invoke(program, ["show", session], env=env).stdout
        client.stop(session, timeout=0)
        lab.ledger.open("go")
        wait_until(lambda: client.queued(session).held == "stopped", "the queue is held", 30)
        assert "celery-agents release" in runner.invoke(program, ["queue", session], env=env).stdout
        key = {"Idempotency-Key": "again"}
        assert serve.post(f"{path}/queue/release", json={"by": "ann"}, headers=key).json() == {"changed": True}
        assert serve.post(f"{path}/queue/release", json={"by": "ann"}, headers=key).json() == {"changed": False}
        assert runner.invoke(program, ["release", session], env=env).stdout == "the queue is not held\n"
    wait_until(lambda: client.header(session).status == "completed", "the third has run", 60)
    assert effects(lab) == ["first", "third"]


def test_control_tasks_and_the_async_client_reach_what_waits(lab: Lab) -> None:
    client = lab.client
    lab.worker(CELERY_AGENTS_CONTROL_TASKS="all")
    session = busy(lab)

    async def send() -> list[str]:
        async with AsyncAgentClient.of(client) as asynchronous:
            jobs = [
                await asynchronous.send_message(session, working(name), when="queue") for name in ("second", "third")
            ]
            assert [each.placed for each in jobs] == ["queued", "queued"]
            line = await asynchronous.queued(session)
            assert [each.when for each in line.messages] == ["queue", "queue"]
            return [each.operation_id for each in jobs]

    second, third = asyncio.run(send())
    ask(lab, "withdraw_message", session_id=session, operation_id=second, by="ann")
    ask(lab, "set_message_mode", session_id=session, operation_id=third, when="steer")
    wait_until(lambda: [each.placed for each in client.queued(session).messages] == ["joins"], "both have acted", 30)
    ask(lab, "stop", session_id=session, clear_queue=True)
    wait_until(lambda: client.queued(session).messages == (), "the stop has cleared what waits", 30)
    lab.ledger.open("go")
    wait_until(lambda: client.header(session).status == "stopped", "it has ended", 30)
    assert client.queued(session).held is None


def test_what_cannot_be_done_is_said_and_changes_nothing(lab: Lab) -> None:
    client = lab.client
    lab.worker()
    session = busy(lab)
    queued = client.send_message(session, "more", when="queue", idempotency_key="k1")
    with pytest.raises(InvalidInput, match="when"):
        client.send_message(session, "more", when="later")
    with pytest.raises(InvalidInput, match=r"give one of steer, queue, interrupt\."):
        client.set_message_mode(session, queued.operation_id, "refuse")
    with pytest.raises(SessionBusy, match="at step 1"):
        client.send_message(session, "more", when="refuse")
    with pytest.raises(MessageNotWaiting, match="no message has this id"):
        client.withdraw_message(session, "unknown")
    again = client.send_message(session, "more", when="queue", idempotency_key="k1")
    assert (again.placed, again.operation_id) == ("queued", queued.operation_id)
    assert len(client.queued(session).messages) == 1
    lab.ledger.open("go")
    client.delete(session)
    assert not lab.redis.keys(f"*{session}:next")
