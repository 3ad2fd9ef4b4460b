"""Concurrency limits with real workers: an outside ledger counts what runs at a time, also while workers are killed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from celery_agents import AgentClient, AsyncAgentClient, Job
from celery_agents.flow import ConcurrencyLimit, ProviderLimit
from celery_agents.tasks.cli import main
from celery_agents.tasks.observability.doctor.checks import examine
from celery_agents.tasks.observability.waiting_counts import WaitingFor
from celery_agents.tasks.observability.waiting_reasons import waiting_reason
from celery_agents.worker.errors import InvalidInput

from support.concurrent_agents import most_at_once
from support.lab import Lab
from support.ledger import post_effect
from support.rabbitmq import RABBITMQ_MISSING, RabbitmqServer, find_rabbitmq
from support.serve_process import ServeProcess
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore:no worker has registered")]
ADMIN, READER = "token-of-admin-0123456789", "token-of-read-0123456789"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("concurrency"), agents="support.concurrent_agents") as started:
        started.worker()
        started.client.wait_for_agent("crm")
        yield started


@pytest.fixture
def client(lab: Lab) -> Iterator[AgentClient]:
    """A client of a fleet without limits, before and after."""
    yield lab.client
    for status in lab.client.concurrency.list():
        lab.client.concurrency.remove(status.limit.name)


def entries_since(lab: Lab, start: int) -> list[dict[str, Any]]:
    return [entry for entry in lab.ledger.entries() if entry["n"] > start]


def run(lab: Lab, agent: str, texts: list[str], **options: Any) -> list[dict[str, Any]]:
    """Run jobs at once to their ends, and give what the ledger has of them."""
    start = len(lab.ledger.entries())
    jobs = [lab.client.submit(agent, text, **options) for text in texts]
    for job in jobs:
        assert job.result(timeout=60).status == "completed"
    return entries_since(lab, start)


def command(lab: Lab, *words: str) -> None:
    """Run `celery-agents concurrency`."""
    with pytest.raises(SystemExit) as ended:
        main(["concurrency", *words, "--redis-url", lab.store_url])
    assert ended.value.code == 0


def test_no_more_steps_run_than_the_limit_allows_and_all_of_them_run(lab: Lab, client: AgentClient) -> None:
    client.concurrency.set(ConcurrencyLimit("crm", total=2), by="ann")
    entries = run(lab, "crm", ["3"] * 6)
    assert most_at_once(entries) == 2
    assert sum(entry["kind"] == "begin" for entry in entries) == 18
    wait_until(lambda: _is_idle(lab), "the last one has given back", 10)
    assert [each.limit.by for each in client.concurrency.list()] == ["ann"]


def test_each_customer_has_a_limit_of_its_own(lab: Lab, client: AgentClient) -> None:
    client.concurrency.set(ConcurrencyLimit("crm", total=3, per={"customer": 1}))
    start = len(lab.ledger.entries())
    jobs = [client.submit("crm", "2", labels={"customer": name}) for name in ("acme", "acme", "acme", "bolt")]
    began = time.monotonic()
    assert jobs[3].result(timeout=30).status == "completed"
    assert any(client.header(job.session_id).status != "completed" for job in jobs[:3]), "bolt did not wait for acme"
    for job in jobs:
        assert job.result(timeout=30).status == "completed"
    assert most_at_once(entries_since(lab, start)) == 2
    assert time.monotonic() - began < 20


def test_a_parent_and_its_child_under_one_limit_of_one_both_run(lab: Lab, client: AgentClient) -> None:
    client.concurrency.set(ConcurrencyLimit("crm", total=1))
    run(lab, "parent", ["go", "go"])


def test_calls_of_a_tool_wait_in_their_step_and_the_others_run_first(lab: Lab, client: AgentClient) -> None:
    client.concurrency.set(ConcurrencyLimit("bank", total=2))
    entries = run(lab, "cashier", ["3", "3"])
    assert most_at_once(entries, "bank") == 2
    assert sum(entry["kind"] == "begin" for entry in entries) == 6, "each call once"


def test_a_limit_of_zero_is_told_everywhere_and_a_raised_one_lets_the_step_go(
    lab: Lab, client: AgentClient, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = client.concurrency.set(ConcurrencyLimit("crm", total=0))
    assert notes == ("limit: 0 lets nothing begin under crm; it waits until the limit is raised or removed.",)
    job = client.submit("crm", "1")
    wait_until(lambda: client.waiting().count(WaitingFor.CONCURRENCY) == 1, "it waits", 15)
    reason = waiting_reason(client.store, client.header(job.session_id))
    assert reason == "step 1 waits for its turn: the concurrency limit crm is 0, until it is raised or removed."
    command(lab)
    assert "all: 0 run, 1 wait" in capsys.readouterr().out
    found = [each.what for each in examine(client.settings) if each.name == "concurrency"]
    assert any("0 lets nothing begin under crm" in what for what in found)
    command(lab, "set", "crm", "--total", "1")
    assert job.result(timeout=15).status == "completed"


def test_a_limit_that_nobody_has_defined_is_waited_for_and_a_removed_one_is_not(lab: Lab) -> None:
    with Lab(lab.directory / "other", agents="support.concurrent_agents") as other:
        other.worker()
        job = other.client.submit("crm", "1")
        wait_until(lambda: other.client.waiting().count(WaitingFor.CONCURRENCY) == 1, "it waits", 15)
        reason = str(waiting_reason(other.client.store, other.client.header(job.session_id)))
        assert "nobody has defined the concurrency limit crm: celery-agents concurrency set crm --total N" in reason
        other.client.concurrency.set(ConcurrencyLimit("crm", total=1))
        assert job.result(timeout=15).status == "completed"
        assert other.client.concurrency.remove("crm")
        assert other.client.submit("crm", "1").result(timeout=15).status == "completed"


def test_a_step_that_waits_is_stopped_at_once(client: AgentClient) -> None:
    client.concurrency.set(ConcurrencyLimit("crm", total=0))
    job = client.submit("crm", "1")
    wait_until(lambda: client.waiting().count(WaitingFor.CONCURRENCY) == 1, "it waits", 15)
    client.stop(job.session_id)
    assert job.result(timeout=10).status == "stopped"


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.long)])
def test_workers_that_are_killed_let_no_more_run_and_lose_nothing(tmp_path: Path, kills: int) -> None:
    with Lab(tmp_path / "lab", agents="support.concurrent_agents") as lab:
        kill_workers_under_a_limit(lab, kills)


@pytest.mark.long
@pytest.mark.skipif(find_rabbitmq() is None, reason=RABBITMQ_MISSING)
def test_workers_that_are_killed_let_no_more_run_and_lose_nothing_where_rabbitmq_is_the_broker(tmp_path: Path) -> None:
    rabbitmq = RabbitmqServer(tmp_path / "rabbitmq")
    try:
        rabbitmq.start()
        with _RabbitmqLab(tmp_path / "lab", rabbitmq) as lab:
            kill_workers_under_a_limit(lab, kills=2)
    finally:
        rabbitmq.end()


class _RabbitmqLab(Lab):
    def __init__(self, directory: Path, rabbitmq: RabbitmqServer) -> None:
        super().__init__(directory, agents="support.concurrent_agents")
        self._rabbitmq = rabbitmq

    @property
    def broker_url(self) -> str:
        return self._rabbitmq.url

    def worker_arguments(self, name: str) -> Sequence[str]:
        return ("-n", f"{name}@lab")  # two of one name cannot be at one RabbitMQ


def kill_workers_under_a_limit(lab: Lab, kills: int) -> None:
    """Kill workers while steps run and wait, each replaced by another one, until all jobs have ended."""
    lab.client.concurrency.set(ConcurrencyLimit("crm", total=2, per={"customer": 1}))
    workers = [lab.worker() for _ in range(2)]
    jobs: list[Job] = []
    for _ in range(kills):
        for customer in ("acme", "bolt", "cafe") * 3:  # so that steps run, however long the worker before took to start
            jobs.append(lab.client.submit("crm", "3", labels={"customer": customer}))
        seen = len(lab.ledger.entries())
        wait_until(lambda seen=seen: len(lab.ledger.entries()) > seen + 3, "steps run", 30)
        victim = workers.pop(0)
        victim.kill()
        post_effect(lab.ledger.url, f"killed {victim.pid}", dedupe=False, kind="killed", limit="", pid=victim.pid)
        workers.append(lab.worker())
    for job in jobs:
        assert job.result(timeout=180).status == "completed"
    assert 1 <= most_at_once(lab.ledger.entries()) <= 2
    (status,) = lab.client.concurrency.list()
    wait_until(lambda: _is_idle(lab), "no holder is left", 20)
    assert status.limit.total == 2


def _is_idle(lab: Lab) -> bool:
    return all(not part.held and not part.waiting for each in lab.client.concurrency.list() for part in each.parts)


def test_what_cannot_be_a_limit_is_refused_with_its_field(lab: Lab, client: AgentClient) -> None:
    for given, field in (
        ({"name": ""}, "ConcurrencyLimit.name"),
        ({"name": "a|b", "total": 1}, "ConcurrencyLimit.name"),
        ({"name": "crm"}, "ConcurrencyLimit"),
        ({"name": "crm", "total": -1}, "ConcurrencyLimit.total"),
        ({"name": "crm", "total": True}, "ConcurrencyLimit.total"),
        ({"name": "crm", "per": {"customer": 1.5}}, "ConcurrencyLimit.per['customer']"),
        ({"name": "crm", "per": {"": 1}}, "ConcurrencyLimit.per"),
    ):
        with pytest.raises(InvalidInput) as refused:
            ConcurrencyLimit(**given)
        assert refused.value.field == field
    wrong: Any = ProviderLimit("openai:m", rpm=1)
    with pytest.raises(InvalidInput, match=r"client\.limits\.set"):
        client.concurrency.set(wrong)


def test_limits_are_set_read_and_removed_over_http_and_by_the_async_client(lab: Lab, client: AgentClient) -> None:
    tokens = {"CELERY_AGENTS_HTTP_TOKEN_SECRETS": f"{ADMIN}:admin,{READER}:read"}
    process = ServeProcess(lab.directory / "serve", lab.store_url, tokens)
    process.start()
    try:
        body = {"limit": {"name": "crm", "total": 4, "per": {"customer": 2}}}
        address, admin, reader = f"{process.url}/v1/concurrency", _bearer(ADMIN), _bearer(READER)
        with httpx.Client(trust_env=False, timeout=10) as http:
            assert http.put(address, json=body, headers=reader).status_code == 403
            assert http.put(address, json=body, headers=admin).json() == {"notes": []}
            wait_until(lambda: _is_idle(lab), "who was stopped has left the line", 15)
            (found,) = http.get(address, headers=reader).json()["concurrency"]
            assert (found["total"], found["per"], found["parts"]) == (
                4,
                {"customer": 2},
                [{"name": "", "held": 0, "waiting": 0}],
            )
            refused = http.put(address, json={"limit": {"name": "crm"}}, headers=admin)
            assert refused.status_code == 422
            assert "total, per or both" in json.dumps(refused.json())
            assert http.delete(address, params={"name": "crm"}, headers=admin).json() == {"changed": True}
            assert http.get(address, headers=reader).json() == {"concurrency": []}
    finally:
        process.end()

    async def use() -> None:
        async with AsyncAgentClient(lab.store_url) as asynchronous:
            await asynchronous.concurrency.set(ConcurrencyLimit("crm", total=1))
            assert await asynchronous.concurrency.get("crm") == (await asynchronous.concurrency.list())[0].limit
            assert await asynchronous.concurrency.remove("crm")

    asyncio.run(use())


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
