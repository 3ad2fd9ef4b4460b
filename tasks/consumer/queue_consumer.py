"""Taking the messages of our queues from a Redis: consumers of our own, next to Celery's.

kombu fetches one message, delivers it, and turns its loop once more for the next one, and what somebody has written
into a queue may end it. So our queues have consumers of their own. A fetcher reads their lists over a connection that
nothing else uses. Each message is checked and handed to the strategy of its task, as Celery's consumer does. From there
on it is a Celery task like any other, with its events, revokes, rate limits and pool. kombu serves our queues of any
other broker.
"""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

from celery import Celery, bootsteps

from ...config.brokers import is_redis
from ...worker.concurrency import fibers
from ...worker.redaction import describe_exception
from ...worker.store.redis.database import RedisDatabase, connect_to_wait
from ...worker.store.redis.outages import REFUSALS
from ..broker_connections import broker_tls
from ..broker_keys import queue_keys
from ..runtime import LazyRuntime
from .decoded_messages import DecodedMessage, read_element
from .internals import batch_events, has_known_strategy, plain_socket
from .message_checks import describe_fault
from .pool import TaskPool
from .quarantine import Quarantine
from .queue_fetcher import BLOCK_SECONDS, FetchedElement, QueueFetcher

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0
_REFUSED_SECONDS: Final = 1.0
_END_SECONDS: Final = 2.0 * BLOCK_SECONDS


class QueueConsumer(ABC):
    """Takes messages from queues of a Redis and hands them to Celery. Subclasses say how they are fetched.

    It fetches while Celery's consumer is connected and it is open. Celery's loop delivers, because a pool such as
    `prefork` may be used in its thread alone.

    Attributes:
        task: A task of these queues.
        loop: Name of the fetching loop, for `Liveness`.
    """

    task: ClassVar[str]
    loop: ClassVar[str]

    def __init__(self, app: Celery, runtime: LazyRuntime, queues: Iterable[str]) -> None:
        """
        Args:
            queues: The broker's names of the queues.
        """
        self._app = app
        self._runtime = runtime
        self._quarantine = Quarantine(runtime)
        self._keys = {name: queue_keys(app, name) for name in queues}
        self._taken = frozenset(self._keys)
        self._lock = threading.Lock()
        self._is_open = False
        self._consumer: Any = None
        self._fetcher: QueueFetcher | None = None
        self._threads: list[threading.Thread] = []

    # --- its life -----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Fetch from now on, as soon as Celery's consumer is connected."""
        with self._lock:
            self._is_open = True
            self._begin()

    def connect(self, consumer: Any) -> None:
        """Deliver to a consumer of Celery that has connected; it does so again after each lost connection."""
        with self._lock:
            self._end()
            self._consumer = consumer
            self._begin()

    def disconnect(self) -> None:
        """Deliver nothing more: Celery's consumer ends, or connects again."""
        with self._lock:
            self._end()
            self._consumer = None

    def drain(self) -> None:
        """Fetch nothing more, whatever connects. A signal handler calls this, so it waits for no lock."""
        self._is_open = False
        if (fetcher := self._fetcher) is not None:
            fetcher.end()

    def close(self) -> None:
        """End for good: the worker's pool has stopped. What a thread still takes meanwhile has gone back then."""
        self.disconnect()
        for thread in self._threads:
            thread.join(_END_SECONDS)

    def _begin(self) -> None:
        """Start a fetcher. The one before may wait in Redis for another second, and gives back what it gets."""
        consumer = self._consumer
        if not self._is_open or consumer is None:
            return
        if not has_known_strategy(consumer, self.task):
            for queue in self._taken:
                consumer.call_soon(consumer.add_task_queue, queue)
            return
        self._fetcher = self._make_fetcher(consumer)
        if not self._is_open:  # a signal has drained it meanwhile
            self._fetcher.end()
        self._start_fetcher(consumer, self._fetcher)

    @abstractmethod
    def _make_fetcher(self, consumer: Any) -> QueueFetcher:
        """Make the fetcher of these queues for a consumer of Celery that has connected."""

    def _start_fetcher(self, consumer: Any, fetcher: QueueFetcher) -> None:
        del consumer
        thread = threading.Thread(target=fetcher.run, name=f"celery-agents-{self.loop}", daemon=True)
        self._threads = [*(each for each in self._threads if each.is_alive()), thread]
        thread.start()

    def _end(self) -> None:
        if self._fetcher is not None:
            self._fetcher.end()
            self._fetcher = None
            self._runtime.liveness.forget_loop(self.loop)

    def _wake(self) -> None:
        """Let the fetcher look for room again."""
        if (fetcher := self._fetcher) is not None:  # another thread may end it meanwhile
            fetcher.wake()

    def _record_turn(self) -> None:
        self._runtime.liveness.record_turn(self.loop)

    def _connect_broker(self) -> RedisDatabase:
        """Make a database over the broker: nothing else may wait behind a command that blocks."""
        settings = self._runtime.settings
        return connect_to_wait(
            settings.broker,
            timeout_seconds=BLOCK_SECONDS + settings.redis_timeout_seconds,
            name=f"celery-agents-{self.loop}",
            plain_socket=plain_socket,
            tls=broker_tls(self._app),
        )

    # --- queues, as remote control names them -------------------------------------------------------------------------

    def knows(self, queue: object) -> bool:
        """Tell whether a queue is one of these, by the broker's name."""
        return queue in self._keys

    def take_queue(self, queue: str, *, is_taken: bool) -> None:
        """Take messages of one of these queues from now on, or none any more."""
        with self._lock:
            self._taken = self._taken | {queue} if is_taken else self._taken - {queue}
            if self._fetcher is not None:
                self._fetcher.queues = self._taken_keys()
                self._fetcher.wake()

    def _taken_keys(self) -> dict[str, tuple[str, ...]]:
        return {name: keys for name, keys in self._keys.items() if name in self._taken}

    def active_queues(self) -> list[str]:
        """The broker's names of the queues that are taken now."""
        return sorted(fetcher.queues) if (fetcher := self._fetcher) is not None else []

    # --- delivering ---------------------------------------------------------------------------------------------------

    def _deliver_in_celerys_loop(self, elements: Sequence[FetchedElement]) -> bool:
        """Deliver in the thread whose pool it is, and wait for that: only then is it known how much room is left."""
        consumer, fetcher = self._consumer, self._fetcher
        if consumer is None:
            return False
        messages = self._read(elements)
        delivered = concurrent.futures.Future[None]()

        def deliver() -> None:
            if delivered.set_running_or_notify_cancel():
                try:
                    for message in messages:
                        self._deliver(message)
                finally:
                    delivered.set_result(None)

        consumer.call_soon(deliver)
        while not fibers.wait((delivered,), _LOOK_SECONDS)[0]:
            if self._fetcher is not fetcher and delivered.cancel():  # Celery has forgotten it with its connection
                return False
        return True

    def _read(self, elements: Sequence[FetchedElement]) -> list[DecodedMessage]:
        messages: list[DecodedMessage] = []
        for element in elements:
            try:
                messages.append(read_element(element.queue, element.data))
                messages[-1].fetched = element
            except Exception as error:  # noqa: BLE001 - whatever somebody thinks of must not end the worker
                self._refuse(element, element.data, describe_fault(error))
        return messages

    def _deliver(self, message: DecodedMessage) -> None:
        try:
            self._hand_to_celery(message)
        except Exception as error:  # noqa: BLE001 - as in `_read`, or of a project's signal handlers
            log.warning("a message cannot be delivered: %s", describe_exception(error).message)
            self._refuse(message.fetched, message.headers, f"cannot be delivered: {type(error).__name__}")

    def _refuse(self, element: FetchedElement | None, shown: object, reason: str) -> None:
        """Put an element into quarantine, as `shown`."""
        del element
        self._quarantine.put(shown, reason)

    @abstractmethod
    def _hand_to_celery(self, message: DecodedMessage) -> bool:
        """Hand a message to the strategy of its task; False: it does not begin now."""


def consumer_step(runtime: LazyRuntime) -> type[bootsteps.StartStopStep]:
    """Return a bootstep of Celery's consumer, which starts and stops with each connection of it."""

    class QueueConsumersBootstep(bootsteps.StartStopStep):
        requires = ("celery.worker.consumer.tasks:Tasks",)

        def __init__(self, parent: Any, **kwargs: Any) -> None:
            super().__init__(parent, **kwargs)
            self._has_started = False
            if is_redis(runtime.settings.broker):  # one that refuses for now is away; by itself, Celery ends its worker
                parent.connection_errors = (*parent.connection_errors, *REFUSALS)

        def start(self, parent: Any) -> None:
            if isinstance(parent.pool, TaskPool) and parent.event_dispatcher is not None:
                batch_events(parent.event_dispatcher, parent.pool.loop.call_later)
            for consumer in runtime.consumers:
                consumer.connect(parent)
            self._has_started = True

        def stop(self, parent: Any) -> None:
            del parent
            if not self._has_started:  # refused while it connected; Celery would ask again at once
                time.sleep(_REFUSED_SECONDS)
            self._has_started = False
            for consumer in runtime.consumers:
                consumer.disconnect()

        def shutdown(self, parent: Any) -> None:
            """Send the last events: the pool has stopped, and Celery closes the dispatcher next."""
            if parent.event_dispatcher is not None:
                parent.event_dispatcher.flush()
            for consumer in runtime.consumers:
                consumer.close()

    return QueueConsumersBootstep
