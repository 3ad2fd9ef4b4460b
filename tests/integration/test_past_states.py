"""The states of a real session at its steps, against a ledger of what each step saw, with workers that are killed."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_agents import AgentState, AsyncAgentClient
from celery_agents.worker.errors import InvalidInput, SessionNotFound

from support import fork_server
from support.lab import Lab
from support.past_agents import LEDGER, STEPS, seen
from support.serve_process import ServeProcess
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore:no worker has registered")]

ADMIN = "token-of-admin-0123456789"
READER = "token-of-reader-0123456789"
ENV = {
    "CELERY_AGENTS_TOKEN_SECRET": "not-a-secret-but-long-enough",
    "CELERY_AGENTS_HTTP_TOKEN_SECRETS": f"{ADMIN}:admin,{READER}:submit",
}


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("past-ledger") / "ledger"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, ledger: Path) -> Iterator[Lab]:
    env = {**ENV, LEDGER: str(ledger)}
    with Lab(tmp_path_factory.mktemp("past") / "lab", agents="support.past_agents", env=env) as started:
        yield started


@pytest.fixture(scope="module")
def session(lab: Lab) -> str:
    """A session that has ended; the worker that ran its first steps was killed."""
    first = lab.worker()
    job = lab.client.submit("changing", "begin", session_id="past")
    wait_until(lambda: lab.client.show("past").state.step_count >= STEPS // 2, "the steps are not done", timeout=60)
    first.kill()
    lab.worker()
    assert job.result(timeout=60).final_response == "done"
    return "past"


def test_the_state_of_each_step_is_what_the_next_step_saw(lab: Lab, ledger: Path, session: str) -> None:
    entries = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert {entry["steps"] for entry in entries} == set(range(STEPS))
    for entry in entries:
        prompt = entry.pop("prompt")
        request = lab.client.model_request(session, step=entry["steps"] + 1)
        assert request.messages is not None
        assert [message.to_dict() for message in request.messages] == entry["messages"]
        assert (request.system_prompt, request.agent, request.not_kept) == (prompt, "changing", ())
        assert [each["name"] for each in request.tools or ()] == ["look"]
        if entry["steps"]:
            assert seen(lab.client.state(session, at=entry["steps"])) == entry
    assert lab.client.state(session, at=STEPS) == lab.client.state(session) == lab.client.show(session).state


def test_a_later_execution_and_the_other_clients_give_the_same(lab: Lab, session: str) -> None:
    before = {number: lab.client.state(session, at=number) for number in (1, 8, STEPS)}
    execution = before[1].execution
    assert execution is not None
    lab.client.send_message(session, "go on").result(timeout=60)
    for number, state in before.items():
        assert lab.client.state(session, at=f"{execution.execution_id}:{number}") == state
    assert lab.client.state(session, at=1) != before[1]

    async def read() -> AgentState:
        async with AsyncAgentClient(settings=lab.client.settings) as client:
            return await client.state(session, at=f"{execution.execution_id}:8")

    assert asyncio.run(read()) == before[8]


def test_a_step_that_is_not_there_is_refused_in_words(lab: Lab, session: str) -> None:
    for wrong in (0, -1, "x", "1:x", True, "7:", ":1", 1.5):
        with pytest.raises(InvalidInput, match="number of a step"):
            lab.client.state(session, at=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="committed steps"):
        lab.client.state(session, at=999)
    with pytest.raises(InvalidInput, match="no such execution"):
        lab.client.state(session, at="another:1")
    for wrong in (0, "x", None, True):
        with pytest.raises(InvalidInput, match=r"step: .*number of a step"):
            lab.client.model_request(session, step=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"step: .*committed steps, .*999"):
        lab.client.model_request(session, step=999)
    with pytest.raises(SessionNotFound):
        lab.client.model_request("nothing", step=1)
    with pytest.raises(SessionNotFound):
        lab.client.state("nothing", at=1)


def run(lab: Lab, *arguments: str) -> str:
    """What a command prints."""
    environment = {**os.environ, "CELERY_AGENTS_REDIS_URL": lab.store_url, "NO_COLOR": "1"}
    command = [sys.executable, "-P", "-m", "celery_agents", *arguments]
    done = fork_server.run(command, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_commands_show_and_compare_states(lab: Lab, session: str) -> None:
    printed = run(lab, "show", session, "--step", "7", "--request")
    assert "system prompt" in printed
    assert "tool look" in printed
    assert json.loads(run(lab, "show", session, "--step", "7", "--request", "--json"))["step"] == 7
    shown = run(lab, "show", session, "--step", "7", "--state")
    assert AgentState.from_json(shown) == lab.client.state(session, at=7)
    compared = json.loads(run(lab, "diff", session, "4", "5", "--json"))
    assert ["context", "metadata", "step", 0] in [each["path"] for each in compared]
    assert "context.metadata.step" in run(lab, "diff", session, "4", "5")


def test_the_state_comes_over_http(lab: Lab, session: str, tmp_path: Path) -> None:
    process = ServeProcess(tmp_path / "serve", lab.store_url, ENV)
    process.start()
    try:
        with process.http(ADMIN) as http, process.http(READER) as other:
            path = f"/v1/sessions/{session}/steps"
            assert AgentState.from_dict(http.get(f"{path}/7/state").json()["state"]) == lab.client.state(session, at=7)
            request = http.get(f"{path}/7/request").json()
            assert request == json.loads(json.dumps(lab.client.model_request(session, step=7).to_dict()))
            missing = http.get(f"{path}/999/state")
            assert (missing.status_code, missing.json()["errors"][0]["field"]) == (422, "at")
            assert other.get(f"{path}/7/state").status_code == 403
            lab.redis.hdel(lab.client.store.context.keys(session).session, "past")
            gone = http.get(f"{path}/7/state")
            assert gone.status_code == 410
            assert "kept no old values" in gone.json()["detail"]
    finally:
        process.end()
