"""Servers that want credentials, with real workers: every way to give them, what a refusal says, and what is not shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_agents.tasks.client.job import Job
from celery_agents.worker.state import ToolOutcome

from support.agents import call, plan
from support.lab import Lab
from support.mcp_guarded import TOKEN, GuardedServer
from support.mcp_process import outcomes, reason
from support.wait import wait_until
from support.worker_process import WorkerProcess

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def server() -> Iterator[GuardedServer]:
    started = GuardedServer()
    yield started
    started.close()


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vault") / "token"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, server: GuardedServer, vault: Path) -> Iterator[Lab]:
    env = {
        "TEST_GUARDED_URL": server.url,
        "TEST_TOKEN_FILE": str(vault),
        "CELERY_AGENTS_RETRY_LATER_SECONDS": "0.5",
        "CELERY_AGENTS_LOG_LEVEL": "DEBUG",
    }
    with Lab(tmp_path_factory.mktemp("guarded") / "lab", agents="support.mcp_guarded", env=env) as started:
        yield started


@pytest.fixture(scope="module")
def worker(lab: Lab) -> WorkerProcess:
    return lab.worker()


@pytest.fixture(autouse=True)
def _open_vault(vault: Path) -> None:
    vault.write_text(TOKEN)


def submit(lab: Lab, agent: str, **driver: str) -> Job:
    return lab.client.submit(agent, plan([call("g_go", x="a")], **driver))


@pytest.mark.parametrize("agent", ["by_text", "by_auth", "by_function", "by_async_function"])
def test_each_way_to_give_credentials_opens_the_door(lab: Lab, worker: WorkerProcess, agent: str) -> None:
    job = submit(lab, agent)
    assert job.result(timeout=40).status == "completed", worker.tail()
    assert outcomes(lab, job) == [(ToolOutcome.OK, "saw Bearer [redacted]")]
    assert TOKEN not in worker.text()


@pytest.mark.parametrize("agent", ["by_function", "by_async_function"])
def test_a_vault_that_is_down_is_said_and_the_job_goes_on_when_it_is_back(
    lab: Lab, worker: WorkerProcess, vault: Path, agent: str
) -> None:
    vault.unlink()
    job = submit(lab, agent)
    wait_until(lambda: "the function of auth= has failed: FileNotFoundError" in reason(lab, job), "it says why", 20,
               details=worker.tail)  # fmt: skip
    vault.write_text(TOKEN)
    assert job.result(timeout=40).status == "completed"
    assert outcomes(lab, job)[0][0] is ToolOutcome.OK


def test_a_vault_that_is_down_during_a_call_delays_the_call(lab: Lab, worker: WorkerProcess, vault: Path) -> None:
    job = submit(lab, "by_function", gate="locked")
    wait_until(lambda: any(each.get("gate") == "locked" for each in lab.ledger.entries()), "the model is asked", 20)
    vault.unlink()
    lab.ledger.open("locked")
    wait_until(lambda: "the function of auth= has failed" in reason(lab, job), "it says why", 20, details=worker.tail)
    vault.write_text(TOKEN)
    assert job.result(timeout=40).status == "completed"
    assert outcomes(lab, job)[0][0] is ToolOutcome.OK


def test_a_token_that_is_refused_is_said_and_a_new_one_is_used(lab: Lab, worker: WorkerProcess, vault: Path) -> None:
    vault.write_text("an-old-token-of-the-door")
    job = submit(lab, "by_function")
    wait_until(lambda: "the MCP server 'g' refuses the credentials: HTTP 401" in reason(lab, job), "it says why", 20,
               details=worker.tail)  # fmt: skip
    vault.write_text(TOKEN)
    assert job.result(timeout=40).status == "completed"
    assert outcomes(lab, job)[0][0] is ToolOutcome.OK
    assert "an-old-token-of-the-door" not in worker.text()


def test_a_fixed_token_that_is_refused_ends_with_the_patience(lab: Lab, worker: WorkerProcess) -> None:
    job = submit(lab, "by_wrong_text")
    wait_until(lambda: "refuses the credentials: HTTP 401" in reason(lab, job), "it says why", 20, details=worker.tail)
    assert job.result(timeout=60).status == "completed"
    assert "There is no tool 'g_go'" in outcomes(lab, job)[0][1]


def test_a_token_that_expires_between_list_and_call_is_renewed(lab: Lab, worker: WorkerProcess, vault: Path) -> None:
    assert submit(lab, "by_function").result(timeout=40).status == "completed"
    job = submit(lab, "by_function", gate="expired")
    wait_until(lambda: any(each.get("gate") == "expired" for each in lab.ledger.entries()), "the model is asked", 20)
    vault.write_text("an-old-token-of-the-door")
    lab.ledger.open("expired")
    wait_until(lambda: "refuses the credentials: HTTP 401" in reason(lab, job), "it says why", 20, details=worker.tail)
    vault.write_text(TOKEN)
    assert job.result(timeout=40).status == "completed"
    assert outcomes(lab, job)[0][0] is ToolOutcome.OK


def test_a_call_that_the_credentials_do_not_allow_is_an_error_at_once(
    lab: Lab, worker: WorkerProcess, server: GuardedServer
) -> None:
    before = server.calls
    job = submit(lab, "strict")
    assert job.result(timeout=40).status == "completed"
    ((outcome, text),) = outcomes(lab, job)
    assert outcome is ToolOutcome.ERROR
    assert "the MCP server 'g' refuses this call: HTTP 403 Forbidden" in text
    assert server.calls == before + 1
