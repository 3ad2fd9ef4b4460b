"""The client that control tasks use."""

from __future__ import annotations

import threading

from celery import Celery

from ..config.settings import Settings
from .client.client import AgentClient


class LazyClient:
    """The client that control tasks use, made on first use in the process that needs it."""

    def __init__(self, app: Celery, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._lock = threading.Lock()
        self._client: AgentClient | None = None

    def __call__(self) -> AgentClient:
        """Return the client of this process."""
        with self._lock:
            if self._client is None:
                self._client = AgentClient(settings=self._settings, app=self._app)
            return self._client

    def stop(self, session_id: str, execution_id: str) -> None:
        """Ask for the stop of an execution whose step was revoked, and do not wait for it."""
        self().stop(session_id, execution_id=execution_id, timeout=0, by="revoke (Flower or Celery)")
