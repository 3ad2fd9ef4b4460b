"""A Redis database that another Celery app uses too: it neither commands our workers nor gets in their way."""

from __future__ import annotations

import base64
import json
import pickle
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import redis
from celery import Celery

from celery_agents import AgentClient
from celery_agents.tasks.app import create_app

from support.agents import call, plan
from support.ledger import Ledger
from support.processes import Process, free_port
from support.wait import wait_until
from support.worker_process import WorkerProcess

pytestmark = pytest.mark.filterwarnings("ignore:no worker has registered")


@pytest.fixture
def other(redis_url: str) -> Iterator[Celery]:
    """An app with Celery's own names that sends everything as pickle."""
    app = Celery("other", broker=redis_url, set_as_current=False)
    app.conf.update(task_serializer="pickle", event_serializer="pickle", accept_content=["pickle"])
    yield app
    app.close()


@pytest.fixture
def client(redis_url: str) -> Iterator[AgentClient]:
    with AgentClient(redis_url) as client:
        yield client


def run_doctor(redis_url: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "celery_agents", "doctor", "--redis-url", redis_url],
        cwd=folder, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def expect_no_complaint(redis_url: str, folder: Path, client: AgentClient) -> None:
    job = client.submit("planned", plan(answer="fine"))
    assert job.result(timeout=20).final_response == "fine"
    doctor = run_doctor(redis_url, folder)
    assert doctor.returncode == 0, doctor.stdout
    assert "refused" not in doctor.stdout, doctor.stdout
    assert "quarantined message" not in doctor.stdout, doctor.stdout


def test_the_control_of_another_app_does_not_reach_our_workers(
    redis_url: str, new_worker: Callable[..., WorkerProcess], ledger: Ledger, client: AgentClient, tmp_path: Path
) -> None:
    worker = new_worker(env=ledger.env)
    other = Celery("other", broker=redis_url, set_as_current=False)
    assert other.control.inspect(timeout=1).ping() is None, "nobody of the other app is there"
    other.control.rate_limit("celery_agents.step", "1/m")
    other.control.shutdown()
    own = create_app(client.settings)
    (answer,) = own.control.ping(timeout=5, limit=1)
    assert list(answer.values()) == [{"ok": "pong"}]
    expect_no_complaint(redis_url, tmp_path, client)
    assert worker.alive
    own.control.shutdown()
    wait_until(lambda: not worker.alive, "our own control ends it", 20)


@pytest.mark.parametrize("pool", ["greenlets", "threads"])
def test_a_worker_that_celery_ends_by_itself_drains_and_is_no_longer_registered(
    new_worker: Callable[..., WorkerProcess], ledger: Ledger, client: AgentClient, pool: str
) -> None:
    """A shutdown by remote control sends no signal, as an unrecoverable error of the consumer sends none."""
    worker = new_worker(env={**ledger.env, "CELERY_AGENTS_POOL": pool, "CELERY_AGENTS_DRAIN_SECONDS": "1"})
    job = client.submit("planned", plan([call("keyed", work="a", after=600)]))
    wait_until(lambda: any(each["kind"] == "effect" for each in ledger.entries()), "its tool runs", 20)
    create_app(client.settings).control.shutdown()
    wait_until(lambda: not worker.alive, "it has ended, though the tool has not", 40, details=worker.tail)
    assert client.store.registry.workers() == {}
    assert client.header(job.session_id).status == "in_progress"


def test_commands_and_events_of_another_app_in_pickle_are_not_read(
    redis_url: str,
    other: Celery,
    new_worker: Callable[..., WorkerProcess],
    ledger: Ledger,
    client: AgentClient,
    tmp_path: Path,
) -> None:
    worker = new_worker(env=ledger.env)
    port = free_port()
    command = [sys.executable, "-P", "-m", "celery_agents", "flower", "--port", str(port)]
    environment = {"CELERY_AGENTS_REDIS_URL": redis_url, "FLOWER_BASIC_AUTH": "ops:secret"}
    flower = Process("flower", command, tmp_path, environment)
    flower.start()

    def shown_workers() -> list[str]:
        assert flower.alive, flower.text()
        try:
            asked = httpx.get(f"http://127.0.0.1:{port}/api/workers?refresh=1", auth=("ops", "secret"), timeout=10)
        except httpx.TransportError:
            return []
        return list(asked.json()) if asked.status_code == 200 else []

    try:
        wait_until(lambda: len(shown_workers()) == 1, "Flower shows our worker", 30)
        for _ in range(3):
            other.control.broadcast("ping")
            with (
                other.connection_for_write() as connection,
                other.events.Dispatcher(connection, hostname="neighbour@host") as events,
            ):
                events.send("worker-heartbeat", freq=2, active=1)
        expect_no_complaint(redis_url, tmp_path, client)
        assert worker.alive
        assert flower.alive
        assert "neighbour@host" not in shown_workers()
        assert len(shown_workers()) == 1, "it reads on"
        assert "pickle" not in flower.text() + worker.text()
    finally:
        flower.end(patience=2.0)


def unacknowledged(queue: str, body: bytes) -> str:
    """A record as kombu writes it."""
    message = {
        "body": base64.b64encode(body).decode(), "content-encoding": "binary", "content-type": "application/x-python-serialize",
        "headers": {"task": "other.long", "id": uuid.uuid4().hex},
        "properties": {
            "body_encoding": "base64", "delivery_tag": uuid.uuid4().hex, "priority": 0,
            "delivery_info": {"exchange": "", "routing_key": queue},
        },
    }  # fmt: skip
    return json.dumps([message, "", queue])


@pytest.mark.leaves_keys("the other app's records stay")
def test_unacknowledged_tasks_of_another_app_stay_with_it(
    redis_url: str,
    redis_client: redis.Redis,
    new_worker: Callable[..., WorkerProcess],
    ledger: Ledger,
    tmp_path: Path,
) -> None:
    """It may have a longer visibility timeout, and larger messages; ours would run its long tasks a second time."""
    short, large = unacknowledged("celery", pickle.dumps("task")), unacknowledged("reports", b"x" * 4_000_000)
    ours = unacknowledged("celery_agents.control", b"{}")
    records = {"short": short, "large": large, "ours": ours}
    redis_client.hset("unacked", mapping=records)
    redis_client.zadd("unacked_index", dict.fromkeys(records, 1.0))
    worker = new_worker(env=ledger.env)
    wait_until(lambda: not redis_client.hexists("unacked", "ours"), "ours is delivered again", 20, details=worker.tail)
    client = AgentClient(redis_url)
    wait_until(lambda: len(client.store.housekeeping.list_dead(10)) == 1, "as no task of ours", 20)
    assert redis_client.hgetall("unacked") == {"short": short, "large": large}
    assert set(redis_client.zrange("unacked_index", 0, -1)) == {"short", "large"}
    assert not redis_client.exists("celery", "reports")
    doctor = run_doctor(redis_url, tmp_path)
    assert "unacknowledged message" not in doctor.stdout, doctor.stdout


def test_an_existing_app_keeps_its_control_and_events(redis_url: str) -> None:
    from celery_agents import install
    from celery_agents.config.settings import Settings

    app = Celery("shop", broker=redis_url, set_as_current=False)
    app.conf.update(control_exchange="shop", event_exchange="shop.events")
    install(app, Settings.build(redis_url=redis_url))
    assert (app.conf.control_exchange, app.conf.event_exchange) == ("shop", "shop.events")
    assert app.control.mailbox.namespace == "shop"
