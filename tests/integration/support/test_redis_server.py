from __future__ import annotations

from collections.abc import Callable

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.redis_server import RedisServer, servers
from support.wait import wait_until

NewRedis = Callable[..., RedisServer]


@pytest.mark.parametrize("binary", servers())
@pytest.mark.leaves_keys("the test's own")
def test_data_and_port_survive_a_kill_with_an_append_only_file(new_redis: NewRedis, binary: str) -> None:
    server = new_redis(append_only="always", binary=binary)
    port = server.port
    with server.client() as client:
        client.rpush("list", "a", "b")
        server.kill()
        assert not server.alive
        server.start()
        assert server.port == port
        assert client.lrange("list", 0, -1) == ["a", "b"]
    assert any(b"rpush" in path.read_bytes().lower() for path in server.append_only_files())


def test_without_a_file_a_restart_forgets(new_redis: NewRedis) -> None:
    server = new_redis()
    with server.client() as client:
        client.set("key", "value")
        server.stop()
        server.start()
        assert client.get("key") is None


def test_a_paused_server_accepts_and_does_not_answer(new_redis: NewRedis) -> None:
    server = new_redis()
    server.pause()
    with pytest.raises(redis.TimeoutError):
        redis.Redis(port=server.port, socket_timeout=0.1, retry=Retry(NoBackoff(), 0)).ping()
    server.resume()
    with server.client() as client:
        assert wait_until(client.ping, "the server answers again")


def test_settings_reach_the_server(new_redis: NewRedis) -> None:
    server = new_redis(config={"maxmemory": "20mb"})
    with server.client() as client:
        assert client.config_get("maxmemory*")["maxmemory"] == str(20 * 1024 * 1024)
        assert client.config_get("maxmemory*")["maxmemory-policy"] == "noeviction"


def test_a_taken_port_is_left_to_its_owner(new_redis: NewRedis, redis_server: RedisServer) -> None:
    with redis_server.client() as client:
        client.set("whose", "the session's", ex=60)
    server = RedisServer(redis_server.directory / "second")
    server.port = redis_server.port
    server._process = server._new_process()
    try:
        server.start()
        assert server.port != redis_server.port
        with server.client() as client:
            assert client.get("whose") is None
    finally:
        server.end()


def test_each_test_gets_an_empty_database_first(redis_client: redis.Redis) -> None:
    assert redis_client.dbsize() == 0
    redis_client.set("left behind", "1", ex=60)


def test_each_test_gets_an_empty_database_second(redis_client: redis.Redis) -> None:
    assert redis_client.dbsize() == 0
    redis_client.set("left behind", "1", ex=60)
