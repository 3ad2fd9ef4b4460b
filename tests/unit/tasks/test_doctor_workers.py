from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from celery import Celery

from celery_agents import __version__
from celery_agents.config.settings import Settings
from celery_agents.tasks.app import create_app
from celery_agents.tasks.observability.doctor.environment import check_app_settings
from celery_agents.tasks.observability.doctor.findings import Installation, Level
from celery_agents.tasks.observability.doctor.workers import (
    check_builds,
    check_delayed,
    check_library_attributes,
    check_tools,
    check_workers,
    count_free_slots,
)
from celery_agents.worker.agent import Agent
from celery_agents.worker.errors import DriverError
from celery_agents.worker.state import AgentState
from celery_agents.worker.state.agent_fields import PACKED_SCHEMA_VERSION
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
        "host:1": {"missing": ["kombu.transport.redis:Channel.subclient", "celery.somewhere.unheard_of"]},
        "host:2": {"missing": []},
        "host:3": {},  # of an older version
    }
    first, second = check_library_attributes(installation(workers))
    assert (first.level, second.level) == (Level.WARN, Level.WARN)
    assert "host:1" in first.what
    assert "kombu.transport.redis:Channel.subclient" in first.what
    assert "malformed remote control ends it" in first.what
    assert "celery.somewhere.unheard_of" in second.what
    assert "does without" in second.what
    assert first.advice


def test_tools_of_mcp_servers_that_are_left_out_or_mended_are_named_once() -> None:
    left_out, mended = "crm: tool 'text' is left out: it is odd", "crm: tool 'a b' is mended: it is odd"
    found = list(check_tools(installation({
        "host:1": {"tools": {"left_out": [left_out], "mended": [mended]}},
        "host:2": {"tools": {"left_out": [left_out], "mended": []}},
        "host:3": {},  # of an older version
    })))  # fmt: skip
    assert [(each.level, each.what) for each in found] == [(Level.WARN, left_out), (Level.OK, mended)]
    assert "the other tools work" in found[0].advice


def worker(**facts: Any) -> dict[str, Any]:
    known = {"pool": "threads", "slots": 4, "running": 1, "abandoned": 0, "agents": {}, "queues": [""]}
    return {**known, "group": "", **facts}


def test_the_pool_is_that_with_which_a_worker_was_started() -> None:
    workers = {"good": worker(), "forked": worker(pool="prefork")}
    found = {finding.name: finding for finding in check_workers(installation(workers))}
    assert found["worker good"].what.startswith("pool threads, 1 of 4 slots busy")
    assert found.keys() == {"worker good", "worker forked"}
    project = replace(installation(workers), existing_app=Celery("shop"))
    assert "pool of forked" in {finding.name for finding in check_workers(project)}


def test_workers_of_other_builds_are_told_apart() -> None:
    same = {"one": worker(version=__version__, schema=PACKED_SCHEMA_VERSION)}
    (fine,) = check_builds(installation(same))
    assert (fine.level, __version__ in fine.what) == (Level.OK, True)
    mixed = {**same, "next": worker(version="0.3.0.dev1+gabc", schema=5), "old": worker(schema=3), "older": worker()}
    (found,) = check_builds(installation(mixed))
    assert found.level is Level.WARN
    assert f"1 of the workers {__version__}, which reads states up to schema {PACKED_SCHEMA_VERSION}" in found.what
    assert "1 of the workers 0.3.0.dev1+gabc, which reads states up to schema 5" in found.what
    assert "1 of the workers a version before 0.2.0, which reads states up to schema 3" in found.what


def test_settings_that_live_workers_do_not_have_are_not_told_of_the_app() -> None:
    """The app says prefork; its workers are started with an option that says otherwise."""
    names = {"worker_pool"}
    alone = replace(installation({}), existing_app=Celery("shop"))
    assert names <= {finding.name for finding in check_app_settings(alone)}
    running = replace(alone, workers={"good": worker()})
    assert not names & {finding.name for finding in check_app_settings(running)}


def test_a_variable_that_goes_before_the_broker_of_an_app_is_named_without_passwords(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://:s3cret@elsewhere:6379/0")
    project = replace(installation({}), existing_app=Celery("shop", broker="redis://:s3cret@ours:6379/0"))
    found = {finding.name: finding for finding in check_app_settings(project)}
    assert found["CELERY_BROKER_URL"].level is Level.WARN
    assert "elsewhere:6379" in found["CELERY_BROKER_URL"].what
    assert "ours:6379" in found["CELERY_BROKER_URL"].what
    assert "s3cret" not in str(found)
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://:s3cret@ours:6379/0")
    assert "CELERY_BROKER_URL" not in {finding.name for finding in check_app_settings(project)}


def test_an_app_at_rabbitmq_whose_threads_would_set_the_prefetch_count_is_warned_of_it() -> None:
    name, at = "worker_enable_prefetch_count_reduction", {"broker_url": "amqp://ours//"}
    app, made = Celery("shop"), installation({})
    project = replace(made, existing_app=app, settings=made.settings.model_copy(update=at))
    found = {finding.name: finding for finding in check_app_settings(project)}
    assert found[name].level is Level.WARN
    assert name not in {finding.name for finding in check_app_settings(replace(made, existing_app=app))}
    app.conf.worker_enable_prefetch_count_reduction = False
    assert name not in {finding.name for finding in check_app_settings(project)}


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
