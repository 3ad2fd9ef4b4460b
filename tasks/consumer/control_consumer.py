"""Taking control messages: submit, stop, answers and other verbs that clients send as Celery tasks."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any, ClassVar

from ...config.celery import is_our_queue
from ..broker_keys import record_keys, visibility_seconds
from ..names import SUBMIT
from .control_fetcher import ControlFetcher, ControlRecords
from .decoded_messages import DecodedMessage
from .internals import running_messages
from .kombu_records import KombuRecords
from .queue_consumer import QueueConsumer
from .queue_fetcher import FetchedElement, QueueFetcher
from .slots import count_slots


class ControlConsumer(QueueConsumer):
    """Takes the control queue. Its messages are acknowledged in Redis, when their tasks have ended.

    A worker takes as many as it has slots, besides its steps; those that wait for their time are not counted.
    """

    task: ClassVar[str] = SUBMIT
    loop: ClassVar[str] = "control"

    @cached_property
    def _records(self) -> ControlRecords:
        (queue,) = self._keys
        return ControlRecords(self._connect_broker(), record_keys(self._app, queue))

    def close(self) -> None:
        """Put back what has not ended: the worker's pool has stopped."""
        super().close()
        self._records.give_back_all()

    def _make_fetcher(self, consumer: Any) -> QueueFetcher:
        # Celery forgets with its connection what waited for its time or a rate limit; its pool goes on with the rest.
        taken = (getattr(message, "fetched", None) for message in running_messages())  # those of other tasks have none
        self._records.give_back_all({element.record for element in taken if element is not None})
        database, is_ours = self._connect_broker(), partial(is_our_queue, self._runtime.settings)
        return ControlFetcher(
            database,
            self._taken_keys(),
            self._records,
            visibility_seconds=visibility_seconds(self._app),
            restore=KombuRecords(self._app, database, quarantine=self._quarantine, is_ours=is_ours).restore,
            count_wanted=lambda: self._records.count_wanted(count_slots(consumer)),
            hand_over=self._deliver_in_celerys_loop,
            record_turn=self._record_turn,
        )

    def _hand_to_celery(self, message: DecodedMessage) -> bool:
        consumer, element = self._consumer, message.fetched
        if element is None:
            raise TypeError("a control message comes from its queue")
        self._records.hold(element, is_later=message.headers.get("eta") is not None)
        if consumer is None:
            return False  # it goes back when Celery has connected again, or ends
        if element.is_redelivered:
            message.delivery_info["redelivered"] = True
        acknowledge, reject = partial(self._acknowledge, element), partial(self._reject, element)
        strategy = consumer.strategies[message.headers["task"]]
        strategy(message, None, acknowledge, reject, tuple(getattr(consumer, "on_task_message", ())))
        return True

    def _acknowledge(self, element: FetchedElement, *_: object) -> None:
        self._records.acknowledge(element)
        self._wake()

    def _reject(self, element: FetchedElement, logger: object, errors: object, requeue: bool = False) -> None:
        """Let a message come once more, after the visibility timeout; the second time it goes into quarantine.

        Celery rejects it when the child of the pool that ran it was killed, or when its retry cannot be published. At
        once, it might kill one child after the other.
        """
        del logger, errors, requeue
        if element.is_redelivered:
            reason = "its task was rejected twice: its process was lost, or its retry could not be sent"
            self._refuse(element, element.data, reason)
        else:
            self._records.forget(element)
        self._wake()

    def _refuse(self, element: FetchedElement | None, shown: object, reason: str) -> None:
        """Put an element into quarantine. One that the store does not take keeps its record, and comes once more."""
        is_stored = self._quarantine.put(shown, reason)
        if element is not None:
            (self._records.acknowledge if is_stored else self._records.forget)(element)
