"""Names of queues as people see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...config.settings import DEFAULT_QUEUE, GROUP_MARK


def shown_queues(facts: Mapping[str, Any]) -> list[str]:
    """The queues that a worker takes, by its facts of the registry, without that of its group."""
    names = [name or DEFAULT_QUEUE for name in facts["queues"] if isinstance(name, str)]
    return sorted(name for name in names if not name.startswith(GROUP_MARK))
