"""What a running Redis is watched for."""

from __future__ import annotations

import pytest

from celery_agents.tasks.observability.server_policy import check_replay, describe_server, find_problems, memory_share

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


@pytest.mark.parametrize(
    "facts",
    [
        {"redis_version": "6.2.14"}, {"redis_version": "7.2.4", "valkey_version": "9.1.2"},
        {"redis_version": "7.0.15", "aof_enabled": "0"}, {"redis_version": "unknown"}, {},
    ],
)  # fmt: skip
def test_a_server_that_replays_without_rights_is_not_asked_for_them(facts: dict[str, str]) -> None:
    assert check_replay({"aof_enabled": "1", **facts}, ask=lambda: pytest.fail("it was asked")) is None


@pytest.mark.parametrize(
    "facts",
    [{"redis_version": "7.0.15"}, {"redis_version": "8.2.0"}, {"redis_version": "7.2.4", "valkey_version": "9.1.1"}],
)
def test_what_the_user_default_may_not_give_is_lost_at_a_restart(facts: dict[str, str]) -> None:
    loss = check_replay({"aof_enabled": "1", **facts}, ask=lambda: ["HSET", "XADD"])
    assert loss is not None
    assert "HSET, XADD" in loss
    assert check_replay({"aof_enabled": "1", **facts}, ask=list) is None


def test_a_server_has_its_own_name() -> None:
    assert describe_server({"redis_version": "7.0.15"}) == "7.0.15"
    assert describe_server({"redis_version": "7.2.4", "valkey_version": "9.1.2"}) == "7.2.4 (Valkey 9.1.2)"


@pytest.mark.parametrize(
    ("facts", "problems"),
    [
        ({"connected_slaves": "1", "slave0": "ip=h,port=1,state=online,offset=9,lag=0"}, []),
        (
            {"connected_slaves": "1", "slave0": "ip=h,port=1,state=wait_bgsave,offset=0,lag=0"},
            ["0 of the 1 replicas that have to confirm follow; start them: actions are refused, and effects wait"],
        ),
    ],
)
def test_replicas_that_have_to_confirm_and_do_not_follow_are_a_problem(
    facts: dict[str, str], problems: list[str]
) -> None:
    assert list(find_problems({**GOOD, **facts}, replicas=1)) == problems
    assert list(find_problems({**GOOD, **facts})) == []
