"""The list of checks. A further check is a function `(Installation) -> Iterator[Finding]` in this list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from celery import Celery

from ....config.brokers import shares_a_database
from ....config.settings import Settings
from ....worker.errors import StateUnreadable, StoreForbidden, StoreUnavailable
from ....worker.redaction import describe_exception
from ....worker.store.redis.outages import RedisIsAway
from ....worker.store.store import Store, redis_store
from ...app import create_app
from ...publishing import StepPublisher
from ..server_policy import check_mode
from . import cluster, environment, providers, replication, schedules, server, stored_data, workers
from .findings import Check, Finding, Installation

INFO_CHECKS: Final[tuple[Check, ...]] = (
    server.check_version,
    server.check_eviction,
    server.check_durability,
    server.check_restart,
    server.check_memory,
    server.check_clock,
    replication.check_role,
    replication.check_confirmations,
    replication.check_sentinels,
)
CHECKS: Final[tuple[Check, ...]] = (
    *INFO_CHECKS,
    replication.check_writes,
    server.check_shards,
    cluster.check_cluster,
    stored_data.check_key_types,
    stored_data.check_entries,
    stored_data.check_histories,
    stored_data.check_archive,
    server.check_broker,
    workers.check_workers,
    workers.check_builds,
    workers.check_library_attributes,
    workers.check_agents,
    workers.check_tools,
    workers.check_unoffered,
    workers.check_backlog,
    workers.check_delayed,
    providers.check_pauses,
    providers.check_providers,
    providers.check_concurrency,
    providers.check_caps,
    providers.check_shares,
    providers.check_jobs,
    schedules.check_schedules,
    workers.check_requests,
    workers.check_callbacks,
    workers.check_queue,
    workers.check_dead,
    stored_data.check_unacked,
    stored_data.check_refused,
    environment.check_models,
    environment.check_own_agents,
    environment.check_app_settings,
)

BROKER_CHECKS: Final[tuple[Check, ...]] = (workers.check_queue, providers.check_shares)
"""Those that read the queues, where these are."""


def examine(settings: Settings, app: Celery | None = None) -> list[Finding]:
    """Look at Redis, the broker, workers, agents and the backlog.

    Args:
        app: The user's Celery app, whose settings are looked at too. None: an app of our own.
    Raises:
        StoreUnavailable: Redis does not answer; nothing else can be looked at.
        ConfigurationError: The URL leads to another kind of server than it says, or the user is refused.
    """
    chosen = app or create_app(settings)
    store = redis_store(settings, name="celery-agents-doctor", publisher=StepPublisher(chosen, settings))
    findings: list[Finding] = []
    checks = CHECKS
    server_facts: dict[str, str] = {}
    try:
        server_facts = store.housekeeping.server_facts()
        if not store.context.fleet.is_apart:
            check_mode(server_facts)
    except StoreForbidden as error:
        advice = (
            "ask as a user that may run INFO, such as monitor: version, eviction, persistence and memory are unknown"
        )
        findings.append(Finding.warn("redis", f"{error}", advice))
        checks = tuple(check for check in CHECKS if check not in INFO_CHECKS)
    registry, workers_found = _read_workers(store)
    installation = Installation(
        settings=settings,
        app=chosen,
        existing_app=app,
        store=store,
        server_facts=server_facts,
        workers=workers_found,
    )
    return [*findings, *registry, *(finding for check in checks for finding in _run(check, installation))]


def _read_workers(store: Store) -> tuple[list[Finding], dict[str, dict[str, Any]]]:
    """Read the registry of workers; where it cannot be read, a finding says so and there are none."""
    try:
        return [], store.registry.workers()
    except (StoreForbidden, StateUnreadable) as error:
        return [Finding.fail("registry", str(error), "look at the findings about key types")], {}


def _run(check: Check, installation: Installation) -> Iterator[Finding]:
    """Run a check; whatever it cannot read becomes a finding, and the other checks go on."""
    name = check.__name__.removeprefix("check_").replace("_", " ")
    try:
        yield from check(installation)
    except StoreForbidden as error:
        yield Finding.warn(name, str(error), "ask as a Redis user that may look at it, such as monitor")
    except StoreUnavailable as error:
        if check in BROKER_CHECKS and not shares_a_database(installation.settings):
            yield Finding.warn(name, str(error), "it cannot be looked at until the broker answers")
            return
        if not isinstance(error.__cause__, RedisIsAway) and not installation.store.context.fleet.is_apart:
            raise
        yield Finding.fail(name, str(error), "it cannot be looked at until Redis takes writes")
    except StateUnreadable as error:
        yield Finding.fail(name, str(error), "look at the findings about key types and entries")
    except Exception as error:  # noqa: BLE001 - a value that no check foresees hides no other finding
        yield Finding.fail(name, describe_exception(error).message, "look at what is stored; somebody else wrote to it")
