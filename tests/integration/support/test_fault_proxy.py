from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.fault_proxy import FaultProxy
from support.redis_server import RedisServer
from support.wait import wait_until

NewProxy = Callable[[RedisServer], FaultProxy]
LOST = (redis.ConnectionError, redis.TimeoutError)


@pytest.fixture(autouse=True)
def _cleaned(redis_client: redis.Redis) -> object:
    yield
    redis_client.flushall()


@pytest.fixture
def proxy(new_proxy: NewProxy, redis_server: RedisServer) -> FaultProxy:
    return new_proxy(redis_server)


def connect(port: int, **options: Any) -> redis.Redis:
    return redis.Redis(port=port, retry=Retry(NoBackoff(), 0), max_connections=1, **options)


def through(proxy: FaultProxy, protocol: int = 3, timeout: float = 5.0) -> redis.Redis:
    """A client behind the proxy that does not retry; its handshake is over."""
    client = connect(proxy.port, protocol=protocol, socket_timeout=timeout)
    client.ping()
    return client


@pytest.mark.parametrize("protocol", [2, 3])
def test_without_a_fault_nothing_changes(proxy: FaultProxy, protocol: int) -> None:
    with through(proxy, protocol) as client:
        big = b"\r\n*3\r\n$" * 100_000
        client.set("big", big)
        assert client.get("big") == big
        with client.pipeline() as pipeline:
            assert pipeline.hset("hash", mapping={"a": "1", "b": ""}).hgetall("hash").get("none").execute() == [
                2,
                {b"a": b"1", b"b": b""},
                None,
            ]
    commands = [exchange.command for exchange in proxy.exchanges]
    assert commands[-7:] == ["SET", "GET", "MULTI", "HSET", "HGETALL", "GET", "EXEC"]


@pytest.mark.parametrize("protocol", [2, 3])
def test_messages_of_a_channel_pass_and_are_no_replies(
    proxy: FaultProxy, redis_client: redis.Redis, protocol: int
) -> None:
    with through(proxy, protocol).pubsub() as listener:
        listener.subscribe("news")
        assert wait_until(lambda: listener.get_message(timeout=0.1), "subscribed")["type"] == "subscribe"
        for number in range(50):
            redis_client.publish("news", str(number))
        heard = [wait_until(lambda: listener.get_message(timeout=0.1), "a message")["data"] for _ in range(50)]
    assert heard == [str(number).encode() for number in range(50)]
    assert "SUBSCRIBE" not in [exchange.command for exchange in proxy.exchanges]


@pytest.mark.parametrize("k", range(1, 6))
def test_exactly_the_kth_reply_is_lost_and_its_command_was_done(
    proxy: FaultProxy, redis_client: redis.Redis, k: int
) -> None:
    client = through(proxy)
    happened = proxy.swallow_reply(k)
    answers: list[int | str] = []
    for _ in range(6):
        try:
            answers.append(client.incr("counter"))
        except LOST:
            answers.append("lost")
            client.close()
            client = through(proxy)  # the trap has sprung: the new handshake passes
    assert happened()
    assert answers == ["lost" if number == k else number for number in range(1, 7)]
    assert redis_client.get("counter") == "6"


def test_only_replies_to_the_named_commands_count(proxy: FaultProxy, redis_client: redis.Redis) -> None:
    client = through(proxy)
    happened = proxy.swallow_reply(2, commands={"EXEC"})

    def transaction() -> list[int]:
        with client.pipeline() as pipeline:
            return pipeline.incr("counter").incr("counter").execute()

    assert transaction() == [1, 2]
    client.get("counter")
    assert not happened()
    with pytest.raises(LOST):
        transaction()
    assert happened()
    assert redis_client.get("counter") == "4"


def test_a_lost_command_never_reaches_redis(proxy: FaultProxy, redis_client: redis.Redis) -> None:
    client = through(proxy)
    happened = proxy.swallow_command(2, commands={"INCRBY"})
    assert client.incr("counter") == 1
    with pytest.raises(LOST):
        client.incr("counter")
    assert happened()
    assert redis_client.get("counter") == "1"


def test_a_transaction_whose_exec_is_lost_did_not_happen(proxy: FaultProxy, redis_client: redis.Redis) -> None:
    client = through(proxy)
    proxy.swallow_command(commands={"EXEC"})
    with client.pipeline() as pipeline, pytest.raises(LOST):
        pipeline.incr("counter").execute()
    assert redis_client.get("counter") is None


def test_silence_keeps_the_connection_and_answers_nothing(proxy: FaultProxy, redis_client: redis.Redis) -> None:
    client = through(proxy, timeout=0.2)
    happened = proxy.swallow_reply(then="silence")
    with pytest.raises(redis.TimeoutError):
        client.incr("counter")
    assert happened()
    assert redis_client.get("counter") == "1"
    with through(proxy) as other:
        assert other.incr("counter") == 2


def test_replies_are_counted_over_all_connections(proxy: FaultProxy) -> None:
    clients = [through(proxy) for _ in range(3)]
    happened = proxy.swallow_reply(3)
    assert clients[0].incr("counter") == 1
    assert clients[1].incr("counter") == 2
    with pytest.raises(LOST):
        clients[2].incr("counter")
    assert happened()
    assert clients[0].incr("counter") == 4


def test_a_reset_ends_every_connection_and_new_ones_are_accepted(proxy: FaultProxy) -> None:
    clients = [through(proxy) for _ in range(3)]
    waiting = clients[0].pubsub()
    waiting.subscribe("news")
    wait_until(lambda: waiting.get_message(timeout=0.1), "subscribed")
    assert proxy.reset_connections() == 3
    with pytest.raises(LOST):
        waiting.get_message(timeout=5)
    # redis-py looks at a connection before it uses it again, and makes a new one.
    assert all(client.ping() for client in clients[1:])


def test_a_refusing_proxy_comes_back_on_the_same_port(proxy: FaultProxy) -> None:
    client, port = through(proxy), proxy.port
    proxy.refuse()
    for broken in (client, connect(port)):
        with pytest.raises(redis.ConnectionError):
            broken.ping()
    proxy.accept()
    assert proxy.port == port
    assert through(proxy).ping()


def test_a_black_hole_takes_everything_and_lets_it_go_afterwards(proxy: FaultProxy) -> None:
    client = through(proxy)
    proxy.blackhole()
    answers: list[int] = []
    waiting = threading.Thread(target=lambda: answers.append(client.incr("counter")))
    waiting.start()
    with pytest.raises(redis.TimeoutError):
        connect(proxy.port, socket_timeout=0.2).ping()
    assert answers == []
    proxy.blackhole(False)
    waiting.join(10)
    assert answers == [1]


def test_a_delay_holds_commands_and_replies_back(proxy: FaultProxy) -> None:
    client = through(proxy)
    proxy.delay(0.1)
    began = time.monotonic()
    client.ping()
    assert time.monotonic() - began >= 0.2
    proxy.calm()
    assert client.ping()


def test_a_throttle_lets_so_many_bytes_through(proxy: FaultProxy) -> None:
    client = through(proxy)
    client.set("big", b"x" * 50_000)
    proxy.throttle(100_000)
    began = time.monotonic()
    assert client.get("big") == b"x" * 50_000
    assert time.monotonic() - began >= 0.4


def test_calm_takes_every_trap_away(proxy: FaultProxy) -> None:
    client = through(proxy)
    happened = proxy.swallow_reply()
    proxy.calm()
    assert client.ping()
    assert not happened()


def test_a_dead_redis_is_a_closed_connection(new_redis: Callable[..., RedisServer], new_proxy: NewProxy) -> None:
    server = new_redis()
    proxy = new_proxy(server)
    client = through(proxy)
    server.kill()
    with pytest.raises(redis.ConnectionError):
        client.ping()
    with pytest.raises(redis.ConnectionError):
        through(proxy)
    server.start()
    assert through(proxy).ping()
