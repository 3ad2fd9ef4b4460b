"""What a running Redis is watched for."""

from __future__ import annotations

import pytest

from celery_agents.tasks.observability.server_policy import find_problems, memory_share

GOOD = {"maxmemory_policy": "noeviction", "aof_enabled": "1", "aof_last_write_status": "ok", "role": "master"}


def test_a_redis_that_keeps_what_it_has_is_no_problem() -> None:
    assert list(find_problems(GOOD)) == []
    assert list(find_problems({})) == [], "a server that tells nothing is not accused"


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({"maxmemory_policy": "allkeys-lru"}, "evicts"), ({"aof_last_write_status": "err"}, "append-only"),
        ({"role": "slave"}, "replica"),
    ],
)  # fmt: skip
def test_what_may_lose_sessions_is_named(facts: dict[str, str], word: str) -> None:
    (problem,) = find_problems({**GOOD, **facts})
    assert word in problem


def test_the_share_of_memory_is_that_of_the_limit() -> None:
    assert memory_share({"used_memory": "90", "maxmemory": "100"}) == 0.9
    assert memory_share({"used_memory": "90", "maxmemory": "0"}) == 0
    assert memory_share({}) == 0
