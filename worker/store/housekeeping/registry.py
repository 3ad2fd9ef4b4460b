"""What workers tell each other about themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..context import StoreContext
from . import sweeps


class WorkerRegistry:
    """Workers that are alive and the agents they offer."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context

    def register(self, worker: str, facts: Mapping[str, Any], agents: Mapping[str, str]) -> None:
        """Tell that a worker lives and what it offers."""
        sweeps.register(self._context, worker, facts, agents)

    def unregister(self, worker: str) -> None:
        """Tell that a worker has gone."""
        sweeps.unregister(self._context, worker)

    def workers(self) -> dict[str, dict[str, Any]]:
        """Workers heard of lately."""
        return sweeps.workers(self._context)

    def agents(self) -> dict[str, dict[str, Any]]:
        """Agents ever registered."""
        return sweeps.agents(self._context)
