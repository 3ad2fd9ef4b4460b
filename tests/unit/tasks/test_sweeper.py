from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from celery_agents.config.settings import Settings
from celery_agents.tasks.app import create_app
from celery_agents.tasks.housekeeping.callbacks import CallbackCaller
from celery_agents.tasks.housekeeping.sweeper import Sweeper
from celery_agents.tasks.publishing import TransactionPublisher
from celery_agents.worker.store import memory_store

from support.wait import wait_until

SETTINGS = Settings.build(sweep_seconds=0.01)


class FailsAtFirst:
    """A runtime that cannot even say what it is, three times."""

    settings = SETTINGS
    name = "w"
    agents = SimpleNamespace(hashes={"agent": "hash"})

    def __init__(self) -> None:
        self.store = memory_store(SETTINGS)
        app = create_app(SETTINGS)
        self.publisher = TransactionPublisher(app, SETTINGS)
        self.callbacks = CallbackCaller(app, self.store, SETTINGS)
        self.failures = 0

    @property
    def facts(self) -> dict[str, Any]:
        self.failures += 1
        if self.failures <= 3:
            raise KeyError("nobody has thought of this")
        return {"slots": 1, "running": 0, "draining": False}


def test_the_sweep_outlives_whatever_fails() -> None:
    runtime: Any = FailsAtFirst()
    sweeper = Sweeper(lambda: runtime, lambda: 0)
    sweeper.start()
    try:
        wait_until(lambda: "w" in runtime.store.registry.workers(), "the worker is registered", timeout=10)
    finally:
        sweeper.close()
