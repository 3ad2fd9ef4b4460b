"""Step messages are fetched from a real Redis: in a thread, and as a fiber on a loop."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_agents.tasks.consumer import queue_fetcher
from celery_agents.tasks.consumer.internals import plain_socket
from celery_agents.tasks.consumer.queue_fetcher import FetchedElement, QueueFetcher
from celery_agents.tasks.consumer.refusals import FETCH, refusals
from celery_agents.worker.store.redis.database import connect_to_wait

from support.fiber_thread import FiberThread
from support.redis_server import RedisServer
from support.wait import wait_until

QUEUE, OTHER = "steps", "steps.gpu"
KEYS = {QUEUE: ("steps", "steps:9"), OTHER: ("steps.gpu",)}
LIMIT_SECONDS = 10


def waits_in_redis(client: redis.Redis) -> bool:
    """Whether a blocking command is under way."""
    return any("b" in each["flags"] for each in client.client_list())


def connections(client: redis.Redis) -> int:
    return [each["name"] for each in client.client_list()].count("fetcher")


class Worker:
    """Takes what a fetcher hands over, as far as it has room."""

    def __init__(self, url: str, start: Callable[[Callable[[], None]], object], name: str = "fetcher") -> None:
        self.room = 0
        self.is_consuming = True
        self.taken: list[FetchedElement] = []
        self.batches: list[list[str]] = []
        self.turns = 0
        self.ways: list[int] = []
        self.database = connect_to_wait(url, timeout_seconds=3, name=name, plain_socket=plain_socket, tls={})
        self.fetcher = QueueFetcher(
            self.database, KEYS, count_wanted=lambda: self.room, hand_over=self._take, record_turn=self._turn,
            give_way=lambda: self.ways.append(self.room),
        )  # fmt: skip
        self.has_ended = threading.Event()
        start(self._run)

    def _run(self) -> None:
        self.fetcher.run()
        self.has_ended.set()

    def _turn(self) -> None:
        self.turns += 1

    def _take(self, elements: Sequence[FetchedElement]) -> bool:
        if self.is_consuming:
            self.room -= len(elements)
            self.taken += elements
            self.batches.append([each.data.decode() for each in elements])
        return self.is_consuming

    def give_room(self, slots: int) -> None:
        self.room = slots
        self.fetcher.wake()

    @property
    def names(self) -> list[str]:
        return [each.data.decode() for each in self.taken]

    def takes(self, *names: str) -> None:
        wait_until(lambda: self.names == [*names], f"{names} are taken", LIMIT_SECONDS, details=lambda: str(self.names))


@pytest.fixture(params=["thread", "fiber"])
def start(request: pytest.FixtureRequest) -> Iterator[Callable[[Callable[[], None]], object]]:
    if request.param == "thread":
        yield lambda call: threading.Thread(target=call, daemon=True).start()
        return
    thread = FiberThread()
    yield thread.start
    thread.close()


@pytest.fixture
def new_worker(
    redis_url: str, redis_client: redis.Redis, start: Callable[[Callable[[], None]], object]
) -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def new(url: str = redis_url) -> Worker:
        made.append(Worker(url, start))
        return made[-1]

    yield new
    for each in made:
        each.fetcher.end()
        assert each.has_ended.wait(LIMIT_SECONDS)
    redis_client.flushdb()  # what was left in the queues


@pytest.fixture
def worker(new_worker: Callable[..., Worker]) -> Worker:
    return new_worker()


def test_what_waits_comes_together_in_its_order_and_fills_the_free_slots_only(
    worker: Worker, redis_client: redis.Redis
) -> None:
    redis_client.lpush(QUEUE, *"abcdefg")
    worker.give_room(4)
    worker.takes(*"abcd")
    assert worker.batches == [[*"abcd"]]
    worker.give_room(9)
    worker.takes(*"abcdefg")
    assert redis_client.llen(QUEUE) == 0


def test_a_message_that_comes_later_is_taken_at_once(worker: Worker, redis_client: redis.Redis) -> None:
    worker.give_room(3)
    wait_until(lambda: waits_in_redis(redis_client), "it waits in Redis", LIMIT_SECONDS)
    began = time.monotonic()
    redis_client.lpush(QUEUE, "a")
    worker.takes("a")
    assert time.monotonic() - began < 0.9


def test_a_full_worker_asks_for_nothing_and_its_loop_turns(worker: Worker, redis_client: redis.Redis) -> None:
    redis_client.lpush(QUEUE, "a")
    turns = worker.turns
    wait_until(lambda: worker.turns > turns + 3, "it looks again and again", LIMIT_SECONDS)
    assert redis_client.llen(QUEUE) == 1
    assert worker.ways, "Celery's consumer may look first"
    worker.give_room(1)
    worker.takes("a")


def test_priorities_come_first_and_no_queue_is_starved(worker: Worker, redis_client: redis.Redis) -> None:
    redis_client.lpush("steps:9", "low")
    redis_client.lpush(QUEUE, "a1", "a2", "a3")
    redis_client.lpush(OTHER, "b1", "b2", "b3")
    for _ in range(6):
        worker.give_room(1)
        wait_until(lambda: worker.room == 0, "one is taken", LIMIT_SECONDS)
    assert sorted(worker.names[:2]) == ["a1", "b1"]
    assert sorted(worker.names[2:4]) == ["a2", "b2"]
    worker.give_room(1)
    wait_until(lambda: len(worker.names) == 7, "the last one is taken", LIMIT_SECONDS)
    assert worker.names[-1] == "low"
    assert {each.queue for each in worker.taken if each.data == b"low"} == {QUEUE}


def test_a_fetcher_that_was_ended_gives_back_what_still_comes(
    worker: Worker, new_worker: Callable[..., Worker], redis_client: redis.Redis
) -> None:
    """A second one after a lost connection gets it: no message is delivered for a consumer that is no more."""
    worker.give_room(5)
    wait_until(lambda: waits_in_redis(redis_client), "it waits in Redis", LIMIT_SECONDS)
    worker.fetcher.end()
    redis_client.lpush(QUEUE, "a", "b")
    assert worker.has_ended.wait(LIMIT_SECONDS)
    assert worker.names == []
    assert redis_client.lrange(QUEUE, 0, -1) == ["b", "a"]
    wait_until(lambda: not connections(redis_client), "its connection is closed", LIMIT_SECONDS)
    second = new_worker()
    second.give_room(2)
    second.takes("a", "b")


def test_what_is_not_taken_goes_back_in_its_order(worker: Worker, redis_client: redis.Redis) -> None:
    worker.is_consuming = False
    redis_client.lpush(QUEUE, *"abc")
    worker.give_room(2)
    wait_until(lambda: worker.turns > 3, "it has tried", LIMIT_SECONDS)
    worker.is_consuming = True
    worker.takes("a", "b")


def test_a_queue_that_is_cancelled_is_left_alone_and_others_go_on(worker: Worker, redis_client: redis.Redis) -> None:
    worker.fetcher.queues = {OTHER: KEYS[OTHER]}
    redis_client.lpush(QUEUE, "a")
    redis_client.lpush(OTHER, "b")
    worker.give_room(5)
    worker.takes("b")
    worker.fetcher.queues = KEYS
    worker.takes("b", "a")


def test_a_lost_connection_is_made_again(worker: Worker, redis_client: redis.Redis) -> None:
    worker.give_room(5)
    wait_until(lambda: waits_in_redis(redis_client), "it waits in Redis", LIMIT_SECONDS)
    for each in redis_client.client_list():
        if each["name"] == "fetcher":  # others of this process, such as kombu's, are kept for the tests that follow
            redis_client.client_kill_filter(_id=each["id"])
    redis_client.lpush(QUEUE, "a")
    worker.takes("a")


def test_a_key_of_another_type_stops_neither_the_fetcher_nor_other_queues(
    worker: Worker, redis_client: redis.Redis
) -> None:
    redis_client.set(QUEUE, "x")
    redis_client.lpush(OTHER, "b")
    worker.give_room(5)
    worker.takes("b")
    redis_client.delete(QUEUE)
    redis_client.lpush(QUEUE, "a")
    worker.takes("b", "a")


def test_a_user_who_may_not_is_served_one_by_one(
    new_worker: Callable[..., Worker], redis_client: redis.Redis, redis_url: str
) -> None:
    redis_client.execute_command("ACL SETUSER limited on nopass ~* &* +@all -rpop")
    try:
        limited = new_worker(redis_url.replace("redis://", "redis://limited:any@"))
        redis_client.lpush(QUEUE, *"abc")
        limited.give_room(5)
        limited.takes(*"abc")
        assert limited.batches == [["a"], ["b"], ["c"]]
    finally:
        redis_client.execute_command("ACL DELUSER limited")


def test_an_element_is_handed_over_as_its_bytes(worker: Worker, redis_client: redis.Redis) -> None:
    raw: Any = b"\xff\xfe\x00"
    redis_client.lpush(QUEUE, raw)
    worker.give_room(1)
    wait_until(lambda: worker.taken, "it is taken", LIMIT_SECONDS)
    assert worker.taken == [FetchedElement(QUEUE, QUEUE, raw)]


def test_a_redis_that_becomes_a_replica_is_asked_on_a_new_connection(worker: Worker, redis_client: redis.Redis) -> None:
    """Behind the same name there may be the new primary."""
    worker.give_room(5)
    wait_until(lambda: waits_in_redis(redis_client), "it waits in Redis", LIMIT_SECONDS)
    redis_client.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        made: Callable[[], int] = lambda: redis_client.info("stats")["total_connections_received"]  # noqa: E731
        for _ in range(3):  # Redis itself ends the one that waits
            before = made()
            wait_until(lambda before=before: made() > before, "it asks on another connection", LIMIT_SECONDS)
    finally:
        redis_client.execute_command("REPLICAOF", "NO", "ONE")
    redis_client.lpush(QUEUE, "a")
    worker.takes("a")


def test_what_is_not_delivered_because_of_an_error_goes_back(worker: Worker, redis_client: redis.Redis) -> None:
    def fail(elements: Sequence[FetchedElement]) -> bool:
        worker.fetcher._hand_over = worker._take
        raise RuntimeError(f"{len(elements)} are not delivered")

    worker.fetcher._hand_over = fail
    redis_client.lpush(QUEUE, "a", "b")
    worker.give_room(2)
    worker.takes("a", "b")


def test_steps_are_fetched_together_again_once_redis_permits_it(
    new_worker: Callable[..., Worker], redis_client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_fetcher, "FORBIDDEN_SECONDS", 0.0)
    redis_client.execute_command("ACL", "SETUSER", "one", "on", "nopass", "~*", "+@all", "-rpop")
    try:
        worker = new_worker(redis_url.replace("redis://", "redis://one:any@"))
        redis_client.lpush(QUEUE, *"abc")
        worker.give_room(3)
        worker.takes(*"abc")
        assert max(map(len, worker.batches)) == 1
        redis_client.execute_command("ACL", "SETUSER", "one", "+rpop")
        redis_client.lpush(QUEUE, *"def")
        worker.give_room(3)
        worker.takes(*"abcdef")
        assert max(map(len, worker.batches)) > 1
    finally:
        redis_client.execute_command("ACL", "DELUSER", "one")


def test_a_redis_that_was_busy_with_a_script_is_asked_for_several_messages_again(
    new_worker: Callable[..., Worker], tmp_path: Path
) -> None:
    with RedisServer(tmp_path / "busy", config={"lua-time-limit": "50"}) as server:
        worker, client = new_worker(server.url()), redis.Redis(port=server.port)
        worker.give_room(1)
        client.lpush(QUEUE, "first")
        worker.takes("first")

        other = server.client()

        def keep_busy() -> None:
            with contextlib.suppress(redis.RedisError):
                other.eval("while true do end", 0)

        threading.Thread(target=keep_busy, daemon=True).start()
        wait_until(lambda: is_busy(client), "Redis is busy", LIMIT_SECONDS)
        refused = refusals.counts.get(FETCH, 0)
        worker.give_room(3)
        wait_until(lambda: refusals.counts.get(FETCH, 0) > refused, "a fetch is refused", LIMIT_SECONDS)
        client.script_kill()
        wait_until(lambda: not is_busy(client), "the script has ended", LIMIT_SECONDS)
        client.lpush(QUEUE, "a", "b", "c")
        worker.takes("first", "a", "b", "c")
        assert max(map(len, worker.batches)) > 1


def is_busy(client: redis.Redis) -> bool:
    try:
        return not client.ping()
    except redis.ResponseError:
        return True
