"""Step messages, written once by kombu and then filled in.

kombu needs as long to build a message as a small step needs to run. So kombu writes one message into a recording
transport, with marks in place of the ids. Each step message is that text with the ids filled in.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from queue import Empty
from typing import Any, Final, cast

from celery import Celery
from kombu import Connection, Queue
from kombu.transport import virtual
from kombu.utils.json import dumps

from ..config.celery import step_queue
from ..config.settings import Settings
from ..worker.store.records import StepRef
from ..worker.unique import unique_hex
from .broker_keys import queue_key
from .names import LANE_HEADER, PUBLISHED_HEADER, STEP

_SESSION: Final = "mark0session"
_EXECUTION: Final = "mark0execution"
_STEP: Final = 987654321
_TASK: Final = "mark0task"
_ROOT: Final = "mark0root"
_PARENT: Final = "mark0parent"
_PUBLISHED: Final = 987654322
_TAG: Final = "mark0tag"
_LANE: Final = "mark0lane"
_BODY: Final = "mark0body"
_MARKS: Final = (_SESSION, _EXECUTION, str(_STEP), _TASK, _ROOT, _PARENT, str(_PUBLISHED), _TAG, _BODY, _LANE)

_Channel: Final[Any] = virtual.Channel
_Transport: Final[Any] = virtual.Transport
_encode: Final[Callable[[Any], str]] = dumps


def message_options(settings: Settings, ref: StepRef, published_ms: int) -> dict[str, Any]:
    """Return the arguments of `send_task` for a step; each delivery has the same task id, and names its predecessor."""
    return {
        "kwargs": {"session_id": ref.session_id, "execution_id": ref.execution_id, "step": ref.step},
        "task_id": ref.task_id,
        "root_id": _root_task(ref),
        "parent_id": _parent_task(ref) if ref.has_parent_task else None,
        "queue": _queue_for(settings, ref.queue),
        "serializer": "json",
        "ignore_result": True,
        "soft_time_limit": None,  # that of the task is for workers
        "headers": {PUBLISHED_HEADER: published_ms, **({LANE_HEADER: ref.lane} if ref.lane else {})},
    }


def _root_task(ref: StepRef) -> str:
    return ref.root_task or f"{ref.execution_id}.1"


def _parent_task(ref: StepRef) -> str:
    return ref.parent_task or f"{ref.execution_id}.{ref.step - 1}"


def _queue_for(settings: Settings, name: str) -> str | Queue:
    """The queue as `send_task` takes it: the common one as the app declares it, any other with its declaration."""
    is_other = name and settings.queue_name(settings.step_queue(name)) is not None
    return step_queue(settings, name) if is_other else settings.queue


def record_message(app: Celery, task: str, options: Mapping[str, Any]) -> tuple[str, str]:
    """Let kombu write the message of a task without a broker.

    Args:
        options: Those of `send_task`.

    Returns:
        The Redis key to which kombu's Redis transport would push the message, and the message.
    Raises:
        ValueError: kombu put the message into no queue, or into several.
    """
    conf: Any = app.conf
    transport_options = dict(conf.broker_transport_options or {})
    connection: Any = cast("Any", Connection)(transport=RecordingTransport, transport_options=transport_options)
    with connection, connection.channel() as channel:
        app.send_task(task, producer=app.amqp.Producer(channel), retry=False, **options)
        recorded = channel.recorded
    if len(recorded) != 1:
        raise ValueError(f"kombu put one message into {len(recorded)} queues")
    queue, message = recorded[0]
    return queue_key(app, queue, _priority_of(message)), _encode(message)


class RecordingChannel(_Channel):
    """A channel of a virtual transport that keeps the messages which kombu publishes."""

    do_restore = False
    supports_fanout = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # pyright: ignore[reportUnknownMemberType]
        self.recorded: list[tuple[str, dict[str, Any]]] = []

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        self.recorded.append((queue, message))

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **_: Any) -> None:
        """Drop the `task-sent` event that an app may publish with a message."""

    def _queue_bind(self, *_: Any) -> None:
        """Keep no binding besides kombu's own table."""

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        raise Empty

    def _size(self, queue: str) -> int:
        return 0

    def _purge(self, queue: str) -> int:
        return 0


class RecordingTransport(_Transport):
    """A transport without a broker. Celery chooses exchanges as it does for Redis."""

    Channel = RecordingChannel
    driver_type = "redis"
    driver_name = "recording"
    implements = _Transport.implements.extend(exchange_type=frozenset(["direct", "topic", "fanout"]))


def _priority_of(message: Mapping[str, Any]) -> int:
    try:
        return max(0, min(int(message["properties"]["priority"]), 9))
    except (TypeError, ValueError, KeyError):
        return 0


class MessageTemplate:
    """A message as kombu wrote it, cut at the marks.

    Attributes:
        queue: The Redis key to which messages are pushed.
    """

    def __init__(
        self, app: Celery, settings: Settings, *, queue: str = "", has_lane: bool = False, has_parent: bool
    ) -> None:
        """
        Args:
            queue: Name of the queue; "" is the common one.
            has_lane: Whether the messages name a lane.
            has_parent: Whether the messages are those of later steps, which name their predecessor.
        Raises:
            ValueError: What the template writes differs from what kombu writes.
        """
        ref = StepRef(_SESSION, _EXECUTION, _STEP, queue=queue, lane=_LANE if has_lane else "")
        options = message_options(settings, ref, _PUBLISHED)
        options |= {"task_id": _TASK, "root_id": _ROOT, "parent_id": _PARENT if has_parent else None}
        self.queue, text = record_message(app, STEP, options)
        outer = json.loads(text)
        self._body = _Pattern(base64.b64decode(outer["body"]).decode())
        outer["body"] = _BODY
        outer["properties"]["delivery_tag"] = _TAG
        self._outer = _Pattern(json.dumps(outer))

    def message(self, ref: StepRef, published_ms: int) -> str:
        """Return a message as it is in the queue."""
        values = _values(ref, published_ms)
        values[_BODY] = base64.b64encode(self._body.fill(values).encode()).decode()
        return self._outer.fill(values)

    def make_delivered(self, ref: StepRef, published_ms: int) -> dict[str, Any]:
        """Return a message that does not travel: an element of the queue that is decoded, and its body too."""
        values = _values(ref, published_ms) | {_BODY: ""}
        delivered: dict[str, Any] = json.loads(self._outer.fill(values))
        delivered["body"] = json.loads(self._body.fill(values))
        return delivered

    def is_like(self, queue: str, message: str, ref: StepRef, published_ms: int) -> bool:
        """Tell whether kombu wrote to the same key, and the same apart from the random delivery tag."""
        return queue == self.queue and _comparable(message) == _comparable(self.message(ref, published_ms))


def _values(ref: StepRef, published_ms: int) -> dict[str, str]:
    return {
        _SESSION: ref.session_id,
        _EXECUTION: ref.execution_id,
        str(_STEP): str(ref.step),
        _TASK: ref.task_id,
        _ROOT: _root_task(ref),
        _PARENT: _parent_task(ref),
        str(_PUBLISHED): str(published_ms),
        _TAG: unique_hex(),
        _LANE: json.dumps(ref.lane)[1:-1],
    }


def _comparable(message: str) -> Any:
    outer = json.loads(message)
    outer["properties"]["delivery_tag"] = ""
    outer["body"] = json.loads(base64.b64decode(outer["body"]))
    return outer


class _Pattern:
    """A text with marks; filling it in is one join."""

    def __init__(self, text: str) -> None:
        self._parts = _split_at_marks(text)
        self._marks = frozenset(self._parts) & frozenset(_MARKS)

    def fill(self, values: Mapping[str, str]) -> str:
        return "".join([values[part] if part in self._marks else part for part in self._parts])


def _split_at_marks(text: str) -> list[str]:
    parts = [text]
    for mark in _MARKS:
        parts = [piece for part in parts for piece in ([part] if part in _MARKS else _split(part, mark))]
    return parts


def _split(text: str, mark: str) -> Sequence[str]:
    pieces = [piece for half in text.split(mark) for piece in (mark, half)][1:]
    return [piece for piece in pieces if piece]
