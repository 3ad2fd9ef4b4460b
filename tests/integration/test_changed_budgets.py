"""Budgets of real executions are changed while workers run, wait and are killed, in each way there is."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from celery_agents import AsyncAgentClient, ExecutionBudget
from celery_agents.tasks.app import create_app
from celery_agents.worker.errors import ActionRefused, InvalidInput, SessionNotFound
from celery_agents.worker.state import StopReason

from support import fork_server
from support.budget_agents import FOLDER, STEPS
from support.lab import Lab
from support.serve_process import ServeProcess
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore:no worker has registered")]

ADMIN, SUBMITTER = "token-of-admin-0123456789", "token-of-submitter-0123456789"
TOKENS = {
    "CELERY_AGENTS_TOKEN_SECRET": "not-a-secret-but-long-enough",
    "CELERY_AGENTS_HTTP_TOKEN_SECRETS": f"{ADMIN}:admin,{SUBMITTER}:submit+read",
}


class Stage:
    """The gates and the ledger of the agents, as the test sees them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def close(self, gate: str) -> Path:
        path = self.folder / gate
        path.touch()
        return path

    def lines(self, first: str) -> list[str]:
        file = self.folder / "ledger"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if line.startswith(first)]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "stage")


@pytest.fixture
def lab(tmp_path: Path, stage: Stage) -> Iterator[Lab]:
    env = {FOLDER: str(stage.folder), "CELERY_AGENTS_CONTROL_TASKS": "submit,change_budget", **TOKENS}
    with Lab(tmp_path / "lab", agents="support.budget_agents", env=env) as started:
        yield started


def payments(stage: Stage, *, killed: bool) -> int:
    """How many payments there were, by their keys; a call whose worker was killed before its commit came twice."""
    keys = Counter(stage.lines("paid"))
    assert sum(count - 1 for count in keys.values()) <= killed
    return len(keys)


# --- workers that are killed around a change --------------------------------------------------------------------------


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "alive"])
def test_a_limit_is_raised_after_the_worker_has_noticed_that_it_is_reached(
    lab: Lab, stage: Stage, *, killed: bool
) -> None:
    first = lab.worker()
    end = stage.close("end")
    job = lab.client.submit("working", "begin", budget=ExecutionBudget(max_steps=2))
    wait_until(lambda: stage.lines("ending"), "the limit ends it", timeout=30)
    assert job.change_budget(ExecutionBudget(max_steps=20), by="ann")
    if killed:
        first.kill()
        lab.worker()
    end.unlink()
    result = job.result(timeout=60)
    assert (result.status, result.step_count) == ("completed", STEPS)
    assert payments(stage, killed=killed) == STEPS - 1
    assert [event.data["by"] for event in job.events() if event.type == "budget_changed"] == ["ann"]


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "alive"])
def test_a_limit_below_what_is_used_ends_the_execution_with_the_running_step(
    lab: Lab, stage: Stage, *, killed: bool
) -> None:
    first = lab.worker()
    gate = stage.close("model 3")
    job = lab.client.submit("working", "begin")
    wait_until(lambda: stage.lines("asked 3"), "step 3 asks", timeout=30)
    assert lab.client.change_budget(job.session_id, ExecutionBudget(max_tokens=150))
    if killed:  # nothing of step 3 is journaled: it is not begun again
        first.kill()
        lab.worker()
    else:
        gate.unlink()
    result = job.result(timeout=60)
    assert (result.status, result.stop_reason) == ("stopped", StopReason.TOKEN_LIMIT_REACHED)
    assert result.step_count == (2 if killed else 3)
    assert not stage.lines("asked 4")
    assert payments(stage, killed=killed) == result.step_count
    assert lab.client.show(job.session_id).state.execution.budget == ExecutionBudget(max_tokens=150)  # type: ignore[union-attr]


def test_the_deadline_of_a_waiting_session_moves_while_no_worker_lives(lab: Lab, stage: Stage) -> None:
    first = lab.worker()
    soon = datetime.now(UTC) + timedelta(seconds=4)
    job = lab.client.submit("asking", "begin", budget=ExecutionBudget(deadline=soon))
    wait_until(lambda: lab.client.header(job.session_id).status == "waiting", "it waits", timeout=30)
    first.kill()
    later = datetime.now(UTC) + timedelta(seconds=12)
    assert job.change_budget(ExecutionBudget(deadline=later))
    lab.worker()
    wait_until(lambda: datetime.now(UTC) > soon + timedelta(seconds=2), "the old deadline has passed", timeout=30)
    assert lab.client.header(job.session_id).status == "waiting"
    result = job.result(timeout=60)
    assert (result.status, result.stop_reason) == ("stopped", StopReason.TIME_LIMIT_REACHED)
    assert timedelta() <= datetime.now(UTC) - later < timedelta(seconds=10)
    assert not stage.lines("refunded")


def test_a_lowered_budget_stops_the_children_that_it_does_not_cover(lab: Lab, stage: Stage) -> None:
    lab.worker(CELERY_AGENTS_CONCURRENCY="4")
    job = lab.client.submit("lead", "begin", budget=ExecutionBudget(max_cost=100.0))
    wait_until(lambda: len(lab.client.tree(job.session_id).children) == 2, "two children work", timeout=30)
    wait_until(lambda: len(stage.lines("asked 2")) >= 2, "both have begun", timeout=30)
    assert job.change_budget(ExecutionBudget(max_cost=20.0))
    result = job.result(timeout=60)
    assert result.status == "completed"
    children = lab.client.tree(job.session_id).children
    assert [node.header.status for node in children] == ["stopped", "stopped"]
    assert all(node.steps < 40 for node in children)


# --- the ways to ask --------------------------------------------------------------------------------------------------


def test_what_cannot_be_used_is_refused_and_says_why(lab: Lab, stage: Stage) -> None:
    lab.worker()
    client = lab.client
    gate = stage.close("tool")
    job = client.submit("capped", "begin")
    wait_until(lambda: stage.lines("asked 1"), "it runs", timeout=30)
    with pytest.raises(InvalidInput, match=r"budget.max_steps.*agent capped has max_steps 3"):
        client.change_budget(job.session_id, ExecutionBudget(max_steps=4))
    with pytest.raises(InvalidInput, match="max_steps"):
        ExecutionBudget(max_steps=-1)
    with pytest.raises(InvalidInput, match="ExecutionBudget"):
        client.change_budget(job.session_id, None)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="ExecutionBudget"):
        client.change_budget(job.session_id, {"max_steps": 2})  # type: ignore[arg-type]
    with pytest.raises(ActionRefused, match="no execution nobodys runs"):
        client.change_budget(job.session_id, ExecutionBudget(max_steps=2), execution_id="nobodys")
    with pytest.raises(SessionNotFound):
        client.change_budget("nobody", ExecutionBudget(max_steps=2))
    with pytest.raises(ActionRefused, match="change_budget"):
        client.send_message(job.session_id, "more", budget=ExecutionBudget(max_steps=2))
    assert not [event for event in client.store.sessions.events(job.session_id) if event.type == "budget_changed"]
    assert client.change_budget(job.session_id, ExecutionBudget(max_steps=20), beyond_agent=True)
    gate.unlink()
    result = job.result(timeout=60)
    assert (result.status, result.step_count) == ("completed", STEPS)
    state = client.show(job.session_id).state
    assert state.execution is not None
    assert state.execution.budget == ExecutionBudget(max_steps=20, max_cost=10.0), "what is not given is the agent's"
    with pytest.raises(ActionRefused, match="with the next message, or with a retry"):
        job.change_budget(ExecutionBudget(max_steps=2))


def test_over_http_a_service_stays_within_the_agents_budget_and_an_operator_need_not(
    lab: Lab, stage: Stage, tmp_path: Path
) -> None:
    lab.worker()
    gate = stage.close("tool")
    client = lab.client
    job = client.submit("capped", "begin")
    wait_until(lambda: stage.lines("asked 1"), "it runs", timeout=30)
    path = f"/v1/sessions/{job.session_id}/budget"
    own = client.session_token(job.session_id, scopes=["submit"])
    serve = ServeProcess(tmp_path / "serve", lab.store_url, TOKENS)
    serve.start()
    try:
        with serve.http(SUBMITTER) as service, serve.http(ADMIN) as operator, serve.http(own) as browser:
            within, beyond = {"budget": {"max_steps": 2}}, {"budget": {"max_steps": 9}}
            assert service.post(path, json=within).json() == {"changed": True}
            assert service.post(path, json=within).json() == {"changed": False}
            assert service.post(path, json=beyond).status_code == 422
            refused = service.post(path, json={**beyond, "beyond_agent": True})
            assert (refused.status_code, "missing-scope" in refused.text) == (403, True)
            assert browser.post(path, json=within).status_code == 403
            for body in ({}, {"budget": None}, {"budget": {"max_steps": -1}}, {"budget": {"most": 1}}):
                assert service.post(path, json=body).status_code == 422
            assert service.post("/v1/sessions/nobody/budget", json=within).status_code == 404
            gate_keeper = operator.post(path, json={**beyond, "beyond_agent": True, "by": "root"})
            assert gate_keeper.json() == {"changed": True}
            shown = operator.get(f"/v1/sessions/{job.session_id}/state").json()
            assert shown["state"]["execution"]["budget"]["max_steps"] == 9
            gate.unlink()
            assert job.result(timeout=60).status == "completed"
            assert service.post(path, json=within).status_code == 409
    finally:
        serve.end()


def test_a_command_shows_a_budget_and_changes_single_limits_of_it(lab: Lab, stage: Stage) -> None:
    lab.worker()
    gate = stage.close("model 2")
    job = lab.client.submit("working", "begin", budget=ExecutionBudget(max_steps=2, max_cost=5.0))
    wait_until(lambda: stage.lines("asked 2"), "it runs", timeout=30)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "celery_agents", "budget", job.session_id, *arguments]
        env = {**os.environ, "CELERY_AGENTS_REDIS_URL": lab.store_url}
        return fork_server.run(command, env=env)

    shown = json.loads(run("--json").stdout)
    assert (shown["used"]["max_steps"], shown["budget"]["max_steps"], shown["budget"]["max_cost"]) == (1, 2, 5.0)
    assert "max_cost" in run().stdout
    assert run("--max-steps", "50", "--by", "ann").stdout == "changed\n"
    assert run("--max-steps", "50").stdout == "it has this budget already\n"
    assert json.loads(run("--json").stdout)["budget"]["max_cost"] == 5.0, "it stays as it was"
    wrong = run("--max-steps", "-1")
    assert (wrong.returncode, "max-steps" in wrong.stderr) == (2, True)
    replaced = json.loads(run("--max-steps", "40", "--replace", "--json").stdout)
    assert (replaced["changed"], replaced["budget"]["max_cost"]) == (True, None)
    gate.unlink()
    assert job.result(timeout=60).step_count == STEPS
    ended = run("--max-steps", "1")
    assert (ended.returncode, "retry" in ended.stderr) == (1, True)


def test_a_retry_stays_within_the_agents_budget_unless_an_operator_says_otherwise(
    lab: Lab, stage: Stage, tmp_path: Path
) -> None:
    lab.worker()
    client = lab.client
    job = client.submit("capped", "begin", budget=ExecutionBudget(max_steps=2, max_cost=1.0))
    assert job.result(timeout=60).stop_reason == StopReason.STEPS_LIMIT_REACHED

    def budget() -> ExecutionBudget:
        state = client.show(job.session_id).state
        assert state.execution is not None
        return state.execution.budget

    with pytest.raises(InvalidInput, match=r"budget.max_steps.*agent capped has max_steps 3"):
        client.retry(job.session_id, budget=ExecutionBudget(max_steps=20))
    with pytest.raises(InvalidInput, match="beyond_agent"):
        client.retry(job.session_id, beyond_agent=True)
    serve = ServeProcess(tmp_path / "serve", lab.store_url, TOKENS)
    serve.start()
    try:
        with serve.http(SUBMITTER) as service, serve.http(ADMIN) as operator:
            path, beyond = f"/v1/sessions/{job.session_id}/retry", {"budget": {"max_steps": 4}}
            assert service.post(path, json=beyond).status_code == 422
            refused = service.post(path, json={**beyond, "beyond_agent": True})
            assert (refused.status_code, "missing-scope" in refused.text) == (403, True)
            assert (job.result(timeout=0).status, budget().max_steps) == ("stopped", 2)
            assert service.post(path, json={"budget": {"max_steps": 3}}).status_code < 300
            assert job.result(timeout=60).step_count == 3
            assert budget() == ExecutionBudget(max_steps=3, max_cost=10.0), "what is not given is the agent's"
            assert operator.post(path, json={**beyond, "beyond_agent": True}).status_code < 300
            assert job.result(timeout=60).step_count == 4
    finally:
        serve.end()

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "celery_agents", "retry", job.session_id, *arguments]
        return fork_server.run(command, env={**os.environ, "CELERY_AGENTS_REDIS_URL": lab.store_url})

    wrong = run("--max-steps", "9")
    assert (wrong.returncode, "--beyond-agent" in wrong.stderr) == (2, True), wrong.stderr
    assert run("--max-steps", "9", "--beyond-agent", "--wait").returncode == 0
    assert budget() == ExecutionBudget(max_steps=9, max_cost=10.0), "what is not given stays"
    assert (job.result(timeout=60).status, job.result(timeout=60).step_count) == ("completed", STEPS)


def test_a_task_and_the_async_client_change_it_too(lab: Lab, stage: Stage) -> None:
    lab.worker()
    gate = stage.close("model 2")
    job = lab.client.submit("working", "begin", budget=ExecutionBudget(max_steps=2))
    wait_until(lambda: stage.lines("asked 2"), "it runs", timeout=30)
    named = {"session_id": job.session_id, "budget": {"max_steps": 4}, "by": "a task"}
    create_app(lab.client.settings).send_task(
        "celery_agents.change_budget", kwargs=named, queue=lab.client.settings.control_queue
    )
    changed = [event.type for event in lab.client.store.sessions.events(job.session_id)]
    wait_until(
        lambda: any(e.type == "budget_changed" for e in lab.client.store.sessions.events(job.session_id)),
        f"the task has changed it: {changed}",
        timeout=30,
    )

    async def change() -> tuple[bool, bool]:
        async with AsyncAgentClient(settings=lab.client.settings) as client:
            again = await client.change_budget(job.session_id, ExecutionBudget(max_steps=4))
            handle = await client.job(job.session_id)
            return again, await handle.change_budget(ExecutionBudget(max_steps=5), by="a loop")

    assert asyncio.run(change()) == (False, True)
    gate.unlink()
    result = job.result(timeout=60)
    assert (result.step_count, result.stop_reason) == (5, StopReason.STEPS_LIMIT_REACHED)
