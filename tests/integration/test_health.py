"""Health, by what workers tell about themselves."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import redis

from celery_agents.config.settings import Settings
from celery_agents.tasks.cli import main
from celery_agents.tasks.observability.health import look
from celery_agents.worker.store import redis_store

STEPS = "celery_agents.steps"

FACTS: dict[str, Any] = {
    "host": os.uname().nodename, "pid": 7, "slots": 4, "running": 0, "abandoned": 0, "draining": False, "schema": 1,
    "pool": "threads", "turned": 0.4, "took": 500.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "queued", "alive", "ready"),
    [
        ({}, False, True, True),
        ({}, True, False, False),
        ({"running": 4}, True, True, True),
        ({"took": 3.0}, True, True, True),
        ({"pool": "prefork"}, True, True, True),
        ({"turned": 45.0}, False, False, False),
        ({"turned": 45.0, "pool": "solo", "running": 1}, False, True, True),
        ({"turned": 45.0, "pool": "solo"}, False, False, False),
        ({"draining": True}, True, True, False),
        ({"host": "elsewhere"}, False, False, False),
        ({"pid": 8}, False, False, False),
    ],
    ids=[
        "idle", "lets a message wait", "full", "has just taken one", "prefork counts elsewhere", "its loop stands still",
        "solo at work", "solo standing still", "drains", "another machine's", "another process",
    ],
)  # fmt: skip
def test_health_tells_a_worker_that_works_from_one_that_does_not(
    redis_url: str, redis_client: redis.Redis, facts: dict[str, Any], queued: bool, alive: bool, ready: bool
) -> None:
    settings = Settings.build(redis_url=redis_url)
    store = redis_store(settings, name="test")
    store.registry.register("w", {**FACTS, **facts}, {})
    if queued:
        redis_client.lpush(
            STEPS, json.dumps({"headers": {"celery_agents_published": store.housekeeping.now_ms() - 60_000}})
        )
    found = look(settings, pid=7)
    assert (found.alive, found.ready) == (alive, ready), found.what


@pytest.mark.parametrize("damaged", ["ca:workers", STEPS])
def test_a_key_of_another_type_is_no_reason_to_restart(
    redis_url: str, redis_client: redis.Redis, damaged: str, capsys: pytest.CaptureFixture[str]
) -> None:
    redis_store(Settings.build(redis_url=redis_url), name="test").registry.register("w", FACTS, {})
    redis_client.delete(damaged)
    redis_client.set(damaged, "of somebody else")
    codes = {}
    for options in ([], ["--alive"]):
        with pytest.raises(SystemExit) as ended:
            main(["health", "--redis-url", redis_url, *options])
        codes[tuple(options)] = ended.value.code
    redis_client.delete(damaged)
    assert codes == {(): 1, ("--alive",): 0}
    assert "no reason to restart: " in capsys.readouterr().out
