"""The other live workers, as a worker sees them that received a step of an agent it does not offer."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..store import Store

Workers = Mapping[str, Mapping[str, Any]]

# Many steps of such agents may come at once; workers register every five seconds.
_CACHE_SECONDS: Final = 1.0


class Peers:
    """Chooses the queue where a step of another worker's agent is run."""

    def __init__(self, store: Store, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._monotonic = monotonic
        self._workers: Workers = {}
        self._read_at = float("-inf")

    def queue_for(self, agent: str, *, besides: str) -> str | None:
        """Name of a queue that only workers take which offer the agent; None when there is none.

        A worker with more free slots is chosen more often.

        Args:
            besides: The queue that the step came from.
        """
        found = _choose_queue(self._read_cached(), agent, besides)
        return found if found is not None else _choose_queue(self._read(), agent, besides)

    def offer(self, agent: str) -> bool:
        """Whether a live worker offers the agent, as the registry says now."""
        return any(agent in facts["agents"] for facts in self._read().values())

    def _read_cached(self) -> Workers:
        return self._workers if self._monotonic() - self._read_at < _CACHE_SECONDS else self._read()

    def _read(self) -> Workers:
        self._workers, self._read_at = self._store.registry.workers(), self._monotonic()
        return self._workers


def _choose_queue(workers: Workers, agent: str, besides: str) -> str | None:
    free: dict[str, int] = {}
    for facts in workers.values():
        if agent not in facts["agents"] or facts["draining"]:
            continue
        queue = facts["agent_queues"].get(agent) or facts["group"]
        if queue and queue != besides and queue in facts["queues"]:
            free[queue] = free.get(queue, 1) + max(0, facts["slots"] - facts["running"])
    return random.choices(list(free), weights=list(free.values()))[0] if free else None
