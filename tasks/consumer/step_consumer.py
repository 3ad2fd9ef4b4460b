"""Taking steps from a Redis broker: as many as there are free slots, on the loop of the steps."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from celery import Celery

from ...worker.store.records import StepRef
from ..names import STEP
from ..runtime import LazyRuntime
from .decoded_messages import DecodedMessage
from .lane_fetcher import LaneFetcher
from .pool import TaskPool
from .queue_consumer import QueueConsumer
from .queue_fetcher import FetchedElement, QueueFetcher
from .slots import Slots


class StepConsumer(QueueConsumer):
    """Takes steps from the lists of a Redis and hands them to Celery. One for each worker.

    With our own pool it fetches and delivers on the loop of the steps.
    """

    task: ClassVar[str] = STEP
    loop: ClassVar[str] = "steps"

    def __init__(self, app: Celery, runtime: LazyRuntime, queues: Mapping[str, str]) -> None:
        """
        Args:
            queues: The broker's names of the queues, by the names that agents give them.
        """
        super().__init__(app, runtime, queues.values())
        self._names = dict(queues)
        self._slots: Slots | None = None
        self._lanes: LaneFetcher | None = None

    def _make_fetcher(self, consumer: Any) -> QueueFetcher:
        is_beside, is_exact = isinstance(consumer.pool, TaskPool), bool(self._app.conf.worker_disable_prefetch)
        # Our own pool has threads of their own for other tasks.
        counts_others = not is_beside and (is_exact or not self._consumes_other_queues())
        self._slots = Slots(consumer, counts_other_tasks=counts_others)
        self._lanes = LaneFetcher(
            self._connect_broker(),
            self._taken_keys(),
            count_wanted=self._slots.count_wanted,
            hand_over=self._deliver_here if is_beside else self._deliver_in_celerys_loop,
            record_turn=self._record_turn,
            give_way=partial(consumer.call_soon, _do_nothing) if is_exact else None,
            write=self._runtime().publisher.message,
            names={queue: name for name, queue in self._names.items()},
            shares=lambda: self._runtime().gate.view.shares,
        )
        return self._lanes

    def _start_fetcher(self, consumer: Any, fetcher: QueueFetcher) -> None:
        if isinstance(consumer.pool, TaskPool):
            consumer.pool.run_beside(fetcher.run)
        else:
            super()._start_fetcher(consumer, fetcher)

    def _consumes_other_queues(self) -> bool:
        return bool(set(self._app.amqp.queues.consume_from) - {self._runtime.settings.control_queue})

    # --- steps that stay with their worker ----------------------------------------------------------------------------

    def has_room(self) -> bool:
        """Tell whether another step would find a slot; otherwise the next free slot belongs to a queue."""
        return self._fetcher is not None and self._slots is not None and self._slots.has_room()

    def deliver(self, ref: StepRef, now_ms: int) -> bool:
        """Deliver a step as if it had been fetched, and tell whether its task begins. For the loop of the steps only.

        It does not begin while the queue is not consumed, or when Celery delays or discards it.
        """
        queue, fetcher = self._names.get(ref.queue), self._fetcher
        if queue is None or fetcher is None or queue not in fetcher.queues:
            return False
        element = self._runtime().publisher.make_delivered(ref, now_ms)
        if element is None:
            return False
        message = DecodedMessage(element, queue, element["body"])
        message.fetched = FetchedElement(queue, "", b"", lane=ref.lane)
        return self._hand_to_celery(message)

    # --- delivering ---------------------------------------------------------------------------------------------------

    def _deliver_here(self, elements: Sequence[FetchedElement]) -> bool:
        if self._consumer is None:
            return False
        for message in self._read(elements):
            self._deliver(message)
        return True

    def _hand_to_celery(self, message: DecodedMessage) -> bool:
        """Hand a message over as Celery's consumer does, and tell whether its task begins now."""
        consumer, slots = self._consumer, self._slots
        if consumer is None or slots is None:
            return False
        begun: list[object] = []
        release = partial(self._release, slots, message, time.monotonic())
        slots.take(message)
        try:
            strategy = consumer.strategies[message.headers["task"]]
            strategy(message, None, release, release, (*getattr(consumer, "on_task_message", ()), begun.append))
        except Exception:
            release()
            raise
        return bool(begun)

    def _release(self, slots: Slots, message: DecodedMessage, taken_at: float, *_: object) -> None:
        """Celery acknowledges or rejects a message when its task has ended: its slot is free."""
        slots.free(message)
        if message.fetched is not None and self._lanes is not None:
            self._lanes.charge(message.fetched, time.monotonic() - taken_at)
        self._wake()


def _do_nothing() -> None:
    """Celery's loop has turned."""
