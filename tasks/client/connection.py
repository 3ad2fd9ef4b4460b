"""The connection of a client: its settings, its store and its way to publish. The verbs are built on it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Self

from celery import Celery

from ...config.settings import Settings
from ...worker.engine.transitions import operation_transition
from ...worker.errors import StoreUnavailable
from ...worker.store.housekeeping.registry import AgentQueues
from ...worker.store.records import ActionResult, Operation, StepRef
from ...worker.store.store import Store, redis_store
from ..producer import create_producer_app, settings_of
from ..publishing import StepPublisher
from .job import Job
from .submit_notes import SubmitNotes


class ClientConnection:
    """Holds the connections of a client; safe to share between threads."""

    def __init__(
        self,
        redis_url: str | None = None,
        *,
        broker_url: str | None = None,
        settings: Settings | None = None,
        app: Celery | None = None,
    ) -> None:
        """
        Args:
            redis_url: The store. None: `CELERY_AGENTS_REDIS_URL`.
            broker_url: None: `CELERY_AGENTS_BROKER_URL`, else the store.
            settings: Settings to use instead of both and of the environment.
            app: An existing app that has agents installed: messages go out as it sends its own, with its key prefix and
                its priorities, and the settings are those of `install`.
        Raises:
            SettingsError: A setting is unknown or wrong.
        """
        chosen = settings or (settings_of(app) if app is not None else None)
        self.settings = chosen or Settings.from_environment(redis_url=redis_url, broker_url=broker_url)
        publishing = app if app is not None else create_producer_app(self.settings)
        self._own_app = publishing if app is None else None
        self._publisher = StepPublisher(publishing, self.settings)
        self._store = redis_store(
            self.settings, name="celery-agents-client", publisher=self._publisher, confirms_actions=True
        )
        self._shards_checked = False
        self._queues = AgentQueues(lambda: self.store.registry)
        self._notes = SubmitNotes(lambda: self.store)

    def close(self) -> None:
        """Close the connections to Redis and to the broker. Using the client again opens new ones."""
        self._store.close()
        self._publisher.close()
        if self._own_app is not None:
            self._own_app.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def store(self) -> Store:
        """The step store, for monitoring and tests."""
        if not self._shards_checked:
            self._store.context.check_shards()
            self._shards_checked = True
        return self._store

    def _act(self, session: str, operation: Operation) -> ActionResult:
        applied = self.store.sessions.act(session, operation, operation_transition)
        self._publish(applied.publish)
        return applied

    def _publish(self, step: StepRef | None) -> None:
        """Publish a step where the transaction could not. A broker that refuses it is warned of: all else is done."""
        if step is None:
            return
        now_ms = self.store.housekeeping.now_ms(step.session_id)
        try:
            self._publisher.publish(step, now_ms)
        except StoreUnavailable as error:  # who took the job for lost would submit it once more
            told = f"session {step.session_id} is stored, and a worker publishes its step later: {error}"
            warnings.warn(told, stacklevel=3)

    def _make_job(self, session_id: str, *, operation_id: str = "", execution_id: str = "") -> Job:
        """Make a handle of an execution, which acts over the connections of this client."""
        return Job(self.store, session_id, operation_id=operation_id, execution_id=execution_id, publish=self._publish)

    def _describe_wait(self, agent: str, queue: str | None, labels: Mapping[str, str]) -> str:
        """Why what begins with a new session cannot begin yet, as `Job.notice`; "" where nothing is known to hold it.

        Args:
            queue: Of the agent; None: no worker has registered it.
        """
        return self._queues.describe_unknown(agent) if queue is None else self._notes.describe(agent, queue, labels)

    def _now_ms(self) -> int:
        return self.store.housekeeping.now_ms()
