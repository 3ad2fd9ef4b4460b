"""Several queued messages in one trip, read by kombu from a real Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from celery.worker import state
from kombu import Connection, Consumer, Queue
from kombu.transport import redis as kombu_redis

from celery_agents.tasks.consumer import fetching

SLOTS = 6
QUEUE, OTHER = "steps", "control"
NAMES = ("_brpop_start", "_brpop_read", "_flush_brpop_reauth")


class Reader:
    """What a worker reads: messages of two queues, in the order in which they were sent."""

    def __init__(self, url: str) -> None:
        self.connection = Connection(url, transport_options={"socket_timeout": 10})
        self.names: list[str] = []
        self.fails_at: str | None = None
        self.producer = Celery(broker=url).amqp.producer_pool.acquire(block=True)
        queues = [Queue(QUEUE, no_ack=True), Queue(OTHER)]
        self.consumer = Consumer(self.connection, queues, callbacks=[self._take])
        self.consumer.consume()

    def _take(self, body: Any, message: Any) -> None:
        self.names.append(body)
        if not getattr(message, "acknowledged", True) and message.delivery_info["routing_key"] == OTHER:
            message.ack()
        if body == self.fails_at:
            raise LookupError(body)

    def queue_up(self, *names: str, queue: str = QUEUE) -> None:
        for name in names:
            self.producer.publish(name, routing_key=queue, declare=[Queue(queue)])

    def read(self) -> list[str]:
        """What one trip brings."""
        before = len(self.names)
        self.connection.drain_events(timeout=3)
        return self.names[before:]

    def ask(self) -> None:
        """Send what a trip begins with."""
        transport: Any = self.connection.transport
        transport.cycle.on_poll_start()

    @property
    def channel(self) -> Any:
        return self.connection.default_channel

    def close(self) -> None:
        self.producer.release()
        self.connection.close()


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Says how many tasks this worker runs."""

    def set_busy(count: int) -> None:
        monkeypatch.setattr(state, "reserved_requests", set(range(count)))

    set_busy(2)
    return set_busy


@pytest.fixture
def reader(
    redis_url: str, redis_client: redis.Redis, busy: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Reader]:
    for name in NAMES:  # put back after the test
        monkeypatch.setattr(kombu_redis.Channel, name, getattr(kombu_redis.Channel, name))
    fetching.enable_batch_fetch([QUEUE], lambda: SLOTS)
    made = Reader(redis_url)
    yield made
    made.close()
    redis_client.flushdb()  # what was left in the queues


def test_what_waits_comes_together_in_its_order_and_fills_the_free_slots_only(reader: Reader) -> None:
    reader.queue_up(*"abcdefg")
    assert reader.read() == ["a", "b", "c", "d"]
    assert reader.read() == ["e", "f", "g"]


@pytest.mark.parametrize("running", [0, 1, SLOTS - 1])
def test_one_at_a_time_for_an_idle_worker_and_for_the_last_slot(
    reader: Reader, busy: Callable[[int], None], running: int
) -> None:
    busy(running)
    reader.queue_up("a", "b")
    assert reader.read() == ["a"]


def test_a_trip_is_bounded(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "BATCH_LIMIT", 3)
    reader.queue_up(*"abcde")
    assert reader.read() == ["a", "b", "c"]


def test_a_message_of_another_queue_does_not_keep_the_steps_waiting(reader: Reader) -> None:
    reader.queue_up("wish", "wish 2", queue=OTHER)
    reader.queue_up(*"ab")
    reader.read()
    assert {"a", "b"} <= set(reader.names)
    while len(reader.names) < 4:
        reader.read()
    assert sorted(reader.names) == ["a", "b", "wish", "wish 2"]


def test_after_a_while_without_messages_all_is_as_before(reader: Reader) -> None:
    with pytest.raises(TimeoutError):
        reader.read()
    reader.queue_up(*"abcde")
    while len(reader.names) < 5:
        reader.read()
    assert reader.names == [*"abcde"]


def test_a_message_that_cannot_be_delivered_leaves_no_answer_unread(reader: Reader) -> None:
    reader.fails_at = "a"
    reader.queue_up(*"abcdef")
    with pytest.raises(LookupError):
        reader.read()
    assert reader.names == ["a", "b", "c", "d"]
    assert reader.read() == ["e", "f"]


def test_a_lost_connection_is_forgotten_with_what_it_was_asked_for(
    reader: Reader, busy: Callable[[int], None], redis_client: redis.Redis
) -> None:
    reader.ask()
    assert reader.channel.has_pending_batch
    redis_client.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(reader.connection.connection_errors):
        reader.read()
    busy(0)
    reader.queue_up("a", "b")
    assert [reader.read(), reader.read()] == [["a"], ["b"]]


def test_a_user_who_may_not_is_served_one_by_one(reader: Reader, redis_client: redis.Redis, redis_url: str) -> None:
    redis_client.execute_command("ACL SETUSER limited on nopass ~* &* +@all -rpop")
    limited = Reader(redis_url.replace("redis://", "redis://limited:any@"))
    try:
        reader.consumer.cancel()
        limited.queue_up(*"abc")
        assert [limited.read(), limited.read(), limited.read()] == [["a"], ["b"], ["c"]]
    finally:
        limited.close()
        redis_client.execute_command("ACL DELUSER limited")


def test_new_credentials_wait_for_both_answers(reader: Reader) -> None:
    reader.queue_up(*"abc")
    reader.ask()
    connection = reader.channel.client.connection
    read_when_sent: list[list[str]] = []
    connection._re_auth_token = "token"
    connection.re_auth = lambda: read_when_sent.append(reader.names.copy())
    reader.read()
    assert read_when_sent == [], "between the two answers"
    reader.channel.maybe_reauth()
    assert read_when_sent == [["a", "b", "c"]]
