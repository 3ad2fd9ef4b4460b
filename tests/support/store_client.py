"""A client whose verbs act on a store of the test; what it would publish, nobody hears of."""

from __future__ import annotations

from celery_agents import AgentClient
from celery_agents.worker.store.store import Store


class StoreClient(AgentClient):
    """The verbs of a client, on a store of the test."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.settings = store.context.settings
        self._shards_checked = True

    def _publish(self, step: object) -> None: ...
