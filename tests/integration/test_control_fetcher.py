"""`ControlFetcher`: a control message stays in Redis until it is acknowledged, whatever becomes of its worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import redis

from celery_agents.tasks.consumer.control_fetcher import MOST_HELD_BYTES, ControlFetcher, ControlRecords
from celery_agents.tasks.consumer.internals import plain_socket
from celery_agents.tasks.consumer.step_fetcher import FetchedElement
from celery_agents.worker.store.redis.database import RedisDatabase, connect_to_wait

from support.wait import wait_until

QUEUE, HASH, INDEX = "control", "control.unacked", "control.unacked_index"
KEYS = {QUEUE: ("control", "control:9")}
VISIBILITY_SECONDS = 60
LIMIT_SECONDS = 10


def connect(url: str) -> RedisDatabase:
    return connect_to_wait(url, timeout_seconds=3, name="control-fetcher", plain_socket=plain_socket, tls={})


def waits_in_redis(client: redis.Redis) -> bool:
    """Whether a blocking command is under way."""
    return any("b" in each["flags"] for each in client.client_list())


class Worker:
    """Takes what a fetcher hands over, as far as it has room."""

    def __init__(self, url: str, room: int = 100) -> None:
        self.taken: list[FetchedElement] = []
        self.is_consuming = True
        self.records = ControlRecords(connect(url), (HASH, INDEX))
        self.fetcher = ControlFetcher(
            connect(url), KEYS, self.records, visibility_seconds=VISIBILITY_SECONDS,
            count_wanted=lambda: self.records.count_wanted(room), hand_over=self._take,
        )  # fmt: skip
        self._thread = threading.Thread(target=self.fetcher.run, daemon=True)
        self._thread.start()

    def _take(self, elements: Sequence[FetchedElement]) -> bool:
        if self.is_consuming:
            for each in elements:
                self.records.hold(each, is_later=b"later" in each.data)
            self.taken += elements
        return self.is_consuming

    @property
    def names(self) -> list[str]:
        return [each.data.decode() for each in self.taken]

    def takes(self, *names: str) -> None:
        wait_until(lambda: self.names == [*names], f"{names} are taken", LIMIT_SECONDS, details=lambda: str(self.names))

    def end(self) -> None:
        self.fetcher.end()
        self._thread.join(LIMIT_SECONDS)
        assert not self._thread.is_alive()


@pytest.fixture
def new_worker(redis_url: str, redis_client: redis.Redis) -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def new(url: str = redis_url, **options: Any) -> Worker:
        made.append(Worker(url, **options))
        return made[-1]

    yield new
    for each in made:
        each.end()
    redis_client.flushdb()  # what was left in the queue


def end_visibility(client: redis.Redis, seconds: float = VISIBILITY_SECONDS) -> None:
    """Let each record be older by so many seconds."""
    for name in client.zrange(INDEX, 0, -1):
        client.zincrby(INDEX, -seconds, name)


def test_a_message_has_a_record_until_it_is_acknowledged(
    new_worker: Callable[..., Worker], redis_client: redis.Redis
) -> None:
    redis_client.lpush("control:9", "low")
    redis_client.lpush(QUEUE, "a", "b")
    worker = new_worker()
    worker.takes("a", "b", "low")
    assert sorted(redis_client.hvals(HASH)) == ["a", "b", "low"]
    assert set(redis_client.zrange(INDEX, 0, -1)) == set(redis_client.hkeys(HASH))
    for each in worker.taken:
        worker.records.acknowledge(each)
    assert not redis_client.exists(HASH, INDEX, QUEUE, "control:9")
    assert not any(each.is_redelivered for each in worker.taken)


def test_a_message_that_comes_to_an_idle_worker_is_taken_at_once_and_has_a_record(
    new_worker: Callable[..., Worker], redis_client: redis.Redis
) -> None:
    worker = new_worker()
    wait_until(lambda: waits_in_redis(redis_client), "it waits in Redis", LIMIT_SECONDS)
    began = time.monotonic()
    redis_client.lpush(QUEUE, "a")
    worker.takes("a")
    assert time.monotonic() - began < 0.9
    assert redis_client.hvals(HASH) == ["a"]
    assert redis_client.zcard(INDEX) == 1


def test_what_a_killed_worker_held_is_taken_again_after_the_visibility_timeout_and_not_before(
    new_worker: Callable[..., Worker], redis_client: redis.Redis
) -> None:
    redis_client.lpush(QUEUE, "a", "b")
    killed = new_worker()
    killed.takes("a", "b")
    killed.end()
    end_visibility(redis_client, VISIBILITY_SECONDS - 30)
    other = new_worker()
    redis_client.lpush(QUEUE, "c")
    other.takes("c")
    end_visibility(redis_client, 30)
    wait_until(lambda: sorted(other.names) == ["a", "b", "c"], "they come again", LIMIT_SECONDS)
    assert {each.data: each.is_redelivered for each in other.taken} == {b"a": True, b"b": True, b"c": False}
    killed.records.acknowledge(killed.taken[0])  # it was only slow: the record is the other worker's
    assert redis_client.hlen(HASH) == 3
    for each in other.taken:
        other.records.acknowledge(each)
    assert not redis_client.exists(HASH, INDEX)


def test_no_further_message_is_taken_while_those_that_are_held_fill_the_memory(
    new_worker: Callable[..., Worker], redis_client: redis.Redis
) -> None:
    worker = new_worker()
    redis_client.lpush(QUEUE, *("x" * (MOST_HELD_BYTES // 4) for _ in range(5)))
    wait_until(lambda: len(worker.taken) == 4, "four are taken", LIMIT_SECONDS)
    time_out = time.monotonic() + 0.5
    wait_until(lambda: time.monotonic() > time_out, "it has looked again", LIMIT_SECONDS)
    assert redis_client.llen(QUEUE) == 1
    worker.records.acknowledge(worker.taken[1])
    wait_until(lambda: len(worker.taken) == 5, "the last one is taken", LIMIT_SECONDS)


def test_many_small_messages_fill_the_memory_as_well_and_those_that_wait_for_their_time_take_no_slot(
    redis_url: str,
) -> None:
    records = ControlRecords(connect(redis_url), (HASH, INDEX))
    for number in range(MOST_HELD_BYTES // 4_000):
        assert records.count_wanted(1) == 1
        records.hold(FetchedElement(QUEUE, QUEUE, b"", str(number)), is_later=True)
    assert records.count_wanted(1) == 0
    records.forget(FetchedElement(QUEUE, QUEUE, b"", "7"))
    assert records.count_wanted(1) == 1
    records.hold(FetchedElement(QUEUE, QUEUE, b"", "now"), is_later=False)
    assert records.count_wanted(1) == 0


def test_what_is_not_taken_or_not_ended_goes_back_in_its_order_and_has_no_record(
    new_worker: Callable[..., Worker], redis_client: redis.Redis
) -> None:
    redis_client.lpush(QUEUE, *"abc")
    worker = new_worker(room=2)
    worker.takes("a", "b")
    worker.is_consuming = False
    worker.end()
    worker.records.give_back_all()
    assert redis_client.lrange(QUEUE, 0, -1) == ["c", "b", "a"]
    assert not redis_client.exists(HASH, INDEX)
    assert worker.records.count_wanted(2) == 2


@pytest.mark.parametrize(("key", "kind"), [(HASH, "string"), (INDEX, "string"), (INDEX, "list"), (HASH, "zset")])
def test_messages_are_taken_while_the_keys_of_the_records_have_another_type(
    new_worker: Callable[..., Worker], redis_client: redis.Redis, key: str, kind: str
) -> None:
    write: dict[str, Callable[[], object]] = {
        "string": lambda: redis_client.set(key, "x"), "list": lambda: redis_client.lpush(key, "x"),
        "zset": lambda: redis_client.zadd(key, {"x": 1}),
    }  # fmt: skip
    write[kind]()
    redis_client.lpush(QUEUE, "a", "b")
    worker = new_worker()
    worker.takes("a", "b")
    for each in worker.taken:
        worker.records.acknowledge(each)
    redis_client.delete(HASH, INDEX)
    redis_client.lpush(QUEUE, "c")
    worker.takes("a", "b", "c")
    wait_until(lambda: redis_client.hvals(HASH) == ["c"], "and have records again", LIMIT_SECONDS)


def test_a_queue_of_another_type_stops_no_fetcher(new_worker: Callable[..., Worker], redis_client: redis.Redis) -> None:
    redis_client.set(QUEUE, "x")
    worker = new_worker()
    redis_client.lpush("control:9", "low")
    redis_client.delete(QUEUE)
    redis_client.lpush(QUEUE, "a")
    wait_until(lambda: sorted(worker.names) == ["a", "low"], "both are taken", LIMIT_SECONDS)


def test_a_user_who_may_run_no_scripts_is_served_with_records(
    new_worker: Callable[..., Worker], redis_client: redis.Redis, redis_url: str
) -> None:
    redis_client.execute_command("ACL SETUSER limited on nopass ~* &* +@all -@scripting")
    try:
        redis_client.lpush(QUEUE, *"abc")
        limited = new_worker(redis_url.replace("redis://", "redis://limited:any@"))
        limited.takes(*"abc")
        wait_until(lambda: sorted(redis_client.hvals(HASH)) == ["a", "b", "c"], "each has a record", LIMIT_SECONDS)
        limited.end()
    finally:
        redis_client.execute_command("ACL DELUSER limited")
