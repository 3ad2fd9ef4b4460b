"""A step's message that does not travel: the worker that would fetch it delivers it to itself."""

from __future__ import annotations

from typing import Any

from celery.worker import state

from ...worker.store import StepRef
from ..publishing import TransactionPublisher
from .pool import TaskPool
from .quarantine import mark_unacknowledged


class LocalDelivery:
    """Delivers steps to this worker as if it had fetched them: Celery receives, traces and tells of them as ever."""

    def __init__(self, pool: TaskPool, publisher: TransactionPublisher, queue: str) -> None:
        """
        Args:
            queue: It must be consumed without acknowledgement.
        """
        self._pool = pool
        self._publisher = publisher
        self._queue = queue

    def has_room(self) -> bool:
        """Whether another task would find a slot; what waits for one in any queue gets those of steps that end."""
        return len(state.reserved_requests) < self._pool.limit

    def deliver(self, ref: StepRef, now_ms: int) -> bool:
        """Whether the step's task will begin here, as soon as there is a slot. In the thread of the steps only.

        It will not while Celery does not consume the queue, and when Celery puts the task off or discards it.
        """
        consumer: Any = self._pool.consumer
        if consumer is None:
            return False
        receive = consumer.channel.connection._callbacks.get(self._queue)
        message = self._publisher.delivered(ref, now_ms)
        if receive is None or message is None:
            return False
        mark_unacknowledged(message, self._queue)
        receive(message)
        return self._pool.newest_id == ref.task_id
