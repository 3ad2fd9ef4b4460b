"""Spend caps with real workers and an outside bill, and as people use them: client, HTTP, commands, doctor, metrics."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from integration.test_providers import command, findings

from celery_agents import AgentClient, AsyncAgentClient
from celery_agents.flow import SpendCap
from celery_agents.tasks.observability.waiting_counts import WaitingFor
from celery_agents.worker.errors import InvalidInput

from support.capped_agents import PRICE
from support.lab import Lab
from support.processes import free_port
from support.scraping import scraped
from support.serve_process import ServeProcess
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore:no worker has registered")]

ADMIN, READER = "token-of-admin-0123456789", "token-of-read-0123456789"
TOKENS = {"CELERY_AGENTS_HTTP_TOKEN_SECRETS": f"{ADMIN}:admin,{READER}:read"}
PORT = str(free_port())
SLOTS = 8


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("caps") / "lab", agents="support.capped_agents") as started:
        started.worker(CELERY_AGENTS_METRICS_PORT=PORT, CELERY_AGENTS_CONCURRENCY=str(SLOTS))
        started.client.wait_for_agent("spender")
        yield started


@pytest.fixture
def client(lab: Lab) -> Iterator[AgentClient]:
    """A client of a fleet without caps of others, before and after."""
    yield lab.client
    for each in lab.client.caps.list():
        lab.client.caps.remove(each.cap.name)


def bill(lab: Lab) -> float:
    """What the provider charges, by its own book."""
    return round(PRICE * sum(each["kind"] == "paid" for each in lab.ledger.entries()), 6)


def spent(client: AgentClient, name: str) -> dict[str, float]:
    (status,) = (each for each in client.caps.list() if each.cap.name == name)
    return {each.value: round(each.usd, 6) for each in status.spent}


def set_cap(client: AgentClient, cap: SpendCap, by: str | None = None) -> Sequence[str]:
    """Set a cap of which the worker has heard before its next job: it is told at once, and hears when it has a moment."""
    notes = client.caps.set(cap, by=by)
    assert client.submit("other", "1").result(timeout=30).status == "completed"
    return notes


def test_no_more_is_spent_than_the_cap_and_the_calls_in_flight(lab: Lab, client: AgentClient) -> None:
    set_cap(client, SpendCap("all", usd=1, per="month", agent="spender"), by="ann")
    before = bill(lab)
    jobs = [client.submit("spender", "3") for _ in range(20)]
    wait_until(lambda: client.waiting().count(WaitingFor.SPEND_CAP) == len(jobs) - ended(client, jobs), "they wait", 60)
    in_flight = SLOTS * PRICE
    assert 1 - PRICE < bill(lab) - before <= 1 + in_flight
    assert spent(client, "all")[""] == round(bill(lab) - before, 6), "the cap has counted what the provider charges"
    waiting = next(job for job in jobs if client.header(job.session_id).status != "completed")
    told = command(lab, "show", waiting.session_id).stdout
    assert "the spend cap all allows 1 $ a month, and" in told
    with pytest.warns(UserWarning, match="the job waits: the spend cap all allows 1 [$] a month, and"):
        more = client.submit("spender", "1")
    assert " $ are spent; until " in more.notice
    jobs.append(more)
    (found,) = findings(client, "cap")
    assert found[0] == "warn"
    assert found[1].startswith("all, a month: all 1")
    assert scraped(int(PORT))['celery_agents_cap_spent_share{cap="all"}'] >= 1
    assert scraped(int(PORT))['celery_agents_cap_waits_total{cap="all"}'] >= 1
    assert client.submit("other", "1").result(timeout=30).status == "completed", "another agent goes on"
    client.caps.set(SpendCap("all", usd=10, per="month", agent="spender"))
    assert [job.result(timeout=60).status for job in jobs] == ["completed"] * len(jobs)
    assert spent(client, "all") == {"": round((20 * 3 + 1) * PRICE, 6)}
    assert client.submit("spender", "1").notice == ""
    client.pause(agent="other", reason="a freeze")
    with lab.new_client() as another, pytest.warns(UserWarning, match="the job waits: agent other paused since"):
        assert another.submit("other", "1").notice.endswith(": a freeze")
    client.unpause(agent="other")


def ended(client: AgentClient, jobs: list[Any]) -> int:
    return sum(client.header(job.session_id).status == "completed" for job in jobs)


def test_each_customer_has_an_amount_of_its_own(client: AgentClient) -> None:
    set_cap(client, SpendCap("customers", usd=0.2, per="month", label="customer", values={"acme": 100}))
    jobs = {
        name: [client.submit("spender", "2", labels={"customer": name}) for _ in range(4)] for name in ("acme", "b")
    }
    assert [job.result(timeout=30).status for job in jobs["acme"]] == ["completed"] * 4
    wait_until(lambda: client.waiting().count(WaitingFor.SPEND_CAP) > 0, "some of b wait", 30)
    free = client.submit("spender", "2")
    assert free.result(timeout=30).status == "completed", "a session without the label is not capped"
    found = spent(client, "customers")
    assert found["acme"] == 0.4
    assert 0.2 <= found["b"] <= 0.2 + 4 * PRICE
    client.caps.remove("customers")
    assert [job.result(timeout=30).status for job in jobs["b"]] == ["completed"] * 4


def test_a_cap_that_stops_ends_the_execution_with_its_reason(client: AgentClient) -> None:
    (note,) = set_cap(client, SpendCap("none", usd=0, per="day", agent="spender", then="stop"))
    assert note == "cap: 0 lets no model call begin under none; what needs one stops at once."
    result = client.submit("spender", "1").result(timeout=30)
    assert (result.status, result.stop_reason, result.step_count) == ("stopped", "cost_limit", 0)


@pytest.mark.parametrize(
    ("sessions", "customers", "usd", "slots", "kills"),
    [(40, 2, 1.0, 8, 3), pytest.param(1000, 10, 5.0, 50, 20, marks=[pytest.mark.long, pytest.mark.timeout(1200)])],
)
def test_workers_that_are_killed_spend_no_more_and_lose_nothing(
    tmp_path: Path, sessions: int, customers: int, usd: float, slots: int, kills: int
) -> None:
    with Lab(tmp_path / "lab", agents="support.capped_agents") as lab:
        client, env = lab.client, {"CELERY_AGENTS_CONCURRENCY": str(slots)}
        client.caps.set(SpendCap("customers", usd=usd, per="month", label="customer"))
        workers = [lab.worker(**env) for _ in range(2)]
        names = [f"c{n % customers}" for n in range(sessions)]
        jobs = [client.submit("spender", f"3 {name}", labels={"customer": name}) for name in names]
        for number in range(kills):
            some = 0.8 * customers * usd * number / kills
            wait_until(lambda some=some: bill(lab) >= some, "some was paid", 120)
            workers.pop(0).kill()
            workers.append(lab.worker(**env))

        def all_wait() -> bool:
            return client.waiting().count(WaitingFor.SPEND_CAP) == len(jobs) - ended(client, jobs)

        wait_until(all_wait, "who has not ended waits for money", 120)
        charged, counted = Counter(each["customer"] for each in lab.ledger.entries()), spent(client, "customers")
        for customer in set(names):
            paid = round(PRICE * charged[customer], 6)
            print(customer, "charged", paid, "counted", counted[customer])
            # A call that nobody has heard of was charged by its provider, and counts as it was reserved.
            assert paid <= usd + 2 * slots * PRICE, customer
            assert counted[customer] >= usd - PRICE, customer
        client.caps.remove("customers")
        assert [job.result(timeout=120).status for job in jobs] == ["completed"] * len(jobs)


def test_the_async_client_has_the_same_verbs(client: AgentClient) -> None:
    async def play() -> None:
        own = AsyncAgentClient.of(client)
        (note,) = await own.caps.set(SpendCap("mine", usd=1, per="day", agent="nobody"), by="ann")
        assert note == "agent: no live worker has nobody; they have other, spender."
        found = await own.caps.get("mine")
        assert found is not None
        assert (found.by, found.usd) == ("ann", 1)
        assert [each.cap.name for each in await own.caps.list()] == ["mine"]
        assert await own.caps.remove("mine")
        assert not await own.caps.remove("mine")

    asyncio.run(play())


def test_what_is_no_cap_is_refused(client: AgentClient) -> None:
    given: Any = "mine"
    with pytest.raises(InvalidInput, match="give a SpendCap"):
        client.caps.set(given)


@pytest.mark.usefixtures("client")
def test_over_http_a_cap_is_set_listed_and_removed(lab: Lab) -> None:
    with (
        ServeProcess(lab.directory / "serve", lab.store_url, TOKENS) as process,
        httpx.Client(base_url=process.url, trust_env=False) as http,
    ):
        admin, reader = ({"Authorization": f"Bearer {token}"} for token in (ADMIN, READER))
        cap = {"name": "web", "usd": 0.5, "per": "day", "zone": "Europe/Berlin", "label": "customer"}
        assert http.put("/v1/caps", json={"cap": cap}, headers=reader).status_code == 403
        done = http.put("/v1/caps", json={"cap": {**cap, "values": {"acme": 2}}, "by": "ann"}, headers=admin)
        assert done.json() == {"notes": []}, done.text
        (found,) = http.get("/v1/caps", headers=reader).json()["caps"]
        assert {name: found[name] for name in cap} == cap
        assert (found["values"], found["by"], found["spent"]) == ({"acme": 2.0}, "ann", [])
        for wrong, told in (({"per": "week"}, "per"), ({"usd": -1}, "usd"), ({"zone": "Mars/X"}, "SpendCap.zone")):
            refused = http.put("/v1/caps", json={"cap": {**cap, **wrong}}, headers=admin)
            assert refused.status_code == 422, refused.text
            assert told in refused.text
        gone = [http.delete("/v1/caps?name=web", headers=admin).json() for _ in range(2)]
        assert gone == [{"changed": True}, {"changed": False}]


def test_the_command_sets_lists_and_removes(lab: Lab, client: AgentClient) -> None:
    given = ("--usd", "20", "--per", "day", "--label", "customer", "--value", "acme=100", "--then", "stop")
    assert command(lab, "caps", "set", "shell", *given).stdout == "set\n"
    found = client.caps.get("shell")
    assert found is not None
    assert (found.usd, dict(found.values), found.then) == (20, {"acme": 100}, "stop")
    assert "20 $ a day for each customer (acme 100 $), then stop" in command(lab, "caps").stdout
    (shown,) = (json.loads(line) for line in command(lab, "caps", "--json").stdout.splitlines())
    assert (shown["name"], shown["spent"]) == ("shell", [])
    assert command(lab, "caps", "remove", "shell").stdout == "removed\n"
    assert command(lab, "caps", "remove", "shell").stdout == "no such cap was set\n"
    for wrong, told in (
        (("set", "shell", "--usd", "1"), "--per"),
        (("set", "--usd", "1", "--per", "day"), "NAME"),
        (("remove", "shell", "--usd", "1"), "--usd"),
        (("set", "shell", "--per", "day", "--value", "acme"), "VALUE=USD"),
        (("set", "shell", "--per", "day"), "SpendCap.usd"),
    ):
        done = command(lab, "caps", *wrong)
        assert done.returncode == 2, (wrong, done)
        assert told in done.stderr, (wrong, done.stderr)
