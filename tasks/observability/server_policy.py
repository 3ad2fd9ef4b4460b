"""The policies of a Redis that decide whether it may lose sessions."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from ...worker.errors import ConfigurationError

log = logging.getLogger(__name__)


def check_server(facts: Mapping[str, str]) -> None:
    """Refuse a Redis that may lose sessions, before a worker starts.

    Raises:
        ConfigurationError: Redis may evict sessions under memory pressure.
    """
    check_eviction_policy(facts)
    if facts.get("aof_enabled") == "0":
        log.warning("Redis keeps no append-only file: what it holds is lost with its process; set appendonly yes")


def find_problems(facts: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each thing by which a running Redis may lose sessions or refuses them."""
    try:
        check_eviction_policy(facts)
    except ConfigurationError as error:
        yield str(error)
    if facts.get("aof_enabled") == "1" and facts.get("aof_last_write_status", "ok") != "ok":
        yield "Redis cannot write its append-only file; look at its disk and log"
    if facts.get("role") == "slave":
        yield "Redis has become a replica; point CELERY_AGENTS_REDIS_URL at the primary"


def memory_share(facts: Mapping[str, str]) -> float:
    """The part of Redis's memory limit that is used; 0 without a limit."""
    used, limit = int(facts.get("used_memory", "0")), int(facts.get("maxmemory", "0"))
    return used / limit if limit else 0.0


def check_eviction_policy(facts: Mapping[str, str]) -> None:
    """Refuse a Redis that evicts keys when its memory is full.

    Raises:
        ConfigurationError: It does.
    """
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise ConfigurationError(
            f"Redis evicts keys when it is full (maxmemory-policy {policy}), and with them sessions; "
            "set maxmemory-policy noeviction"
        )
