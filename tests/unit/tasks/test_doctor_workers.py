from __future__ import annotations

from dataclasses import replace
from typing import Any

from celery_agents.config.settings import Settings
from celery_agents.tasks.app import create_app
from celery_agents.tasks.observability.doctor.findings import Installation, Level
from celery_agents.tasks.observability.doctor.workers import (
    check_delayed,
    check_library_attributes,
    count_free_slots,
)
from celery_agents.worker.agent import Agent
from celery_agents.worker.errors import DriverError
from celery_agents.worker.state import AgentState
from celery_agents.worker.store import memory_store

from support.engine import Bench

SETTINGS = Settings.build()


def installation(workers: dict[str, dict[str, Any]]) -> Installation:
    return Installation(
        settings=SETTINGS,
        app=create_app(SETTINGS),
        existing_app=None,
        store=memory_store(SETTINGS),
        server_facts={},
        workers=workers,
    )


def test_a_missing_attribute_is_a_warning_that_names_worker_attribute_and_what_is_done_without() -> None:
    workers: dict[str, dict[str, Any]] = {
        "host:1": {"missing": ["kombu.transport.redis.Channel._brpop_start", "celery.somewhere.unheard_of"]},
        "host:2": {"missing": []},
        "host:3": {},  # of an older version
    }
    first, second = check_library_attributes(installation(workers))
    assert (first.level, second.level) == (Level.WARN, Level.WARN)
    assert "host:1" in first.what
    assert "kombu.transport.redis.Channel._brpop_start" in first.what
    assert "one message in each round trip" in first.what
    assert "celery.somewhere.unheard_of" in second.what
    assert "does without" in second.what
    assert first.advice


def test_delayed_steps_are_counted_by_reason() -> None:
    (fine,) = check_delayed(installation({}))
    assert (fine.level, fine.what) == (Level.OK, "none")
    bench = Bench(Agent("away", driver=_away))
    for _ in range(3):
        bench.run(bench.submit())
    (finding,) = check_delayed(replace(installation({}), store=bench.store))
    bench.close()
    assert finding.level is Level.WARN
    assert finding.what.startswith("3 wait for a next try, the first in 60 s: server_error: it failed (HTTP 500)")


def _away(state: AgentState) -> str:
    raise DriverError("server_error", "it failed (HTTP 500).", transient=True, status=500, retry_after=60.0)


def test_only_slots_that_could_run_a_step_now_are_free() -> None:
    workers: dict[str, dict[str, Any]] = {
        "busy": {"slots": 4, "running": 4, "draining": False},
        "half": {"slots": 4, "running": 2, "draining": False},
        "over": {"slots": 4, "running": 5, "draining": False},
        "leaving": {"slots": 4, "running": 0, "draining": True},
    }
    assert count_free_slots(workers) == 2
