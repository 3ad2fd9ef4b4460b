from __future__ import annotations

import pytest
import redis

from support.redis_keys import immortal_keys


@pytest.fixture(autouse=True)
def _cleaned(redis_client: redis.Redis) -> object:
    yield
    redis_client.flushall()


def test_a_key_for_ever_is_named(redis_client: redis.Redis) -> None:
    redis_client.set("ca:{0}:s:abc:inbox", "1")
    redis_client.set("other", "1")
    assert immortal_keys(redis_client) == ["ca:{0}:s:abc:inbox", "other"]


def test_a_time_to_live_is_enough(redis_client: redis.Redis) -> None:
    redis_client.set("ca:{0}:s:abc", "1", ex=60)
    assert immortal_keys(redis_client) == []


@pytest.mark.parametrize(
    "name",
    [
        "ca:agents",
        "ca:workers",
        "ca:shards",
        "ca:{3}:due",
        "ca:{3}:sessions",
        "ca:{12}:dead",
        "unacked",
        "_kombu.binding.x",
    ],
)
def test_the_permanent_ones_may_stay(redis_client: redis.Redis, name: str) -> None:
    redis_client.hset(name, "field", "1")
    assert immortal_keys(redis_client) == []


def test_what_belongs_to_a_session_that_is_due_may_stay(redis_client: redis.Redis) -> None:
    redis_client.hset("ca:{5}:s:abc:ctl", "phase", "run")
    redis_client.rpush("ca:{5}:s:abc:m:messages:0", "x")
    redis_client.zadd("ca:{5}:due", {"abc": 1})
    assert immortal_keys(redis_client) == []
    redis_client.zrem("ca:{5}:due", "abc")
    assert immortal_keys(redis_client) == ["ca:{5}:s:abc:ctl", "ca:{5}:s:abc:m:messages:0"]


def test_what_belongs_to_a_session_that_waits_may_stay(redis_client: redis.Redis) -> None:
    redis_client.hset("ca:{5}:s:abc:ctl", "phase", "wait")
    redis_client.hset("ca:{5}:s:abc:j:e1:2", "llm", "x")
    assert immortal_keys(redis_client) == []
