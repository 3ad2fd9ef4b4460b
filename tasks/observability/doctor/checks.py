"""The list of checks. A further check is a function `(Installation) -> Iterator[Finding]` in this list."""

from __future__ import annotations

from typing import Final

from celery import Celery

from ....config.settings import Settings
from ....worker.store import redis_store
from ...app import create_app
from . import environment, server, workers
from .findings import Check, Finding, Installation

CHECKS: Final[tuple[Check, ...]] = (
    server.check_version,
    server.check_eviction,
    server.check_durability,
    server.check_memory,
    server.check_clock,
    server.check_role,
    server.check_shards,
    server.check_broker,
    workers.check_workers,
    workers.check_library_attributes,
    workers.check_agents,
    workers.check_backlog,
    workers.check_queue,
    workers.check_dead,
    environment.check_models,
    environment.check_own_agents,
    environment.check_app_settings,
)


def examine(settings: Settings, app: Celery | None = None) -> list[Finding]:
    """Look at Redis, the broker, workers, agents and the backlog.

    Args:
        app: The user's Celery app, whose settings are looked at too. None: an app of our own.
    Raises:
        StoreUnavailable: Redis does not answer; nothing else can be looked at.
    """
    store = redis_store(settings, name="celery-agents-doctor")
    installation = Installation(
        settings=settings,
        app=app or create_app(settings),
        existing_app=app,
        store=store,
        server_facts=store.housekeeping.server_facts(),
        workers=store.registry.workers(),
    )
    return [finding for check in CHECKS for finding in check(installation)]
