"""Control messages that Celery rejects, or forgets with its connection, and records that kombu has left."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from celery.worker import state as worker_state
from kombu.message import Message

from celery_agents.config.settings import Settings
from celery_agents.tasks.app import create_app
from celery_agents.tasks.consumer import control_fetcher
from celery_agents.tasks.consumer.control_consumer import ControlConsumer
from celery_agents.tasks.consumer.internals import plain_socket
from celery_agents.tasks.consumer.kombu_records import KombuRecords
from celery_agents.tasks.consumer.quarantine import Quarantine
from celery_agents.tasks.consumer.queue_fetcher import QueueFetcher
from celery_agents.tasks.names import SUBMIT
from celery_agents.tasks.observability.liveness import Liveness
from celery_agents.worker.errors import StoreUnavailable
from celery_agents.worker.store.redis.database import connect_to_wait

from support.wait import wait_until

QUEUE = "celery_agents.control"
RECORDS, TIMES = f"{QUEUE}.unacked", f"{QUEUE}.unacked_index"


class Request:
    """A task that Celery has received."""

    def __init__(self, message: Any, acknowledge: Callable[..., None], reject: Callable[..., None]) -> None:
        self.message = message
        self.acknowledge = lambda: acknowledge(None, ())
        self.reject = lambda requeue: reject(None, (), requeue)


class Consuming:
    """A consumer of Celery, as far as messages are delivered to it; the strategy of the task is a test's own."""

    def __init__(self) -> None:
        self.pool = SimpleNamespace(num_processes=4)
        self.controller = SimpleNamespace(max_concurrency=None)
        self.strategies: dict[str, Any] = {SUBMIT: self.receive}
        self.requests: list[Request] = []
        self.fails: Exception | None = None
        self.errors: list[Exception] = []

    def receive(self, message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> None:
        if self.fails is not None:
            raise self.fails
        self.requests.append(Request(message, ack, reject))

    def call_soon(self, call: Callable[..., object], *args: Any) -> None:
        try:
            call(*args)
        except Exception as error:
            self.errors.append(error)

    def take(self, number: int) -> Request:
        wait_until(lambda: len(self.requests) >= number, f"{number} are delivered", 10)
        return self.requests[number - 1]


class Runtime:
    """What a worker's process has, with a list in the place of the store's quarantine."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.liveness = Liveness()
        self.quarantined: list[tuple[str, str]] = []
        self.refused = 0
        self.fails: Exception | None = None
        self.store = SimpleNamespace(housekeeping=SimpleNamespace(quarantine=self._quarantine))

    def __call__(self) -> Runtime:
        return self

    def _quarantine(self, *entry: str) -> None:
        if self.fails is not None:
            self.refused += 1
            raise self.fails
        self.quarantined.append(entry)


@pytest.fixture
def app(redis_url: str) -> Celery:
    return create_app(Settings.build(redis_url=redis_url, redis_timeout_seconds=2))


@pytest.fixture
def runtime(redis_url: str) -> Any:
    return Runtime(Settings.build(redis_url=redis_url, redis_timeout_seconds=2))


@pytest.fixture
def consuming() -> Consuming:
    return Consuming()


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_fetcher, "LOOK_SECONDS", 0.3)


@pytest.fixture
def control(app: Celery, runtime: Any, consuming: Consuming, redis_client: redis.Redis) -> Iterator[ControlConsumer]:
    made = ControlConsumer(app, runtime, (QUEUE,))
    made.open()
    made.connect(consuming)
    yield made
    made.close()
    redis_client.flushdb()


def send(app: Celery) -> None:
    app.send_task(SUBMIT, kwargs={"agent": "a", "message": "m", "session_id": "s"}, queue=QUEUE)


def end_visibility(client: redis.Redis) -> None:
    for name in client.zrange(TIMES, 0, -1):
        client.zadd(TIMES, {name: 1})


# --- what Celery rejects ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("requeue", [True, False], ids=["a lost worker", "a retry that was not sent"])
def test_a_rejected_message_keeps_its_record_and_is_quarantined_the_second_time(
    app: Celery, control: ControlConsumer, runtime: Runtime, consuming: Consuming, redis_client: redis.Redis,
    requeue: bool,
) -> None:  # fmt: skip
    send(app)
    consuming.take(1).reject(requeue)
    assert redis_client.hlen(RECORDS) == redis_client.zcard(TIMES) == 1
    assert redis_client.llen(QUEUE) == 0, "it would kill the next child at once"
    assert runtime.quarantined == []
    end_visibility(redis_client)
    again = consuming.take(2)
    assert again.message.delivery_info["redelivered"] is True
    runtime.fails = StoreUnavailable("no answer")
    again.reject(requeue)
    assert redis_client.hlen(RECORDS) == 1, "nor is it lost while the store does not take it"
    runtime.fails = None
    end_visibility(redis_client)
    consuming.take(3).reject(requeue)
    assert len(runtime.quarantined) == 1
    assert "rejected twice" in runtime.quarantined[0][1]
    assert not redis_client.exists(RECORDS, TIMES, QUEUE)


def test_celery_rejects_a_control_task_whose_process_was_lost(app: Celery) -> None:
    tasks = [task for name, task in app.tasks.items() if task.acks_late and getattr(task, "queue", "") == QUEUE]
    assert SUBMIT in {task.name for task in tasks}
    assert all(task.reject_on_worker_lost for task in tasks)


# --- what Celery forgets with its connection -------------------------------------------------------------------------


def test_what_runs_when_celery_connects_again_is_not_delivered_a_second_time(
    app: Celery, control: ControlConsumer, consuming: Consuming, redis_client: redis.Redis
) -> None:
    send(app)
    send(app)
    send(app)
    running, cancelled = consuming.take(1), consuming.take(2)
    consuming.take(3)  # waits for a rate limit, say
    cancelled._already_cancelled = True  # pyright: ignore[reportAttributeAccessIssue]
    worker_state.active_requests.update((running, cancelled))
    try:
        control.disconnect()
        control.connect(consuming)
        wait_until(lambda: len(consuming.requests) == 5, "two come again", 10)
        ids = [each.message.headers["id"] for each in consuming.requests]
        assert {*ids[3:]} == {*ids[1:3]}
        running.acknowledge()
        for each in consuming.requests[3:]:
            each.acknowledge()
        assert not redis_client.exists(QUEUE, RECORDS, TIMES)
    finally:
        worker_state.active_requests.clear()


def test_a_task_of_the_project_that_runs_when_celery_connects_again_does_not_end_the_worker(
    app: Celery, control: ControlConsumer, consuming: Consuming
) -> None:
    own = Request(Message(body="[]"), lambda *_: None, lambda *_: None)
    worker_state.active_requests.add(own)
    try:
        control.disconnect()
        control.connect(consuming)
        send(app)
        consuming.take(1).acknowledge()
    finally:
        worker_state.active_requests.clear()


# --- what must not end a loop ----------------------------------------------------------------------------------------


def test_a_message_stays_when_celery_and_the_quarantine_fail_by_any_error(
    app: Celery, control: ControlConsumer, runtime: Runtime, consuming: Consuming, redis_client: redis.Redis
) -> None:
    runtime.fails = consuming.fails = RuntimeError("anything")
    send(app)
    wait_until(lambda: runtime.refused == 1, "neither took it", 10)
    consuming.fails = None
    send(app)
    consuming.take(1)
    assert redis_client.hlen(RECORDS) == 2
    assert consuming.errors == [], "nor does Celery's loop get it"


def test_a_consumer_that_is_drained_while_it_connects_fetches_nothing(
    app: Celery, runtime: Any, consuming: Consuming, redis_client: redis.Redis
) -> None:
    class Interrupted(ControlConsumer):
        def _make_fetcher(self, consumer: Any) -> QueueFetcher:
            fetcher = super()._make_fetcher(consumer)
            self.drain()  # as the handler of a signal
            return fetcher

    made = Interrupted(app, runtime, (QUEUE,))
    made.open()
    made.connect(consuming)
    send(app)
    made.close()
    assert consuming.requests == []
    assert redis_client.llen(QUEUE) == 1
    redis_client.flushdb()


# --- records of kombu ------------------------------------------------------------------------------------------------


def record(queue: str, *, compact: bool = False) -> str:
    message = {
        "body": base64.b64encode(b"[[], {}, {}]").decode(), "content-encoding": "utf-8",
        "content-type": "application/json", "headers": {"task": SUBMIT, "id": "an-id", "lang": "py"},
        "properties": {
            "body_encoding": "base64", "delivery_tag": "tag", "priority": 0,
            "delivery_info": {"exchange": "", "routing_key": queue},
        },
    }  # fmt: skip
    return json.dumps([message, "", queue], separators=(",", ":") if compact else None)


@pytest.fixture
def restore(app: Celery, runtime: Any, redis_url: str, redis_client: redis.Redis) -> Iterator[Callable[[], None]]:
    database = connect_to_wait(redis_url, timeout_seconds=5, name="records", plain_socket=plain_socket, tls={})
    yield KombuRecords(app, database, quarantine=Quarantine(runtime), is_ours=QUEUE.__eq__).restore
    database.close()
    redis_client.flushdb()


def test_records_of_other_apps_are_looked_at_a_part_at_a_time_and_ours_behind_them_come(
    restore: Callable[[], None], redis_client: redis.Redis
) -> None:
    names = [f"{number:04}" for number in range(1_050)]
    redis_client.hset("unacked", mapping=dict.fromkeys(names, record("other")))
    redis_client.hset("unacked", mapping={"zz-1": record(QUEUE), "zz-2": record(QUEUE), "00-first": record(QUEUE)})
    redis_client.zadd("unacked_index", dict.fromkeys((*names, "zz-1", "zz-2", "00-first"), 1.0))
    before = redis_client.info("commandstats").get("cmdstat_hget", {"calls": 0})["calls"]
    restore()
    assert redis_client.info("commandstats")["cmdstat_hget"]["calls"] - before < 200
    for _ in range(20):
        restore()
    assert redis_client.llen(QUEUE) == 3
    assert redis_client.hlen("unacked") == redis_client.zcard("unacked_index") == len(names)


@pytest.mark.parametrize("queue", ["other", QUEUE])
def test_a_record_of_another_app_stays_however_its_json_is_written(
    restore: Callable[[], None], redis_client: redis.Redis, queue: str
) -> None:
    redis_client.hset("unacked", "tag", record(queue, compact=True))
    redis_client.zadd("unacked_index", {"tag": 1})
    restore()
    is_ours = queue == QUEUE
    assert redis_client.hexists("unacked", "tag") != is_ours
    assert redis_client.llen(queue) == (1 if is_ours else 0)


def test_a_record_whose_queue_takes_nothing_stays(restore: Callable[[], None], redis_client: redis.Redis) -> None:
    redis_client.set(QUEUE, "of another type")
    redis_client.hset("unacked", "tag", record(QUEUE))
    redis_client.zadd("unacked_index", {"tag": 1})
    restore()
    assert redis_client.hexists("unacked", "tag")
    assert redis_client.zcard("unacked_index") == 1
