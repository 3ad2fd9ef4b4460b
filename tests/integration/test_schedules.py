"""Schedules as people use them: client, HTTP, commands, doctor, metrics, and agents that bring their own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from integration.test_providers import command, findings

from celery_agents import Agent, AgentClient, AsyncAgentClient
from celery_agents.flow import Schedule
from celery_agents.worker.errors import ConfigurationError, InvalidInput

from support.lab import Lab
from support.processes import free_port
from support.scraping import scraped
from support.serve_process import ServeProcess
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore:no worker has registered")]

ADMIN, READER = "token-of-admin-0123456789", "token-of-read-0123456789"
TOKENS = {"CELERY_AGENTS_HTTP_TOKEN_SECRETS": f"{ADMIN}:admin,{READER}:read"}
PORT = str(free_port())


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("schedules")
    with Lab(folder / "lab", agents="support.scheduled_agents") as started:
        started.worker(CELERY_AGENTS_METRICS_PORT=PORT)
        started.client.wait_for_agent("report")
        yield started


@pytest.fixture
def client(lab: Lab) -> Iterator[AgentClient]:
    """A client of a fleet without schedules of others, before and after."""
    yield lab.client
    for each in lab.client.schedules.list():
        lab.client.schedules.remove(each.schedule.name)


@pytest.fixture(scope="module")
def served(lab: Lab) -> Iterator[ServeProcess]:
    with ServeProcess(lab.directory / "serve", lab.store_url, TOKENS) as process:
        yield process


def made(name: str = "nightly", **changes: Any) -> Schedule:
    return Schedule(name, **{"cron": "0 2 * * *", "agent": "report", "message": "Report of {date}", **changes})


def test_an_agent_brings_its_schedules_and_their_slots_are_submitted(lab: Lab, client: AgentClient) -> None:
    def ticked() -> int:
        status = client.schedules.get("each-second")
        return 0 if status is None else status.submitted

    wait_until(lambda: ticked() >= 3, "the slots of three seconds are submitted", 30)
    names = [(each.schedule.name, each.schedule.agent, each.by) for each in client.schedules.list()]
    assert names == [("each-second", "report", "deployment"), ("yearly", "report", "deployment")]
    header = client.header("ticks")
    assert (header.agent, dict(header.labels)) == ("report", {"schedule": "each-second"})
    assert [each.session_id for each in client.list(label={"schedule": "each-second"})] == ["ticks"]
    assert scraped(int(PORT))['celery_agents_schedule_slots_total{outcome="submitted"}'] >= 3
    assert client.schedules.remove("each-second")
    told = [what for level, what, _ in findings(client, "schedule") if level == "ok"]
    assert [each.startswith("yearly: 0 0 1 1 * Europe/Berlin, next ") for each in told] == [True]

    # An edit stays when a worker of the same code starts, and gives way when the code has changed.
    client.schedules.set(made("yearly", cron="0 0 2 1 *"), by="ann")
    same = lab.worker()
    wait_until(lambda: len(client.workers()) == 2, "another worker has begun", 30)
    wait_until(lambda: client.schedules.get("each-second") is not None, "it has stored what was not there", 30)
    edited = client.schedules.get("yearly")
    assert edited is not None
    assert (edited.by, edited.schedule.cron) == ("ann", "0 0 2 1 *")
    changed = lab.worker(TEST_SCHEDULE_MESSAGE="Another report")

    def deployed() -> str:
        status = client.schedules.get("yearly")
        return "" if status is None else status.schedule.message

    wait_until(lambda: deployed() == "Another report", "the new code counts", 30)
    for worker in (same, changed):
        worker.end()


def test_a_redis_that_has_lost_the_schedules_of_agents_gets_them_back_from_their_workers(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab", agents="support.scheduled_agents") as lab:
        lab.worker()

        def names() -> list[str]:
            return [each.schedule.name for each in lab.client.schedules.list()]

        wait_until(lambda: names() == ["each-second", "yearly"], "the worker has stored them", 30)
        assert lab.client.schedules.remove("yearly")
        lab.redis.flushall()
        wait_until(lambda: names() == ["each-second", "yearly"], "it has stored them again", 30)


def test_a_schedule_is_set_edited_run_and_removed(client: AgentClient) -> None:
    assert client.schedules.set(made(zone="Europe/Berlin", session="report-{date}"), by="ann") == ()
    status = client.schedules.get("nightly")
    assert status is not None
    assert (status.by, status.revision, status.submitted) == ("ann", 1, 0)
    job = client.schedules.run_now("nightly", idempotency_key="one")
    assert client.schedules.run_now("nightly", idempotency_key="one").session_id == job.session_id
    assert job.session_id.startswith("report-20")
    result = job.result(timeout=30)
    assert result.final_response.startswith("read: Report of 20")
    # The session exists now: the next message goes into its queue.
    again = client.schedules.run_now("nightly")
    assert again.session_id == job.session_id
    assert again.result(timeout=30).status == "completed"
    assert len(client.show(job.session_id).state.messages) == 4
    (note,) = client.schedules.set(made(agent="nobody"))
    assert note == "agent: no live worker has nobody; they have report."
    assert [what for level, what, _ in findings(client, "schedule") if level == "warn"] == [f"nightly: {note}"]
    assert client.schedules.remove("nightly")
    assert not client.schedules.remove("nightly")
    with pytest.raises(InvalidInput, match="no such schedule"):
        client.schedules.run_now("nightly")


def test_a_key_makes_one_execution_also_in_a_later_second(client: AgentClient) -> None:
    """Its time is in the message and in the session: it was refused, or a second session was made."""
    client.schedules.set(made(message="At {slot}", session="at-{hour}-{minute}-{second}"))
    first = client.schedules.run_now("nightly", idempotency_key="one")
    second = client.store.housekeeping.now_ms() // 1000
    wait_until(lambda: client.store.housekeeping.now_ms() // 1000 > second, "another second has begun", 5)
    assert client.schedules.run_now("nightly", idempotency_key="one").session_id == first.session_id
    assert first.result(timeout=30).status == "completed"
    assert len(client.show(first.session_id).state.messages) == 2
    assert client.schedules.run_now("nightly", idempotency_key="two").session_id != first.session_id


def test_a_slot_that_its_session_refuses_is_told_and_the_next_one_tries_again(client: AgentClient) -> None:
    client.submit("other", "mine", session_id="taken")
    client.schedules.set(made(cron="* * * * * *", session="taken"))

    def refused() -> int:
        status = client.schedules.get("nightly")
        return 0 if status is None else status.refused

    wait_until(lambda: refused() >= 2, "two slots were refused", 30)
    (what,) = (what for level, what, _ in findings(client, "schedule") if level == "warn")
    assert "its last slot was refused: session taken belongs to agent 'other'" in what


@pytest.mark.parametrize(
    ("schedule", "field", "advice"),
    [("nightly", "schedule", "give a Schedule"), (made(agent=""), "Schedule.agent", "name the agent")],
    ids=str,
)
def test_what_is_no_schedule_is_refused(client: AgentClient, schedule: Any, field: str, advice: str) -> None:
    with pytest.raises(InvalidInput, match=advice) as refused:
        client.schedules.set(schedule)
    assert refused.value.field == field
    assert client.schedules.get("nightly") is None


def test_an_agent_refuses_schedules_of_others() -> None:
    with pytest.raises(ConfigurationError, match="it is given to 'mine'"):
        Agent("mine", driver=lambda _: "", schedules=[made()])
    with pytest.raises(ConfigurationError, match="must be Schedule values"):
        Agent("mine", driver=lambda _: "", schedules=["0 2 * * *"])  # pyright: ignore[reportArgumentType]


def test_the_async_client_has_the_same_verbs(client: AgentClient) -> None:
    async def play() -> str:
        own = AsyncAgentClient.of(client)
        assert await own.schedules.set(made()) == ()
        assert await own.schedules.get("nightly") is not None
        assert "nightly" in [each.schedule.name for each in await own.schedules.list()]
        job = await own.schedules.run_now("nightly")
        await job.result(timeout=30)
        assert await own.schedules.remove("nightly")
        return job.session_id

    assert dict(client.header(asyncio.run(play())).labels) == {"schedule": "nightly"}


@pytest.mark.usefixtures("client")
def test_over_http_a_schedule_is_set_listed_run_and_removed(served: ServeProcess) -> None:
    with httpx.Client(base_url=served.url, trust_env=False) as http:
        admin, reader = ({"Authorization": f"Bearer {token}"} for token in (ADMIN, READER))
        schedule = {
            "name": "nightly", "cron": "0 2 * * *", "zone": "Europe/Berlin", "agent": "report",
            "message": "Report of {date}", "missed": 3, "jitter_seconds": 60,
        }  # fmt: skip
        refused = http.put("/v1/schedules", json={"schedule": {**schedule, "cron": "0 0 30 2 *"}}, headers=admin)
        assert refused.status_code == 422
        assert "it never fires" in refused.text
        assert http.put("/v1/schedules", json={"schedule": schedule}, headers=reader).status_code == 403
        done = http.put("/v1/schedules", json={"schedule": schedule, "by": "ann"}, headers=admin)
        assert done.json() == {"notes": []}, done.text
        (found,) = (
            each for each in http.get("/v1/schedules", headers=reader).json()["schedules"] if each["name"] == "nightly"
        )
        assert {name: found[name] for name in schedule} == schedule
        assert (found["submitted"], found["last"], found["deployed"]) == (0, None, False)
        begins = datetime.fromisoformat(found["next_at"])
        assert timedelta(0) < begins - datetime.now(UTC) < timedelta(days=1, hours=2)
        assert http.post("/v1/schedules/nightly/run", headers=reader).status_code == 403
        ran = http.post("/v1/schedules/nightly/run?wait=20", headers={**admin, "Idempotency-Key": "1"})
        assert ran.json()["result"]["status"] == "completed", ran.text
        again = http.post("/v1/schedules/nightly/run", headers={**admin, "Idempotency-Key": "1"})
        assert again.json()["session_id"] == ran.json()["session_id"]
        gone = [http.delete("/v1/schedules?name=nightly", headers=admin).json() for _ in range(2)]
        assert gone == [{"changed": True}, {"changed": False}]


def test_the_command_sets_lists_runs_and_removes(lab: Lab, client: AgentClient) -> None:
    given = ("--cron", "0 2 * * *", "--zone", "Europe/Berlin", "--agent", "report", "-m", "Report of {date}")
    assert command(lab, "schedules", "set", "nightly", *given, "--missed", "2", "--jitter", "5m").stdout == "set\n"
    status = client.schedules.get("nightly")
    assert status is not None
    assert status.schedule == made(zone="Europe/Berlin", missed=2, jitter=timedelta(minutes=5))
    listed = command(lab, "schedules").stdout
    assert "0 2 * * * Europe/Berlin" in listed
    shown = [json.loads(line) for line in command(lab, "schedules", "--json").stdout.splitlines()]
    assert [each["cron"] for each in shown if each["name"] == "nightly"] == ["0 2 * * *"]
    session = command(lab, "schedules", "run", "nightly").stdout.strip()
    assert client.job(session).result(timeout=30).status == "completed"
    assert command(lab, "schedules", "remove", "nightly").stdout == "removed\n"
    assert command(lab, "schedules", "remove", "nightly").stdout == "there is no such schedule\n"
    for wrong, told in (
        (("set", "nightly", *given[:-2]), "--message"),
        (("set",), "NAME"),
        (("remove", "nightly", "--cron", "* * * * *"), "--cron"),
        (("set", "nightly", *given, "--missed", "-1"), "Schedule.missed"),
        (("set", "nightly", "--zone", "Mars/X", *given[:2], *given[4:]), "Schedule.zone"),
    ):
        done = command(lab, "schedules", *wrong)
        assert done.returncode == 2, (wrong, done)
        assert told in done.stderr, (wrong, done.stderr)
