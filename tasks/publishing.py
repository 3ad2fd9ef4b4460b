"""Publishing the message of a step: inside the store's transaction, or on its own.

A message that is pushed by the transaction which commits a step costs no round trip, and is there exactly when the step
is. That needs broker and store in one Redis database. Elsewhere kombu publishes each message.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from celery import Celery
from kombu.exceptions import OperationalError

from ..config.celery import is_redis
from ..config.settings import Settings
from ..worker.errors import StoreUnavailable
from ..worker.store import StepRef, Store
from ..worker.store.database import Command
from .message_template import MessageTemplate, message_options, record_message
from .names import PUBLISHED_HEADER, STEP

log = logging.getLogger(__name__)

WriteMessage = Callable[[dict[str, Any]], tuple[str, str]]
"""Writes the message of a `send_task` with these arguments: its Redis key and its text. Raises ValueError."""

_SAMPLE_MS = 1234567890123


class SeparatePublisher:
    """Publishes step messages one by one with kombu."""

    def __init__(self, app: Celery, settings: Settings) -> None:
        self._app = app
        self._settings = settings

    def publish(self, ref: StepRef, published_ms: int = 0) -> None:
        """Send a step's message.

        Raises:
            StoreUnavailable: The broker did not take it; the sweep will publish the step again.
        """
        try:
            self._app.send_task(STEP, **message_options(self._settings, ref, published_ms))
        except OperationalError as error:
            raise StoreUnavailable(f"the broker takes no message: {error}") from error


class TransactionPublisher:
    """Gives the store the commands that publish step messages inside its transactions."""

    def __init__(self, app: Celery, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._lock = threading.Lock()
        self._templates: dict[bool, MessageTemplate] | None = None  # False: a first step; True: a later one
        self._is_separate = not shares_a_database(settings)

    @property
    def works(self) -> bool:
        """Whether messages go out with the transaction; the templates are made on first use."""
        return bool(self._ready())

    @property
    def queue_key(self) -> str:
        """The Redis key of the queue, with the prefix and the priority that an existing app may have."""
        templates = self._ready()
        return templates[False].queue if templates else self._settings.queue

    def commands(self, ref: StepRef, now_ms: int) -> Sequence[Command]:
        """Return one LPUSH; nothing when messages have to be published separately."""
        templates = self._ready()
        if not templates:
            return ()
        template = templates[ref.step > 1]
        return (("LPUSH", template.queue, template.message(ref, now_ms)),)

    def waiting(self) -> Sequence[Command]:
        """Return one LLEN; nothing when messages have to be published separately."""
        templates = self._ready()
        return (("LLEN", templates[False].queue),) if templates else ()

    def delivered(self, ref: StepRef, now_ms: int) -> dict[str, Any] | None:
        """Return the message as kombu has it when it has read it from the queue; None without a template."""
        templates = self._ready()
        return templates[ref.step > 1].delivered(ref, now_ms) if templates else None

    def compare(self, write_message: WriteMessage) -> None:
        """Publish separately from now on if the templates write other messages than this function."""
        templates = self._ready()
        try:
            self._check(templates, write_message)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._publish_separately(error)

    def _ready(self) -> dict[bool, MessageTemplate]:
        if self._is_separate:
            return {}
        if self._templates is None:
            with self._lock:
                if self._templates is None and not self._is_separate:
                    self._templates = self._build()
        return self._templates or {}

    def _build(self) -> dict[bool, MessageTemplate] | None:
        try:
            templates = {later: MessageTemplate(self._app, self._settings, has_parent=later) for later in (False, True)}
            self._check(templates, lambda options: record_message(self._app, options))
            return templates
        except (AttributeError, KeyError, NotImplementedError, TypeError, ValueError) as error:
            self._publish_separately(error)
            return None

    def _check(self, templates: dict[bool, MessageTemplate], write_message: WriteMessage) -> None:
        for later, template in templates.items():
            ref = StepRef(uuid.uuid4().hex, uuid.uuid4().hex, 7 if later else 1)
            queue, message = write_message(message_options(self._settings, ref, _SAMPLE_MS))
            if not template.is_like(queue, message, ref, _SAMPLE_MS):
                raise ValueError("the template writes another message than kombu")

    def _publish_separately(self, why: Exception) -> None:
        self._is_separate = True
        log.warning("kombu writes messages in a way this version does not know (%s); publishing separately", why)


def shares_a_database(settings: Settings) -> bool:
    """Tell whether broker and store are the same database of the same Redis."""
    if settings.broker_url is None:
        return True
    return is_redis(settings.broker_url) and _database_of(settings.broker_url) == _database_of(settings.redis_url)


def _database_of(url: str) -> tuple[str, str, int, str]:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return ("unix", parts.path, 0, parts.query)
    return (parts.scheme, parts.hostname or "localhost", parts.port or 6379, parts.path.strip("/") or "0")


def oldest_queued_ms(store: Store, queue: str) -> int:
    """Return when the message at the end of the queue was published (store ms); -1: empty queue, 0: unknown."""
    entry = store.housekeeping.oldest_message(queue)
    if entry is None:
        return -1
    try:
        return int(json.loads(entry)["headers"][PUBLISHED_HEADER])
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0
