"""How the message of a step goes out: inside the store's transaction, or by itself.

kombu builds the message, always. Building one costs as much as a whole small step, so for the transaction kombu builds
it once with marks in the place of the ids, and each message is that text with the ids filled in. A self-test compares
the two; where it fails, or where broker and store are not the same Redis, messages are published the ordinary way.
"""

from __future__ import annotations

import base64
import json
import logging
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final, cast
from urllib.parse import urlsplit

from celery import Celery
from kombu.exceptions import OperationalError

from ..config.celery import is_redis
from ..config.settings import Settings
from ..worker.errors import StoreUnavailable
from ..worker.store import StepRef, Store
from ..worker.store.database import Command
from ..worker.unique import unique_hex
from .names import PUBLISHED_HEADER, STEP

log = logging.getLogger(__name__)

_SESSION: Final = "mark0session"
_EXECUTION: Final = "mark0execution"
_STEP: Final = 987654321
_TASK: Final = "mark0task"
_ROOT: Final = "mark0root"
_PARENT: Final = "mark0parent"
_PUBLISHED: Final = 987654322
_TAG: Final = "mark0tag"
_BODY: Final = "mark0body"


class SeparatePublisher:
    """Publishes step messages on their own."""

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


def message_options(settings: Settings, ref: StepRef, published_ms: int) -> dict[str, Any]:
    """Arguments of `send_task`: the same task id for every delivery of a step, linked to its predecessor."""
    parent = StepRef(ref.session_id, ref.execution_id, ref.step - 1).task_id if ref.step > 1 else None
    return {
        "kwargs": {"session_id": ref.session_id, "execution_id": ref.execution_id, "step": ref.step},
        "task_id": ref.task_id,
        "root_id": StepRef(ref.session_id, ref.execution_id, 1).task_id,
        "parent_id": parent,
        "queue": settings.queue,
        "serializer": "json",
        "ignore_result": True,
        "headers": {PUBLISHED_HEADER: published_ms},
    }


class TransactionPublisher:
    """Publishes inside the store's transaction, with what kombu would have written."""

    def __init__(self, app: Celery, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._lock = threading.Lock()
        self._templates: dict[bool, _Template] | None = None
        self._broken = not shares_a_database(settings)

    @property
    def works(self) -> bool:
        """Whether messages go out with the transaction; tried on first use."""
        return bool(self._ready())

    @property
    def queue_key(self) -> str:
        """Where messages go in Redis: the queue, with the prefix and the priority that an existing app may have."""
        templates = self._ready()
        return templates[False].queue if templates else self._settings.queue

    def commands(self, ref: StepRef, now_ms: int) -> Sequence[Command]:
        """One LPUSH; nothing when messages have to be published separately."""
        templates = self._ready()
        if not templates:
            return ()
        template = templates[ref.step > 1]
        return (("LPUSH", template.queue, template.message(ref, now_ms)),)

    def waiting(self) -> Sequence[Command]:
        """One LLEN; nothing when messages have to be published separately."""
        templates = self._ready()
        return (("LLEN", templates[False].queue),) if templates else ()

    def delivered(self, ref: StepRef, now_ms: int) -> dict[str, Any] | None:
        """The message as kombu has it when it was read from the queue; None when it cannot be told."""
        templates = self._ready()
        return templates[ref.step > 1].delivered(ref, now_ms) if templates else None

    def _ready(self) -> dict[bool, _Template]:
        if self._broken:
            return {}
        if self._templates is None:
            with self._lock:
                if self._templates is None and not self._broken:
                    self._templates = self._build()
        return self._templates or {}

    def _build(self) -> dict[bool, _Template] | None:
        try:
            templates = {later: _Template(*_capture(self._app, self._settings, later)) for later in (False, True)}
            for step in (1, 7):
                self._test(templates[step > 1], StepRef(uuid.uuid4().hex, uuid.uuid4().hex, step))
            return templates
        except OperationalError as error:
            raise StoreUnavailable(f"the broker cannot be reached: {error}") from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._broken = True
            log.warning("kombu writes messages in a way this version does not know (%s); publishing separately", error)
            return None

    def _test(self, template: _Template, ref: StepRef) -> None:
        """What the template writes must be what kombu writes, but for the random delivery tag."""
        queue, real = _captured(self._app, message_options(self._settings, ref, 1234567890123))
        mine = template.message(ref, 1234567890123)
        if queue != template.queue or _comparable(real) != _comparable(mine):
            raise ValueError("the templated message differs from kombu's")


class _Template:
    """A message as kombu wrote it, cut at the marks."""

    def __init__(self, queue: str, text: str) -> None:
        self.queue = queue
        outer = json.loads(text)
        body = base64.b64decode(outer["body"]).decode()
        outer["body"] = _BODY
        outer["properties"]["delivery_tag"] = _TAG
        self._body = _Pattern(body)
        self._outer = _Pattern(json.dumps(outer))
        outer["properties"]["body_encoding"] = None
        self._delivered = _maker(outer)

    def message(self, ref: StepRef, published_ms: int) -> str:
        values = self._values(ref, published_ms)
        values[_BODY] = base64.b64encode(self._body.filled(values).encode()).decode()
        return self._outer.filled(values)

    def delivered(self, ref: StepRef, published_ms: int) -> dict[str, Any]:
        """What was never written needs no encoding, neither of its body nor as JSON."""
        values = self._values(ref, published_ms)
        values[_BODY] = self._body.filled(values)
        return self._delivered(values)

    def _values(self, ref: StepRef, published_ms: int) -> dict[str, str]:
        parent = StepRef(ref.session_id, ref.execution_id, ref.step - 1).task_id
        return {
            _SESSION: ref.session_id,
            _EXECUTION: ref.execution_id,
            str(_STEP): str(ref.step),
            _TASK: ref.task_id,
            _ROOT: f"{ref.execution_id}.1",
            _PARENT: parent,
            str(_PUBLISHED): str(published_ms),
            _TAG: unique_hex(),
        }


class _Pattern:
    """A text with marks; filling it in is one join."""

    def __init__(self, text: str) -> None:
        self._parts = _split(
            text, [_SESSION, _EXECUTION, str(_STEP), _TASK, _ROOT, _PARENT, str(_PUBLISHED), _TAG, _BODY]
        )
        self._marks = frozenset(
            part for part in self._parts if part.startswith("mark0") or part in (str(_STEP), str(_PUBLISHED))
        )

    @property
    def has_marks(self) -> bool:
        return bool(self._marks)

    def filled(self, values: dict[str, str]) -> str:
        return "".join([values[part] if part in self._marks else part for part in self._parts])


def _maker(template: Any) -> Callable[[dict[str, str]], Any]:
    """Makes copies of parsed JSON, with the marks in it filled in."""
    if isinstance(template, dict):
        fields = cast("dict[str, Any]", template)
        makers = [(name, _maker(value)) for name, value in fields.items() if _is_made(value)]

        def copy(values: dict[str, str]) -> dict[str, Any]:
            made = fields.copy()
            for name, make in makers:
                made[name] = make(values)
            return made

        return copy
    if isinstance(template, list):
        items = [_maker(item) for item in cast("list[Any]", template)]
        return lambda values: [make(values) for make in items]
    if not _is_made(template):
        return lambda values: template
    if isinstance(template, int):
        return lambda values: int(values[str(template)])
    return _Pattern(template).filled


def _is_made(template: Any) -> bool:
    """Whether each message has its own: what holds a mark, and what its receiver may change."""
    if isinstance(template, (dict, list)):
        return True
    return template in (_STEP, _PUBLISHED) or (isinstance(template, str) and _Pattern(template).has_marks)


def _split(text: str, marks: Sequence[str]) -> list[str]:
    parts = [text]
    for mark in marks:
        pieces: list[str] = []
        for part in parts:
            if part in marks:
                pieces.append(part)
                continue
            halves = part.split(mark)
            for i, half in enumerate(halves):
                if i:
                    pieces.append(mark)
                if half:
                    pieces.append(half)
        parts = pieces
    return parts


def _capture(app: Celery, settings: Settings, later: bool) -> tuple[str, str]:
    options = message_options(settings, StepRef(_SESSION, _EXECUTION, _STEP), _PUBLISHED)
    options |= {"task_id": _TASK, "root_id": _ROOT, "parent_id": _PARENT if later else None}
    return _captured(app, options)


class _Commands:
    """Takes what kombu would have sent; the same calls as `kombu.transport.redis.PublishBatch`."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, tuple[Any, ...]]] = []

    def add(self, name: str, *args: Any) -> None:
        self.taken.append((name, args))


def _captured(app: Celery, options: dict[str, Any]) -> tuple[str, str]:
    commands = _Commands()
    with app.producer_or_acquire() as producer:
        channel: Any = producer.channel
        original = channel.basic_publish

        def basic_publish(message: Any, **more: Any) -> Any:
            return original(message, _publish_batch=commands, **more)

        channel.basic_publish = basic_publish
        try:
            # One event a message would have to be published too; the worker's own events tell the same.
            app.send_task(STEP, producer=producer, retry=False, **options)
        finally:
            del channel.basic_publish
        prefix = channel.global_keyprefix
    pushes = [args for name, args in commands.taken if name == "lpush"]
    if len(pushes) != 1:
        raise ValueError(f"kombu wrote {len(pushes)} messages for one")
    return f"{prefix}{pushes[0][0]}", pushes[0][1]


def _comparable(message: str) -> Any:
    outer = json.loads(message)
    outer["properties"]["delivery_tag"] = ""
    outer["body"] = json.loads(base64.b64decode(outer["body"]))
    return outer


def shares_a_database(settings: Settings) -> bool:
    """Whether broker and store are the same database of the same Redis."""
    if settings.broker_url is None:
        return True
    return is_redis(settings.broker_url) and _place(settings.broker_url) == _place(settings.redis_url)


def _place(url: str) -> tuple[str, str, int, str]:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return ("unix", parts.path, 0, parts.query)
    return (parts.scheme, parts.hostname or "localhost", parts.port or 6379, parts.path.strip("/") or "0")


def oldest_queued_ms(store: Store, queue: str) -> int:
    """When the message at the queue's end was published (store's ms); -1 for an empty queue, 0 when it does not say."""
    entry = store.housekeeping.oldest_message(queue)
    if entry is None:
        return -1
    try:
        return int(json.loads(entry)["headers"][PUBLISHED_HEADER])
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0
