"""Taking the steps of a Redis broker: our own consumer beside Celery's.

kombu fetches one message, delivers it, and turns its loop once more for the next one. That loop runs in another thread
than the steps. So the queues of steps have a consumer of their own: `step_fetcher` reads their lists on the loop of the
steps, and each message is handed to the strategy of its task, as Celery's consumer does. From there on it is a Celery
task like any other, with its events, revokes, rate limits and pool. kombu goes on consuming the control queue, and the
queues of steps of any other broker.
"""

from __future__ import annotations

import concurrent.futures
import logging
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from celery import Celery, bootsteps

from ...config.settings import Settings
from ...worker.concurrency import fibers
from ...worker.redaction import describe_exception
from ...worker.store.records import StepRef
from ...worker.store.redis.database import RedisDatabase, connect_to_wait
from ..broker_keys import queue_keys
from ..names import STEP
from ..runtime import LazyRuntime
from .internals import buffer_all_events, has_known_strategy, plain_socket
from .message_checks import InvalidMessage
from .pool import TaskPool
from .quarantine import Quarantine
from .slots import Slots
from .step_fetcher import BLOCK_SECONDS, FetchedElement, StepFetcher
from .step_messages import DecodedMessage, read_element

log = logging.getLogger(__name__)

_LOOP: Final = "steps"
_LOOK_SECONDS: Final = 1.0


class StepConsumer:
    """Takes steps from the lists of a Redis and hands them to Celery. One for each worker.

    It fetches while Celery's consumer is connected and the store has answered once. With our own pool it runs on the
    loop of the steps; with any other one it fetches in a thread, and Celery's loop delivers.
    """

    def __init__(self, app: Celery, runtime: LazyRuntime, queues: Mapping[str, str]) -> None:
        """
        Args:
            queues: The broker's names of the queues, by the names that agents give them.
        """
        self._app = app
        self._runtime = runtime
        self._quarantine = Quarantine(runtime)
        self._names = dict(queues)
        self._keys = {name: queue_keys(app, name) for name in queues.values()}
        self._taken = frozenset(self._keys)
        self._lock = threading.Lock()
        self._is_open = False
        self._consumer: Any = None
        self._slots: Slots | None = None
        self._fetcher: StepFetcher | None = None

    # --- its life -----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Fetch from now on, as soon as Celery's consumer is connected: the store answers."""
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

    def _begin(self) -> None:
        """Start a fetcher. The one before may wait in Redis for another second, and gives back what it gets."""
        consumer = self._consumer
        if not self._is_open or consumer is None:
            return
        if not has_known_strategy(consumer, STEP):
            for queue in self._taken:
                consumer.call_soon(consumer.add_task_queue, queue)
            return
        is_beside, is_exact = isinstance(consumer.pool, TaskPool), bool(self._app.conf.worker_disable_prefetch)
        # Our own pool has threads of their own for other tasks.
        counts_others = not is_beside and (is_exact or not self._consumes_other_queues())
        self._slots = Slots(consumer, counts_other_tasks=counts_others)
        self._fetcher = StepFetcher(
            connect_broker(self._app, self._runtime.settings),
            self._taken_keys(),
            count_wanted=self._slots.count_wanted,
            hand_over=self._deliver_here if is_beside else self._deliver_in_celerys_loop,
            record_turn=partial(self._runtime.liveness.record_turn, _LOOP),
            give_way=partial(consumer.call_soon, _do_nothing) if is_exact else None,
        )
        if is_beside:
            consumer.pool.run_beside(self._fetcher.run)
        else:
            threading.Thread(target=self._fetcher.run, name="celery-agents-steps", daemon=True).start()

    def _end(self) -> None:
        if self._fetcher is not None:
            self._fetcher.end()
            self._fetcher = None
            self._runtime.liveness.forget_loop(_LOOP)

    def _consumes_other_queues(self) -> bool:
        return bool(set(self._app.amqp.queues.consume_from) - {self._runtime.settings.control_queue})

    # --- queues, as remote control names them -------------------------------------------------------------------------

    def knows(self, queue: object) -> bool:
        """Tell whether a queue is one of the worker's queues of steps, by the broker's name."""
        return queue in self._keys

    def take_queue(self, queue: str, *, is_taken: bool) -> None:
        """Take steps of one of these queues from now on, or none any more."""
        with self._lock:
            self._taken = self._taken | {queue} if is_taken else self._taken - {queue}
            if self._fetcher is not None:
                self._fetcher.queues = self._taken_keys()
                self._fetcher.wake()

    def _taken_keys(self) -> dict[str, tuple[str, ...]]:
        return {name: keys for name, keys in self._keys.items() if name in self._taken}

    def active_queues(self) -> list[str]:
        """The broker's names of the queues from which steps are taken now."""
        return sorted(self._fetcher.queues) if self._fetcher is not None else []

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
        return element is not None and self._hand_to_celery(DecodedMessage(element, queue, element["body"]))

    # --- delivering ---------------------------------------------------------------------------------------------------

    def _deliver_here(self, elements: Sequence[FetchedElement]) -> bool:
        if self._consumer is None:
            return False
        for message in self._read(elements):
            self._deliver(message)
        return True

    def _deliver_in_celerys_loop(self, elements: Sequence[FetchedElement]) -> bool:
        """Deliver in the thread whose pool it is, and wait for that: only then is it known how many slots are free."""
        messages, consumer, fetcher = self._read(elements), self._consumer, self._fetcher
        delivered = concurrent.futures.Future[None]()

        def deliver() -> None:
            if delivered.set_running_or_notify_cancel():
                for message in messages:
                    self._deliver(message)
                delivered.set_result(None)

        if consumer is None:
            return False
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
            except InvalidMessage as error:
                self._quarantine.put(element.data, str(error))
            except Exception as error:  # noqa: BLE001 - whatever somebody thinks of must not end the worker
                self._quarantine.put(element.data, f"cannot be examined: {type(error).__name__}")
        return messages

    def _deliver(self, message: DecodedMessage) -> None:
        try:
            self._hand_to_celery(message)
        except Exception as error:  # noqa: BLE001 - as in `_read`, or of a project's signal handlers
            log.warning("a step message cannot be delivered: %s", describe_exception(error).message)
            self._quarantine.put(message.headers, f"cannot be delivered: {type(error).__name__}")

    def _hand_to_celery(self, message: DecodedMessage) -> bool:
        """Hand a message over as Celery's consumer does, and tell whether its task begins now."""
        consumer, slots = self._consumer, self._slots
        if consumer is None or slots is None:
            return False
        begun: list[object] = []
        release = partial(self._release, slots, message)
        slots.take(message)
        try:
            strategy = consumer.strategies[message.headers["task"]]
            strategy(message, None, release, release, (*getattr(consumer, "on_task_message", ()), begun.append))
        except Exception:
            release()
            raise
        return bool(begun)

    def _release(self, slots: Slots, message: DecodedMessage, *_: object) -> None:
        """Celery acknowledges or rejects a message when its task has ended: its slot is free."""
        slots.free(message)
        if self._fetcher is not None:
            self._fetcher.wake()


def _do_nothing() -> None:
    """Celery's loop has turned."""


def connect_broker(app: Celery, settings: Settings) -> RedisDatabase:
    """Make a database over which steps are fetched: nothing else may wait behind a command that blocks."""
    conf: Any = app.conf
    tls: Any = conf.broker_use_ssl
    return connect_to_wait(
        settings.broker,
        timeout_seconds=BLOCK_SECONDS + settings.redis_timeout_seconds,
        name="celery-agents-steps",
        plain_socket=plain_socket,
        tls=tls if isinstance(tls, Mapping) else {},  # pyright: ignore[reportUnknownArgumentType]
    )


def consumer_step(runtime: LazyRuntime) -> type[bootsteps.StartStopStep]:
    """Return a bootstep of Celery's consumer, which starts and stops with each connection of it."""

    class StepConsumerBootstep(bootsteps.StartStopStep):
        requires = ("celery.worker.consumer.tasks:Tasks",)

        def start(self, parent: Any) -> None:
            if isinstance(parent.pool, TaskPool) and parent.event_dispatcher is not None:
                # In Celery the step that adds the 24th event sends all of them and waits for the broker. Celery's own
                # loop sends them as well, in its next turn.
                buffer_all_events(parent.event_dispatcher, sys.maxsize)
            if runtime.steps is not None:
                runtime.steps.connect(parent)

        def stop(self, parent: Any) -> None:
            del parent
            if runtime.steps is not None:
                runtime.steps.disconnect()

        shutdown = stop

    return StepConsumerBootstep
