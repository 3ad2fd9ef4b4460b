"""`ControlFetcher`: a control message stays in Redis until it is acknowledged, whatever becomes of its worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from celery_agents.tasks.consumer import control_fetcher
from celery_agents.tasks.consumer.control_fetcher import MOST_HELD_BYTES, ControlFetcher, ControlRecords
from celery_agents.tasks.consumer.internals import plain_socket
from celery_agents.tasks.consumer.queue_fetcher import FetchedElement
from celery_agents.tasks.consumer.refusals import FETCH, refusals
from celery_agents.worker.store.redis.database import RedisDatabase, connect_to_wait

from support.fault_proxy import FaultProxy
from support.redis_server import RedisServer
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


def waits_by(client: redis.Redis, command: str) -> bool:
    return any(each["cmd"] == command and "b" in each["flags"] for each in client.client_list())


class Worker:
    """Takes what a fetcher hands over, as far as it has room."""

    def __init__(self, url: str, room: int = 100, restore: Callable[[], object] = lambda: None) -> None:
        self.taken: list[FetchedElement] = []
        self.is_consuming = True
        self.records = ControlRecords(connect(url), (HASH, INDEX))
        self.fetcher = ControlFetcher(
            connect(url), KEYS, self.records, visibility_seconds=VISIBILITY_SECONDS, restore=restore,
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


def test_a_message_that_comes_to_an_idle_worker_is_not_lost_with_the_reply_that_tells_it(
    new_worker: Callable[..., Worker], redis_server: RedisServer, redis_client: redis.Redis
) -> None:
    """As when the worker is killed at that moment."""
    proxy = FaultProxy(redis_server.port).start()
    try:
        worker = new_worker(redis_server.url(port=proxy.port))
        for name in ("a", "b", "c"):
            wait_until(lambda: waits_in_redis(redis_client), "it waits in Redis", LIMIT_SECONDS)
            proxy.swallow_reply(commands={"BRPOP", "BLMOVE"})
            redis_client.lpush(QUEUE, name)
            wait_until(lambda name=name: name in worker.names, f"{name} is taken", LIMIT_SECONDS)
        assert worker.names == ["a", "b", "c"]
        assert sorted(redis_client.hvals(HASH)) == ["a", "b", "c"]
        worker.end()
    finally:
        proxy.end()


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


# --- what Redis refuses or does not answer ---------------------------------------------------------------------------


@contextmanager
def full(client: redis.Redis) -> Generator[None]:
    """Let Redis refuse to take more."""
    client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        client.config_set("maxmemory", 0)


@contextmanager
def user(client: redis.Redis, url: str, *rules: str) -> Generator[str]:
    """A user who may do everything but what the rules take away."""
    client.execute_command("ACL", "SETUSER", "limited", "on", "nopass", "~*", "&*", "+@all", *rules)
    try:
        yield url.replace("redis://", "redis://limited:any@")
    finally:
        client.execute_command("ACL", "DELUSER", "limited")


def is_kept(client: redis.Redis, name: str) -> bool:
    """Whether a message has a complete record, by which it is taken again."""
    return client.hvals(HASH) == [name] and client.zrange(INDEX, 0, -1) == client.hkeys(HASH)


@pytest.mark.parametrize("rules", [(), ("-@scripting",)], ids=["script", "no script"])
@pytest.mark.parametrize("cause", ["full", "another type"])
def test_a_message_that_redis_does_not_take_back_keeps_its_record(
    new_worker: Callable[..., Worker], redis_client: redis.Redis, redis_url: str, cause: str, rules: tuple[str, ...]
) -> None:
    with user(redis_client, redis_url, *rules) as url:
        redis_client.lpush(QUEUE, "a")
        worker = new_worker(url)
        worker.takes("a")
        worker.end()
        if cause == "full":
            with full(redis_client):
                worker.records.give_back_all()
        else:
            redis_client.set(QUEUE, "x")
            worker.records.give_back_all()
            redis_client.delete(QUEUE)
        assert is_kept(redis_client, "a")
        assert redis_client.llen(QUEUE) == 0
        assert worker.records.count_wanted(1) == 1


def test_a_message_that_ends_while_its_worker_gives_back_is_not_put_back(
    new_worker: Callable[..., Worker], redis_client: redis.Redis
) -> None:
    redis_client.lpush(QUEUE, "a", "b")
    worker = new_worker()
    worker.takes("a", "b")
    worker.end()
    worker.records.acknowledge(worker.taken[0])
    worker.records.give_back(worker.taken)
    assert redis_client.lrange(QUEUE, 0, -1) == ["b"]
    assert not redis_client.exists(HASH, INDEX)


def test_a_message_without_a_record_goes_back_all_the_same(
    new_worker: Callable[..., Worker], redis_client: redis.Redis
) -> None:
    redis_client.set(HASH, "x")
    redis_client.lpush(QUEUE, "a")
    worker = new_worker()
    worker.takes("a")
    worker.end()
    redis_client.delete(HASH)
    worker.records.give_back_all()
    assert redis_client.lrange(QUEUE, 0, -1) == ["a"]
    assert not redis_client.exists(HASH, INDEX)


def test_a_message_that_is_taken_at_the_memory_limit_has_a_record(
    new_worker: Callable[..., Worker], redis_client: redis.Redis
) -> None:
    redis_client.lpush(QUEUE, "a")
    with full(redis_client):
        worker = new_worker()
        worker.takes("a")
        assert is_kept(redis_client, "a")


@pytest.mark.parametrize("command", ["hset", "zadd"])
def test_no_message_is_popped_that_the_script_may_not_record(
    redis_url: str, redis_client: redis.Redis, command: str
) -> None:
    with user(redis_client, redis_url, f"-{command}", "-brpop") as url:
        redis_client.lpush(QUEUE, "a")
        worker = Worker(url)
        wait_until(lambda: refusals.counts.get(FETCH, 0) > 2, "it has tried", LIMIT_SECONDS)
        worker.end()
        assert redis_client.lrange(QUEUE, 0, -1) == ["a"]
    redis_client.flushdb()


@pytest.mark.parametrize("rule", ["-eval", "resetkeys ~control*", "-zadd", "-hset", "-rpop"])
def test_a_user_whom_redis_refuses_the_script_in_any_words_is_asked_once(
    new_worker: Callable[..., Worker], redis_client: redis.Redis, redis_url: str, rule: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    keys = "resetkeys" in rule
    with user(redis_client, redis_url, *(("resetkeys", "~control", "~control:9") if keys else (rule,))) as url:
        redis_client.lpush(QUEUE, *"abc")
        limited = new_worker(url)
        limited.takes(*"abc")
        limited.end()
    assert caplog.text.count("no script may run") == 1


@pytest.mark.parametrize("rule", ["@scripting", "blmove"])
def test_a_message_has_a_record_again_once_redis_permits_the_command(
    new_worker: Callable[..., Worker], redis_client: redis.Redis, redis_url: str, rule: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(control_fetcher, "FORBIDDEN_SECONDS", 1.0)
    with user(redis_client, redis_url, f"-{rule}") as url:
        worker = new_worker(url)
        wait_until(lambda: waits_by(redis_client, "brpop"), "it is refused", LIMIT_SECONDS)
        redis_client.execute_command("ACL", "SETUSER", "limited", f"+{rule}")
        wait_until(lambda: waits_by(redis_client, "blmove"), "it asks again", LIMIT_SECONDS)
        redis_client.lpush(QUEUE, "a")
        worker.takes("a")
        assert is_kept(redis_client, "a")
        worker.end()


def test_an_acknowledgement_that_redis_has_not_answered_is_sent_again(
    redis_server: RedisServer, redis_client: redis.Redis
) -> None:
    proxy = FaultProxy(redis_server.port).start()
    try:
        records = ControlRecords(connect(redis_server.url(port=proxy.port)), (HASH, INDEX))
        for name in ("a", "b"):
            records.add(FetchedElement(QUEUE, QUEUE, name.encode(), name))
        proxy.swallow_command(commands={"HDEL"})
        records.acknowledge(FetchedElement(QUEUE, QUEUE, b"a", "a"))
        assert redis_client.hlen(HASH) == 2
        records.acknowledge(FetchedElement(QUEUE, QUEUE, b"b", "b"))
        assert not redis_client.exists(HASH, INDEX)
    finally:
        proxy.end()


def test_an_idle_worker_sends_its_lost_acknowledgement_again(redis_url: str, redis_client: redis.Redis) -> None:
    redis_client.lpush(QUEUE, "a")
    worker = Worker(redis_url)
    worker.takes("a")
    with user(redis_client, redis_url, "-hdel") as url:
        worker.records._database = connect(url)
        worker.records.acknowledge(worker.taken[0])
        assert redis_client.hvals(HASH) == ["a"]
        redis_client.execute_command("ACL", "SETUSER", "limited", "+hdel")
        wait_until(lambda: not redis_client.exists(HASH, INDEX), "it is removed", LIMIT_SECONDS)
        worker.end()


def test_a_message_whose_reply_was_lost_is_delivered_in_the_next_turn_and_once(
    new_worker: Callable[..., Worker], redis_server: RedisServer, redis_client: redis.Redis
) -> None:
    proxy = FaultProxy(redis_server.port).start()
    try:
        redis_client.lpush(QUEUE, "a", "b")
        proxy.swallow_reply(commands={"EVAL"})
        worker = new_worker(redis_server.url(port=proxy.port))
        worker.takes("a", "b")
        assert not any(each.is_redelivered for each in worker.taken)
        for each in worker.taken:
            worker.records.acknowledge(each)
        assert not redis_client.exists(QUEUE, HASH, INDEX)
        worker.end()
    finally:
        proxy.end()


def test_records_of_others_are_looked_at_every_few_seconds_even_while_nothing_can_be_taken(
    new_worker: Callable[..., Worker], redis_client: redis.Redis
) -> None:
    looks: list[float] = []
    redis_client.set(QUEUE, "x")
    before = refusals.counts.get(FETCH, 0)
    worker = new_worker(restore=lambda: looks.append(time.monotonic()))
    wait_until(lambda: refusals.counts.get(FETCH, 0) > before + 20, "it has turned", LIMIT_SECONDS)
    worker.end()
    assert len(looks) == 1
