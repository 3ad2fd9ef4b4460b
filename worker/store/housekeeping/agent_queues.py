"""The queues of the agents, as clients and parents of children read them from the registry."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from .registry import WorkerRegistry

# An agent moves to another queue with a new version of its workers, and the sweep moves what was submitted meanwhile.
_CACHE_SECONDS: Final = 5.0


class AgentQueues:
    """Remembers for some seconds which queue an agent has. Safe between threads."""

    def __init__(self, registry: Callable[[], WorkerRegistry], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._monotonic = monotonic
        self._found: dict[str, tuple[str, float]] = {}

    def queue_of(self, agent: str) -> str | None:
        """Name of the queue for a new session of an agent, as `WorkerRegistry.queue_for_new` tells it.

        An agent that was registered once keeps its queue, even when the registry has been emptied since.
        """
        now = self._monotonic()
        known = self._found.get(agent)
        if known is not None and now - known[1] < _CACHE_SECONDS:
            return known[0]
        queue = self._registry().queue_for_new(agent)
        if queue is None and known is not None:
            queue = known[0]
        if queue is not None:
            self._found[agent] = (queue, now)
        return queue

    def describe_unknown(self, agent: str) -> str:
        """A sentence for the caller who hands a job to an agent that no worker has registered."""
        others = ", ".join(sorted(self._registry().agents())) or "none"
        return (
            f"no worker has registered agent {agent!r} (registered: {others}); the job waits until one does. "
            "If the name is wrong, stop the session"
        )
