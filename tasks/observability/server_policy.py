"""The policies of a Redis that decide whether it may lose sessions."""

from __future__ import annotations

import logging
from collections.abc import Mapping

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
