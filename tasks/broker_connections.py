"""Connections of our own to a Redis broker, as Celery's own are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from celery import Celery

from ..config.redis_urls import uses_sentinels
from ..config.settings import Settings
from ..worker.store.redis.database import POOL_OPTIONS, RedisDatabase
from ..worker.store.redis.pools import make_pool

_CONNECTIONS: Final = 16


def connect_broker(app: Celery, settings: Settings) -> RedisDatabase:
    """Open a pool of connections to the broker; nothing is sent yet."""
    pool = make_pool(
        settings.broker, timeout_seconds=settings.redis_timeout_seconds, max_connections=_CONNECTIONS,
        client_name="celery-agents-publisher", **POOL_OPTIONS, **broker_tls(app),
    )  # fmt: skip
    if uses_sentinels(settings.broker):
        pool.sentinel_manager.setting = "CELERY_AGENTS_BROKER_URL"
    return RedisDatabase(pool)


def broker_tls(app: Celery) -> Mapping[str, Any]:
    """redis-py's options for TLS, besides those in the URL of the broker."""
    conf: Any = app.conf
    given: Any = conf.broker_use_ssl
    return given if isinstance(given, Mapping) else {}  # pyright: ignore[reportUnknownVariableType]
