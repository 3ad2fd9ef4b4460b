"""Leaving a queue out while one of its keys in Redis holds another type.

kombu declares each queue when a worker connects. Redis refuses that where a key holds another type: the worker would
end with a traceback, and so would each worker after it. The queue is left out instead, the others are consumed, and it
is consumed again when somebody has moved the key away.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, Final

from celery import Celery
from kombu import Queue

from ..broker_keys import queue_key_types
from .refusals import FETCH, refusals
from .taken_queues import TakenQueues

log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 2.0


class DamagedQueues:
    """The queues that a worker leaves out.

    Args:
        taken: The queues of ours that the worker consumes.
        parent: Celery's worker.
    """

    def __init__(self, app: Celery, taken: TakenQueues, parent: Any) -> None:
        self._app = app
        self._taken = taken
        self._parent = parent
        self._closed = threading.Event()

    def install(self) -> None:
        """Look at the keys each time before Celery declares its queues: at the start, and when it has reconnected."""
        amqp: Any = self._app.amqp
        stock = amqp.TaskConsumer

        def task_consumer(connection: Any, queues: Any = None, **options: Any) -> Any:
            if queues is None:
                self._leave_out(connection)
            return stock(connection, queues, **options)

        amqp.TaskConsumer = task_consumer

    def close(self) -> None:
        """Wait for no key any more."""
        self._closed.set()

    def _leave_out(self, connection: Any) -> None:
        for queue in self._taken.consumed():
            damage = self._find_damage(connection, queue)
            if damage is None:
                continue
            refusals.record(FETCH, f"queue {queue.name} is left out: {damage}")
            log.error(
                "queue %s is left out, and the others are consumed: %s; somebody else wrote to it. Look who may, and "
                "RENAME the key away: the queue is consumed as soon as it is gone", queue.name, damage,
            )  # fmt: skip
            self._taken.set_aside([queue.name])
            waiting = threading.Thread(target=self._wait, args=(queue,), name="celery-agents-queue", daemon=True)
            waiting.start()

    def _wait(self, queue: Queue) -> None:
        """Consume a queue when its keys are as they should be."""
        while not self._closed.wait(_PAUSE_SECONDS):
            try:
                with self._app.connection_for_read() as connection:
                    damage = self._find_damage(connection, queue)
            except Exception as error:  # noqa: BLE001 - whatever a broker's client raises while it is away
                log.debug("queue %s cannot be looked at: %s", queue.name, error)
                continue
            if damage is None:
                log.info("queue %s is consumed again", queue.name)
                self._taken.consume(self._parent, [queue.name])
                return

    def _find_damage(self, connection: Any, queue: Queue) -> str | None:
        """Say which key of a queue holds another type; None when none does, or this user may not look."""
        for key, expected in queue_key_types(self._app, queue).items():
            actual = _key_type(connection.default_channel, key)
            if actual not in (None, "none", expected):
                return f"key {key!r} is a {actual}, not a {expected}"
        return None


def _key_type(channel: Any, key: str) -> str | None:
    """Ask Redis for the type of a key; None where the user may not ask."""
    try:
        with channel.conn_or_acquire() as client:  # on the channel's own connection a BRPOP may wait
            answer = client.type(key)
    except channel.ResponseError:
        return None
    return answer.decode() if isinstance(answer, bytes) else str(answer)
