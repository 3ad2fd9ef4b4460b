"""The settings of a worker follow how it was started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery.concurrency.solo import TaskPool as SoloPool
from celery.concurrency.thread import TaskPool as ThreadsPool

from celery_agents.config.settings import Settings
from celery_agents.tasks.consumer.bootstep import settings_as_started
from celery_agents.tasks.consumer.pool import TaskPool

SETTINGS = Settings.build(agents="support.agents")


@pytest.mark.parametrize(("pool", "name"), [(TaskPool, "greenlets"), (ThreadsPool, "threads"), (SoloPool, "solo")])
def test_pool_and_slots_are_those_of_the_worker(pool: type[Any], name: str) -> None:
    worker = SimpleNamespace(pool_cls=pool, max_concurrency=None, concurrency=7)
    started = settings_as_started(SETTINGS, worker)
    assert (started.pool, started.concurrency) == (name, 7)
