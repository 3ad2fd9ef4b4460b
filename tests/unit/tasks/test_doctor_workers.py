from __future__ import annotations

from typing import Any

from celery_agents.config.settings import Settings
from celery_agents.tasks.app import create_app
from celery_agents.tasks.observability.doctor.findings import Installation, Level
from celery_agents.tasks.observability.doctor.workers import check_library_attributes
from celery_agents.worker.store import memory_store

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
