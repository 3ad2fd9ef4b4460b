"""Publishing the message of a step: inside the store's transaction, or on its own.

A message that is pushed by the transaction which commits a step costs no round trip, and is there exactly when the step
is. That needs broker and store in one Redis database. Elsewhere kombu publishes each message, but for the steps of
lanes, which wait in the broker's Redis.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError

from ..config.brokers import shares_a_database, takes_steps_itself
from ..config.settings import Settings
from ..worker.errors import StoreUnavailable
from ..worker.store.context import Publisher
from ..worker.store.database import Command, Database, Reply
from ..worker.store.lanes import lane_key, wait_commands
from ..worker.store.records import StepRef
from ..worker.store.redis.database import RedisDatabase
from ..worker.store.store import Store
from .broker_connections import connect_broker
from .message_template import MessageTemplate, message_options, record_message
from .names import PUBLISHED_HEADER, STEP, TURN

log = logging.getLogger(__name__)

_Kind = tuple[str, bool, bool]
"""A kind of messages: their queue, whether they name a task before them, and whether they name a lane."""

_SAMPLE_MS = 1234567890123
_SAMPLE_LANE = '1/a "quoted" \\ value, \u00e9'
_COMMON: _Kind = ("", False, False)
_UNKNOWN_FORMS = (AttributeError, KeyError, NotImplementedError, TypeError, ValueError)


class StepPublisher(Publisher):
    """Publishes step messages: inside the store's transactions where that is possible, else one by one with kombu.

    Every message of a step goes out by `commands` or by `publish`, to the queue that its reference names.
    """

    def __init__(self, app: Celery, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._lock = threading.Lock()
        self._templates: dict[_Kind, MessageTemplate] = {}
        self._is_separate = not shares_a_database(settings)
        self._is_unknown = False
        self._has_queues = takes_steps_itself(settings)
        self._is_apart = self._has_queues and self._is_separate
        self._broker: RedisDatabase | None = None

    def publish(self, ref: StepRef, published_ms: int) -> None:
        """Send a step's message: one of a lane to the broker's Redis, any other with kombu.

        Raises:
            StoreUnavailable: The broker did not take it; the sweep will publish the step again.
        """
        if ref.lane and self._is_apart and (template := self._known_template(_kind_of(ref))) is not None:
            self._open_broker().transaction("publish", _in_lane(template, ref, published_ms))
            return
        try:
            self._app.send_task(STEP, **message_options(self._settings, ref, published_ms))
        except (OperationalError, *self._refusals()) as error:
            raise StoreUnavailable(f"the broker takes no message: {error}") from error

    def _refusals(self) -> tuple[type[Exception], ...]:
        """Errors of the broker's own client that kombu lets through, such as a login or a write that is refused."""
        connection: Any = self._app.connection_for_write()  # it is not opened
        return (*connection.connection_errors, *connection.channel_errors)

    @property
    def has_lanes(self) -> bool:
        """Whether steps can wait in lanes: the broker is a Redis from which workers take them themselves."""
        return self._has_queues and self._known_template(_COMMON) is not None

    def ask_queues(self, database: Database, point: str, commands: Sequence[Command]) -> list[Reply]:
        """Run commands in one round trip to the broker's Redis, where that is not the store's."""
        if not self._is_apart:
            return database.pipeline(point, commands)
        try:
            return self._open_broker().pipeline(point, commands)
        except StoreUnavailable as error:
            raise StoreUnavailable(f"the broker does not answer: {error}") from error

    def close(self) -> None:
        """Close the connections to the broker's Redis. Publishing again opens new ones."""
        with self._lock:
            if self._broker is not None:
                self._broker.close()

    @property
    def works(self) -> bool:
        """Whether messages go out with the transaction; the templates are made on first use."""
        return self._template(_COMMON) is not None

    def queue_key(self, queue: str = "") -> str:
        """The Redis key of a queue, with the prefix and the priority that an existing app may have."""
        template = self._known_template((queue, False, False))
        return template.queue if template is not None else self._settings.step_queue(queue)

    def commands(self, ref: StepRef, now_ms: int) -> Sequence[Command]:
        """Return one LPUSH, behind those of a lane; nothing when messages have to be published separately."""
        template = self._template(_kind_of(ref))
        if template is None:
            return ()
        if not ref.lane:
            return (("LPUSH", template.queue, template.message(ref, now_ms)),)
        return _in_lane(template, ref, now_ms)

    def next_commands(self, queue: str) -> Sequence[Command]:
        """Return one LINDEX; nothing when messages have to be published separately."""
        template = self._template((queue, False, False))
        return () if template is None else (("LINDEX", template.queue, -1),)

    def commands_in_front(self, ref: StepRef, now_ms: int, following: bytes | None) -> Sequence[Command]:
        """Return one RPUSH. The message is as old as the one behind it: none in the queue is older than the first."""
        template = self._template(_kind_of(ref))
        published_ms = now_ms if following is None else min(now_ms, _published_ms(following))
        return () if template is None else (("RPUSH", template.queue, template.message(ref, published_ms)),)

    def lane_commands(self, ref: StepRef) -> Sequence[Command]:
        """Return one LINDEX; nothing where steps do not wait in lanes."""
        template = self._known_template(_kind_of(ref)) if self._has_queues else None
        return () if template is None else (("LINDEX", lane_key(template.queue, ref.lane), -1),)

    def count_commands(self, queue: str) -> Sequence[Command]:
        """Return one LLEN; nothing when messages have to be published separately."""
        template = self._template((queue, False, False))
        return () if template is None else (("LLEN", template.queue),)

    def make_delivered(self, ref: StepRef, now_ms: int) -> dict[str, Any] | None:
        """Return the message with its body decoded, for this worker itself; None without a template."""
        template = self._template(_kind_of(ref))
        return None if template is None else template.make_delivered(ref, now_ms)

    def message(self, ref: StepRef, published_ms: int) -> bytes | None:
        """Return the message for the step itself, as it is in the queue; None without a template."""
        template = self._known_template(_kind_of(ref))
        return None if template is None else template.message(ref, published_ms).encode()

    def _open_broker(self) -> RedisDatabase:
        with self._lock:
            if self._broker is None:
                self._broker = connect_broker(self._app, self._settings)
            return self._broker

    def _template(self, kind: _Kind) -> MessageTemplate | None:
        """The template for messages of a kind; None when messages have to be published separately."""
        return None if self._is_separate else self._known_template(kind)

    def _known_template(self, kind: _Kind) -> MessageTemplate | None:
        """The template for messages of a kind; None when kombu writes them in a way this version does not know."""
        found = self._templates.get(kind)
        return found if found is not None or self._is_unknown else self._add(kind)

    def _add(self, kind: _Kind) -> MessageTemplate | None:
        if self._settings.queue_name(self._settings.step_queue(kind[0])) is None:
            return self._known_template(("", *kind[1:]))  # another program wrote the name into Redis
        with self._lock:
            try:
                if kind not in self._templates:
                    self._templates[kind] = self._build_template(*kind)
            except _UNKNOWN_FORMS as error:
                self._publish_separately(error)
        return self._templates.get(kind)

    def _build_template(self, queue: str, is_later: bool, has_lane: bool) -> MessageTemplate:
        template = MessageTemplate(self._app, self._settings, queue=queue, has_lane=has_lane, has_parent=is_later)
        lane = _SAMPLE_LANE if has_lane else ""
        ref = StepRef(uuid.uuid4().hex, uuid.uuid4().hex, 7 if is_later else 1, queue=queue, lane=lane)
        key, message = record_message(self._app, STEP, message_options(self._settings, ref, _SAMPLE_MS))
        if not template.is_like(key, message, ref, _SAMPLE_MS):
            raise ValueError("the template writes another message than kombu")
        return template

    def _publish_separately(self, why: Exception) -> None:
        self._is_separate = self._is_unknown = True
        log.warning("kombu writes messages in a way this version does not know (%s); publishing separately", why)


def _in_lane(template: MessageTemplate, ref: StepRef, now_ms: int) -> list[Command]:
    """Commands that let a step wait in its lane, and put a turn into the queue."""
    turn = template.message(replace(ref, lane=TURN), now_ms)
    return [*wait_commands(template.queue, ref, now_ms), ("LPUSH", template.queue, turn)]


def _kind_of(ref: StepRef) -> _Kind:
    return ref.queue, ref.has_parent_task, bool(ref.lane)


def write_message(app: Celery, settings: Settings, task: str, options: Mapping[str, Any]) -> tuple[str, str] | None:
    """Write the message of a task as kombu does, for the store to push.

    Returns:
        The list of its queue, and the message. None where kombu has to send it: the broker is not the store's database,
        or kombu writes messages in a way that this version does not know.
    """
    if not shares_a_database(settings):
        return None
    try:
        return record_message(app, task, options)
    except _UNKNOWN_FORMS as error:
        log.warning("kombu writes messages in a way this version does not know (%s); it sends %s itself", error, task)
        return None


def oldest_queued_ms(store: Store, queue: str) -> int:
    """Return when the message at the end of the queue was published (store ms); -1: empty queue, 0: unknown."""
    entry = store.housekeeping.oldest_message(queue)
    return -1 if entry is None else _published_ms(entry)


def _published_ms(entry: bytes) -> int:
    try:
        return int(json.loads(entry)["headers"][PUBLISHED_HEADER])
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0
