"""Delivering the message of a step to the worker that would fetch it, without Redis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...worker.store import StepRef
from ..publishing import TransactionPublisher
from .celery_internals import reserved_count
from .kombu_internals import mark_no_ack, receiver_of
from .pool import TaskPool


class LocalDelivery:
    """Delivers steps to this worker as if it had fetched them: Celery receives, traces and reports them as ever."""

    def __init__(self, pool: TaskPool, publisher: TransactionPublisher, queues: Mapping[str, str]) -> None:
        """
        Args:
            queues: The broker's names of the queues, by the names that agents give them. They must be consumed without
                acknowledgement.
        """
        self._pool = pool
        self._publisher = publisher
        self._queues = queues

    def has_room(self) -> bool:
        """Tell whether another task would find a slot; otherwise the next free slot belongs to a queue."""
        return reserved_count() < self._pool.limit

    def deliver(self, ref: StepRef, now_ms: int) -> bool:
        """Deliver a step, and tell whether its task will begin here. Called in the thread of the steps only.

        The task will not begin while Celery does not consume the queue, or when Celery delays or discards it.
        """
        consumer: Any = self._pool.consumer
        queue = self._queues.get(ref.queue)
        if consumer is None or queue is None:
            return False
        receive = receiver_of(consumer.channel, queue)
        message = self._publisher.make_delivered(ref, now_ms)
        if receive is None or message is None:
            return False
        mark_no_ack(message, (queue,))
        receive(message)
        return self._pool.newest_id == ref.task_id
