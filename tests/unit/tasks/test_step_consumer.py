"""Steps that were fetched become Celery tasks: what is delivered, what is refused, and which slots are free."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery

from celery_agents.config.settings import Settings
from celery_agents.tasks.app import create_app
from celery_agents.tasks.consumer.pool import TaskPool
from celery_agents.tasks.consumer.queue_commands import answer_for_queues
from celery_agents.tasks.consumer.step_consumer import StepConsumer
from celery_agents.tasks.message_template import MessageTemplate
from celery_agents.tasks.names import PREFIX, STEP
from celery_agents.tasks.observability.liveness import Liveness
from celery_agents.tasks.publishing import StepPublisher
from celery_agents.worker.store import StepRef

from support.wait import wait_until

QUEUE, GPU = "celery_agents.steps", "celery_agents.steps.gpu"
NOW_MS = 1_790_000_000_123
LARGE_STEP = (
    json.dumps(
        MessageTemplate(create_app(Settings.build()), Settings.build(), has_parent=False).make_delivered(
            StepRef("session", "execution", 1), NOW_MS
        )
        | {"body": '[[], {"session_id": "session", "execution_id": "execution", "step": 1}, {}]' + " " * 64_000}
    )
    .replace('"base64"', "null")
    .encode()
)


def waits_in_redis(client: redis.Redis) -> bool:
    """Whether a blocking command is under way."""
    return any("b" in each["flags"] for each in client.client_list())


class Request:
    """A task that Celery has received: it is acknowledged when it ends."""

    def __init__(self, message: Any, ack: Callable[..., None]) -> None:
        self.message = message
        self.end = lambda: ack(None, ())


class Consuming:
    """A consumer of Celery, as far as steps are delivered to it; the strategy of the task is a test's own."""

    def __init__(self, pool: Any, app: Celery) -> None:
        self.pool = pool
        self.controller = SimpleNamespace(max_concurrency=None)
        self.on_task_message: set[Any] = set()
        self.strategies: dict[str, Any] = dict.fromkeys((STEP, f"{PREFIX}stop"), self.receive)
        self.requests: list[Request] = []
        self.kombu_queues: list[str] = []
        self.begins = True
        self.fails: Exception | None = None
        self.thread = 0

    def receive(self, message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> None:
        if self.fails is not None:
            raise self.fails
        assert body is None
        self.thread = threading.get_ident()
        request = Request(message, ack)
        if self.begins:
            for callback in callbacks:
                callback(request)
        self.requests.append(request)

    def call_soon(self, call: Callable[..., object], *args: Any) -> None:
        call(*args)

    def add_task_queue(self, queue: str) -> None:
        self.kombu_queues.append(queue)

    @property
    def steps(self) -> list[int]:
        return [each.message.payload[1]["step"] for each in self.requests]

    def takes(self, *steps: int) -> None:
        wait_until(lambda: self.steps == [*steps], f"{steps} are delivered", 10, details=lambda: str(self.steps))


class Runtime:
    """What a worker's process has, with a list in the place of the store's quarantine."""

    def __init__(self, app: Celery, settings: Settings) -> None:
        self.settings = settings
        self.liveness = Liveness()
        self.publisher = StepPublisher(app, settings)
        self.quarantined: list[tuple[str, str]] = []
        housekeeping = SimpleNamespace(quarantine=lambda *entry: self.quarantined.append(entry))
        self.store = SimpleNamespace(housekeeping=housekeeping)

    def __call__(self) -> Runtime:
        return self

    def publish(self, client: redis.Redis, *steps: int, queue: str = "") -> None:
        for step in steps:
            for command in self.publisher.commands(StepRef("session", "execution", step, queue=queue), NOW_MS):
                client.execute_command(*command)


@pytest.fixture
def app(redis_url: str) -> Celery:
    return create_app(Settings.build(redis_url=redis_url, redis_timeout_seconds=2))


@pytest.fixture
def runtime(app: Celery, redis_url: str) -> Runtime:
    return Runtime(app, Settings.build(redis_url=redis_url, redis_timeout_seconds=2))


@pytest.fixture
def pool() -> Iterator[TaskPool]:
    opened = TaskPool(limit=2)
    yield opened
    opened.on_stop()


@pytest.fixture
def consuming(pool: TaskPool, app: Celery) -> Consuming:
    return Consuming(pool, app)


@pytest.fixture
def steps(app: Celery, runtime: Any, consuming: Consuming, redis_client: redis.Redis) -> Iterator[StepConsumer]:
    made = StepConsumer(app, runtime, {"": QUEUE, "gpu": GPU})
    made.open()
    made.connect(consuming)
    yield made
    made.drain()
    wait_until(lambda: not waits_in_redis(redis_client), "nothing waits in Redis", 10)
    redis_client.flushdb()


def test_a_step_is_delivered_decoded_and_its_sender_says_nothing_of_where_it_came_from(
    steps: StepConsumer, consuming: Consuming, runtime: Runtime, redis_client: redis.Redis
) -> None:
    runtime.publish(redis_client, 1, queue="gpu")
    consuming.takes(1)
    message = consuming.requests[0].message
    assert message.payload == ([], {"session_id": "session", "execution_id": "execution", "step": 1}, message.body[2])
    assert message.content_type is None, "the pool is not to decode it again"
    assert message.delivery_info == {"exchange": GPU, "routing_key": GPU}
    assert message.properties["delivery_info"] == message.delivery_info
    assert message.headers["id"] == "execution.1"


def test_no_more_steps_are_taken_than_there_are_slots_and_the_end_of_one_frees_its_slot(
    steps: StepConsumer, consuming: Consuming, runtime: Runtime, redis_client: redis.Redis
) -> None:
    runtime.publish(redis_client, 1, 2, 3, 4)
    consuming.takes(1, 2)
    assert not steps.has_room()
    assert redis_client.llen(QUEUE) == 2
    consuming.requests[0].end()
    consuming.takes(1, 2, 3)
    assert redis_client.llen(QUEUE) == 1


def test_slots_of_tasks_that_celery_forgot_with_its_connection_are_free_again(
    steps: StepConsumer, consuming: Consuming, runtime: Runtime, redis_client: redis.Redis
) -> None:
    """It acknowledges none of those that waited for a rate limit."""
    runtime.publish(redis_client, 1, 2, 3)
    consuming.takes(1, 2)
    steps.disconnect()
    consuming.requests.clear()
    gc.collect()
    steps.connect(consuming)
    consuming.takes(3)


@pytest.mark.parametrize(
    ("element", "reason"),
    [
        (b"not json", "not JSON"),
        (b"[]", "not an object"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 9_000, "not JSON"),
        (b"[" * 100_000, "JSON values"),
        (b'{"headers": {}}', "no properties"),
        (json.dumps({"x": "y" * 4_000_001}).encode(), "larger than"),
        (LARGE_STEP, "a step larger than"),
    ],
)
def test_a_malformed_element_is_quarantined_and_the_next_one_is_taken(
    steps: StepConsumer, consuming: Consuming, runtime: Runtime, redis_client: redis.Redis, element: Any, reason: str
) -> None:
    redis_client.lpush(QUEUE, element)
    runtime.publish(redis_client, 7)
    consuming.takes(7)
    ((payload, told),) = runtime.quarantined
    assert reason in told
    assert payload == ascii(element[:2000].decode("utf-8", "backslashreplace")[:2000])


def test_an_element_that_makes_celery_fail_is_quarantined_and_its_slot_is_free(
    steps: StepConsumer, consuming: Consuming, runtime: Runtime, redis_client: redis.Redis
) -> None:
    consuming.fails = LookupError("no such header")
    runtime.publish(redis_client, 1, 2, 3)
    wait_until(lambda: len(runtime.quarantined) == 3, "all are put aside", 10)
    assert {reason for _, reason in runtime.quarantined} == {"cannot be delivered: LookupError"}
    consuming.fails = None
    assert steps.has_room()


def test_a_step_that_stays_is_delivered_here_and_celery_says_whether_it_begins(
    steps: StepConsumer, consuming: Consuming, pool: TaskPool
) -> None:
    assert steps.deliver(StepRef("session", "execution", 5, queue="gpu"), NOW_MS)
    assert consuming.steps == [5]
    assert consuming.requests[0].message.headers["id"] == "execution.5"
    consuming.begins = False  # it waits for a rate limit, or was revoked
    assert not steps.deliver(StepRef("session", "execution", 6), NOW_MS)
    assert not steps.deliver(StepRef("session", "execution", 6, queue="tpu"), NOW_MS), "of a queue that is not taken"


def test_nothing_is_delivered_here_while_celery_connects(steps: StepConsumer, consuming: Consuming) -> None:
    steps.disconnect()
    assert not steps.deliver(StepRef("session", "execution", 5), NOW_MS)
    assert not steps.has_room()
    assert steps.active_queues() == []


def test_a_step_that_comes_while_celery_connects_waits_for_the_new_connection(
    steps: StepConsumer, consuming: Consuming, runtime: Runtime, redis_client: redis.Redis
) -> None:
    steps.disconnect()
    runtime.publish(redis_client, 1)
    # The fetcher of before may have taken it while it waited, and gives it back a moment later.
    wait_until(lambda: not waits_in_redis(redis_client) and redis_client.llen(QUEUE) == 1, "it is in its queue", 10)
    assert consuming.steps == []
    steps.connect(consuming)
    consuming.takes(1)


def test_with_another_pool_celerys_own_loop_delivers(
    app: Celery, runtime: Any, redis_client: redis.Redis, steps: StepConsumer, consuming: Consuming
) -> None:
    scheduled: list[Callable[..., object]] = []
    consuming.pool = SimpleNamespace(num_processes=2)
    consuming.call_soon = lambda call, *args: scheduled.append(call)
    steps.connect(consuming)
    runtime.publish(redis_client, 1)
    wait_until(lambda: scheduled, "Celery's loop is asked to", 10)
    assert consuming.steps == []
    scheduled[0]()
    consuming.takes(1)
    assert consuming.thread == threading.get_ident()


def test_what_celerys_loop_forgets_with_its_connection_goes_back(
    app: Celery, runtime: Any, redis_client: redis.Redis, steps: StepConsumer, consuming: Consuming
) -> None:
    scheduled: list[Callable[..., object]] = []
    consuming.pool = SimpleNamespace(num_processes=2)
    consuming.call_soon = lambda call, *args: scheduled.append(call)
    steps.connect(consuming)
    runtime.publish(redis_client, 1)
    wait_until(lambda: scheduled, "Celery's loop is asked to", 10)
    steps.disconnect()
    wait_until(lambda: redis_client.llen(QUEUE) == 1, "it is in its queue again", 10)
    scheduled[0]()
    assert consuming.steps == [], "not twice"


def test_a_strategy_of_another_form_leaves_the_steps_to_kombu(
    app: Celery, runtime: Any, redis_client: redis.Redis, consuming: Consuming, caplog: pytest.LogCaptureFixture
) -> None:
    consuming.strategies[STEP] = lambda message: None
    made = StepConsumer(app, runtime, {"": QUEUE, "gpu": GPU})
    made.open()
    made.connect(consuming)
    assert sorted(consuming.kombu_queues) == [QUEUE, GPU]
    assert "kombu fetches its messages" in caplog.text


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, app: Celery, steps: StepConsumer) -> Callable[..., Any]:
    """Carries out a remote control command of this worker."""
    from celery.worker.control import Panel

    data: Any = Panel.data
    for name in ("active_queues", "add_consumer", "cancel_consumer"):  # put back after the test
        monkeypatch.setitem(data, name, data[name])
    answer_for_queues([steps], [app.amqp.queues[QUEUE]])
    state = SimpleNamespace(consumer=SimpleNamespace(task_consumer=None))
    return lambda name, **arguments: data[name](state, **arguments)


def test_remote_control_lists_the_queues_and_ends_and_begins_to_take_one(
    steps: StepConsumer, consuming: Consuming, runtime: Runtime, redis_client: redis.Redis, command: Callable[..., Any]
) -> None:
    steps.take_queue(GPU, is_taken=False)
    (listed,) = command("active_queues")
    assert (listed["name"], listed["routing_key"]) == (QUEUE, QUEUE)
    assert command("cancel_consumer", queue=QUEUE) == {"ok": f"no longer consuming from {QUEUE}"}
    assert command("active_queues") == []
    runtime.publish(redis_client, 1)
    assert not steps.deliver(StepRef("session", "execution", 5), NOW_MS), "no step of it stays here either"
    assert command("add_consumer", queue=QUEUE) == {"ok": f"add consumer {QUEUE}"}
    consuming.takes(1)


def test_the_loop_that_fetches_is_alive_while_it_waits_and_is_no_more_counted_when_it_ends(
    steps: StepConsumer, runtime: Runtime
) -> None:
    facts: Callable[[], float] = lambda: runtime.liveness.facts["turned"]  # noqa: E731
    steps.disconnect()
    runtime.liveness._turned_at["steps"] = time.monotonic() - 5_000  # as one that hangs
    assert facts() > 1000
    runtime.liveness.forget_loop("steps")
    assert facts() < 1000
