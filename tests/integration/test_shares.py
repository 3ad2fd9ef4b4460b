"""Fair shares with real workers: an outside ledger counts for how long the steps of each customer run, beside kills."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from celery_agents import AgentClient, AsyncAgentClient
from celery_agents.flow import FairShares
from celery_agents.tasks.cli import main
from celery_agents.tasks.client.job import Job
from celery_agents.tasks.observability.doctor.checks import examine
from celery_agents.worker.errors import ActionRefused, InvalidInput
from celery_agents.worker.store.control import ControlFields, control_command

from support.lab import Lab
from support.serve_process import ServeProcess
from support.shared_agents import jain, used, work
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore:no worker has registered")]
ADMIN, READER = "token-of-admin-0123456789", "token-of-read-0123456789"
SLOTS: Mapping[str, str] = {"CELERY_AGENTS_CONCURRENCY": "4"}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("shares"), agents="support.shared_agents", env=SLOTS) as started:
        worker = started.worker()
        started.client.wait_for_agent("shared")
        worker.kill()
        yield started


@pytest.fixture
def client(lab: Lab) -> Iterator[AgentClient]:
    yield lab.client
    lab.client.shares.remove()


def submit(lab: Lab, customer: str, number: int, **options: Any) -> list[Job]:
    """Submit jobs of a customer; `options` are those of `work`."""
    text = work(customer, **options)
    return [lab.client.submit("shared", text, labels={"customer": customer}) for _ in range(number)]


def lane_of(client: AgentClient, session: str) -> str:
    keys = client.store.context.keys(session)
    (reply,) = client.store.context.database.pipeline("test", [control_command(keys)])
    return ControlFields.read(reply).lane


@pytest.mark.parametrize("sessions", [8, pytest.param(200, marks=pytest.mark.long)])
def test_customers_get_slot_time_by_their_weights_whatever_they_hand_over_and_though_workers_die(
    tmp_path: Path, sessions: int
) -> None:
    """FLOW: one customer has five times as many jobs as the others, and steps of one are four times as long."""
    with Lab(tmp_path / "lab", agents="support.shared_agents", env=SLOTS) as lab:
        lab.client.shares.set(FairShares("customer", weights={"double": 2}))
        jobs = submit(lab, "heavy", 5 * sessions, steps=4, seconds=0.1, sigma=0.5)
        for customer, times, seconds in (("double", 4, 0.1), ("short", 3, 0.1), ("long", 2, 0.4)):
            jobs += submit(
                lab, customer, times * sessions, steps=max(3, round(0.6 / seconds)), seconds=seconds, sigma=0.5
            )
        workers = [lab.worker(), lab.worker()]
        wait_until(lambda: len(lab.ledger.entries()) > 8, "steps run", 30)
        began = time.time()
        for _ in range(max(1, sessions // 12)):
            time.sleep(1.5)
            workers.pop(0).kill()
            workers.append(lab.worker())
        time.sleep(1.5)
        ended = time.time()
        waiting = {each.share for each in lab.client.shares.get().waiting}
        assert waiting == {"heavy", "double", "short", "long"}, "all of them had work all the time"
        for job in jobs:
            assert job.result(timeout=600).status == "completed"
        seconds = used(lab.ledger.entries(), began, ended)
        seconds["double"] /= 2
        index = jain([*seconds.values()])
        print(f"Jain {index:.4f} of {seconds} in {ended - began:.1f} s")
        assert index >= 0.85, "0.46 without shares"
        assert lab.client.shares.get().waiting == ()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_fifty_customers_one_of_which_has_a_thousand_jobs_get_the_same_and_a_light_one_does_not_wait(
    tmp_path: Path,
) -> None:
    env = {"CELERY_AGENTS_CONCURRENCY": "16"}
    with Lab(tmp_path / "lab", agents="support.shared_agents", env=env) as lab:
        first = lab.worker()
        lab.client.wait_for_agent("shared")
        first.kill()
        lab.client.shares.set(FairShares("customer"))
        jobs = submit(lab, "heavy", 1_000, steps=2, seconds=0.1, sigma=1.0)
        for number in range(49):
            jobs += submit(lab, f"c{number}", 200, steps=2, seconds=0.1, sigma=1.0)
        workers = [lab.worker(), lab.worker()]
        wait_until(lambda: len(lab.ledger.entries()) > 100, "steps run", 60)
        began, sent = time.time(), dict[str, float]()
        for turn in range(100):
            sent[f"light-{turn}"] = time.time()
            lab.client.submit("shared", work(f"light-{turn}", seconds=0.1), labels={"customer": "light"})
            if turn % 30 == 29:
                workers.pop(0).kill()
                workers.append(lab.worker())
            time.sleep(0.25)
        ended = time.time()
        assert len(lab.client.shares.get().waiting) >= 50, "all of them had work all the time"
        for job in jobs:
            assert job.result(timeout=600).status == "completed"
        entries = lab.ledger.entries()
        began_at = {each["customer"]: each["began"] for each in entries if each["customer"] in sent}
        waits = sorted(began_at[name] - at for name, at in sent.items())
        seconds = used([each for each in entries if each["customer"] not in sent], began, ended)
        index, most = jain([*seconds.values()]), waits[int(0.99 * len(waits)) - 1]
        busy = sum(seconds.values()) / (ended - began) / 32
        print(
            f"Jain {index:.4f}; a light one waits {waits[len(waits) // 2]:.3f} s, {most:.3f} s at most of 99 %; {busy:.2f}"
        )
        assert index >= 0.95
        assert most <= 0.15, "a step and a half"


def test_a_session_keeps_its_share_and_one_from_before_or_a_fork_with_labels_gets_one(
    lab: Lab, client: AgentClient
) -> None:
    before = submit(lab, "acme", 1, steps=3, seconds=0.3)[0]
    assert lane_of(client, before.session_id) == ""
    client.shares.set(FairShares("customer"), by="ann")
    (during,) = submit(lab, "acme", 1)
    assert lane_of(client, during.session_id) == "1/acme"
    bulk = client.submit("shared", work("acme"), labels={"customer": "acme"}, priority="bulk")
    nobody = client.submit("shared", work(""), priority="interactive")
    assert (lane_of(client, bulk.session_id), lane_of(client, nobody.session_id)) == ("2/acme", "0/")
    (acme, other) = client.shares.get().waiting
    assert (acme.share, acme.waiting, other.share) == ("acme", {"normal": 1, "bulk": 1}, "")
    found = [each.what for each in examine(client.settings) if each.name == "shares"]
    assert found == [
        "slots are shared by customer, as ann has set it; acme 1 normal, 1 bulk, (without the label) 1 interactive"
    ]
    other = client.fork(bulk.session_id, labels={"customer": "other"})
    forks = [client.fork(bulk.session_id), other, client.fork(nobody.session_id, labels={"customer": "acme"})]
    assert [lane_of(client, each) for each in forks] == ["2/acme", "2/other", "0/acme"]
    worker = lab.worker()
    for job in (before, during, bulk, nobody):
        assert job.result(timeout=30).status == "completed"
    assert lane_of(client, before.session_id) == "1/acme"
    assert client.shares.get().waiting == ()
    worker.kill()


def test_interactive_jobs_do_not_wait_for_a_backlog_of_bulk(lab: Lab, client: AgentClient) -> None:
    backlog = [client.submit("shared", work("bulk", seconds=0.3), priority="bulk") for _ in range(40)]
    worker = lab.worker()
    wait_until(lambda: sum(client.header(job.session_id).status == "completed" for job in backlog) > 3, "it runs", 30)
    sent = time.time()
    urgent = client.submit("shared", work("urgent"), priority="interactive")
    for job in (urgent, *backlog):
        assert job.result(timeout=60).status == "completed"
    entries = lab.ledger.entries()
    (begun,) = [each["began"] for each in entries if each["customer"] == "urgent"]
    before_it = [each for each in entries if each["customer"] == "bulk" and sent < each["began"] < begun]
    assert len(before_it) <= 8, "those that its worker had taken already"
    worker.kill()


def test_a_priority_is_that_of_a_new_session_and_of_its_children(lab: Lab, client: AgentClient) -> None:
    (job,) = submit(lab, "acme", 1)
    with pytest.raises(InvalidInput, match="priority") as refused:
        client.submit("shared", "more", session_id=job.session_id, priority="bulk")
    assert "only a new session" in str(refused.value)
    wrong: Any = "urgent"
    with pytest.raises(InvalidInput, match="interactive, normal, bulk"):
        client.submit("shared", "go", priority=wrong)
    keyed = client.submit("shared", work("acme"), priority="bulk", idempotency_key="one")
    assert client.submit("shared", work("acme"), priority="bulk", idempotency_key="one").session_id == keyed.session_id
    worker = lab.worker()
    for each in (job, keyed):
        assert each.result(timeout=30).status == "completed"
    worker.kill()


def test_what_cannot_be_shares_is_refused_with_its_field(client: AgentClient) -> None:
    for given, field in (
        ({"label": ""}, "FairShares.label"),
        ({"label": "a", "weights": {"acme": 0}}, "FairShares.weights['acme']"),
        ({"label": "a", "weights": {"acme": True}}, "FairShares.weights['acme']"),
        ({"label": "a", "weights": {"acme": float("nan")}}, "FairShares.weights['acme']"),
        ({"label": "a", "weights": {" ": 1}}, "FairShares.weights[' ']"),
        ({"label": "a", "weights": {f"v{n}": 1 for n in range(1_001)}}, "FairShares.weights"),
    ):
        with pytest.raises(InvalidInput) as refused:
            FairShares(**given)
        assert refused.value.field == field
    wrong: Any = {"label": "customer"}
    with pytest.raises(InvalidInput, match="FairShares"):
        client.shares.set(wrong)


def test_where_the_broker_is_no_redis_shares_and_priorities_are_refused(lab: Lab) -> None:
    with AgentClient(lab.store_url, broker_url="amqp://nobody@localhost:1") as apart:
        with pytest.raises(ActionRefused, match="a Redis as the broker"):
            apart.shares.set(FairShares("customer"))
        with pytest.raises(InvalidInput, match="a Redis as the broker"):
            apart.submit("shared", "go", priority="bulk")
        assert apart.shares.get().waiting == ()


def test_shares_are_set_read_and_removed_over_http_by_commands_and_by_the_async_client(
    lab: Lab, client: AgentClient, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = {"CELERY_AGENTS_HTTP_TOKEN_SECRETS": f"{ADMIN}:admin,{READER}:read"}
    with ServeProcess(lab.directory / "serve", lab.store_url, tokens) as process:
        address, admin, reader = f"{process.url}/v1/shares", _bearer(ADMIN), _bearer(READER)
        body = {"shares": {"label": "customer", "weights": {"acme": 2}}}
        with httpx.Client(trust_env=False, timeout=10) as http:
            assert http.get(address, headers=reader).json() == {"shares": None, "waiting": []}
            assert http.put(address, json=body, headers=reader).status_code == 403
            assert http.put(address, json=body, headers=admin).status_code == 204
            job = {"message": work("acme"), "labels": {"customer": "acme"}, "priority": "interactive"}
            made = http.post(f"{process.url}/v1/agents/shared/jobs", json=job, headers=admin).json()
            found = http.get(address, headers=reader).json()
            assert (found["shares"]["label"], found["shares"]["weights"]) == ("customer", {"acme": 2.0})
            assert found["waiting"] == [{"share": "acme", "weight": 2.0, "waiting": {"interactive": 1}}]
            job["priority"] = "urgent"
            assert http.post(f"{process.url}/v1/agents/shared/jobs", json=job, headers=admin).status_code == 422
            refused = http.put(address, json={"shares": {"label": "a", "weights": {"b": 0}}}, headers=admin)
            assert refused.status_code == 422
            assert "weights['b']" in json.dumps(refused.json())
            assert http.delete(address, headers=admin).json() == {"changed": True}
    command(lab, "set", "customer", "--weight", "acme=3")
    capsys.readouterr()
    words = ("shared", work("acme"), "--label", "customer=acme", "--priority", "bulk", "--json")
    with pytest.raises(SystemExit) as ended:
        main(["submit", *words, "--redis-url", lab.store_url])
    assert ended.value.code == 0
    client.stop(json.loads(capsys.readouterr().out)["session_id"])
    command(lab)
    shown = capsys.readouterr().out
    assert "slots are shared by customer (acme 3)" in shown
    assert shown.splitlines()[-1].split() == ["acme", "3", "1", "interactive,", "1", "bulk"]
    command(lab, "remove")
    assert "removed" in capsys.readouterr().out
    for words in (("set",), ("list", "customer"), ("list", "--weight", "a=1"), ("set", "customer", "--weight", "a")):
        command(lab, *words, code=2)
    client.stop(made["session_id"])

    async def use() -> None:
        async with AsyncAgentClient(lab.store_url) as asynchronous:
            await asynchronous.shares.set(FairShares("team"))
            shares = (await asynchronous.shares.get()).shares
            assert shares is not None
            assert shares.label == "team"
            assert await asynchronous.shares.remove()

    asyncio.run(use())


def command(lab: Lab, *words: str, code: int = 0) -> None:
    """Run `celery-agents shares`."""
    with pytest.raises(SystemExit) as ended:
        main(["shares", *words, "--redis-url", lab.store_url])
    assert ended.value.code == code


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
