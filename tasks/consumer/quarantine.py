"""Malformed broker elements become messages of a task that puts them away.

A stock worker ends on `not json`, `[]`, invalid UTF-8 or a deep nesting bomb, because kombu decodes what it popped
without a net. In our workers the decoder has one: what is no message of a known task becomes a call of
`celery_agents.quarantine`, which keeps it (cut and escaped) with the reason, where `celery-agents doctor` shows it.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, cast

import kombu.transport.redis as kombu_redis

from ..names import QUARANTINE

log = logging.getLogger(__name__)

_PAYLOAD_CHARS: Final = 2000
_NO_ACK: Final = "celery-agents-no-ack"
_LARGEST_BYTES: Final = 4_000_000
_transport: Final[Any] = kombu_redis  # its module-level decoder is what has to be replaced
# What a message of an unforeseen form makes Celery raise; a lost connection raises none of these.
_OF_THE_MESSAGE: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
_stock_deliver: Final[Callable[[Any, Any, Any], None]] = _transport.Transport._deliver
_stock_loads: Final[Callable[[Any], Any]] = _transport.loads


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 2**31


def _is_moment(value: Any) -> bool:
    try:
        return bool(datetime.fromisoformat(value))
    except (TypeError, ValueError):
        return False


def _is_pair_of_limits(value: Any) -> bool:
    limits = cast("list[Any]", value) if isinstance(value, list) else []
    return len(limits) == 2 and all(limit is None or type(limit) in (int, float) for limit in limits)


# What Celery and kombu read of a message before its task runs, where None or nothing stands for the default. Whatever
# is of another form would raise in the consumer, and end the worker or leave a slot taken for ever.
_HEADERS: Final[Mapping[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("root_id", "parent_id", "group", "shadow", "origin", "lang", "argsrepr", "kwargsrepr"), _is_text),
    **dict.fromkeys(("retries", "group_index", "replaced_task_nesting"), _is_count),
    **dict.fromkeys(("eta", "expires"), _is_moment),
    "timelimit": _is_pair_of_limits,
    "stamped_headers": lambda value: isinstance(value, list),
    "stamps": lambda value: isinstance(value, dict),
}
_PROPERTIES: Final[Mapping[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("correlation_id", "reply_to"), _is_text),
    **dict.fromkeys(("priority", "delivery_mode"), _is_count),
}


class _Refused(Exception):
    """Why an element is no message."""


class _Triple(Exception):
    """A list of three: kombu's own note of an unacknowledged message, unless it was found in a queue."""

    def __init__(self, parts: list[Any]) -> None:
        super().__init__()
        self.parts = parts


class _Record(dict[str, Any]):
    """Unpacked, as kombu does with its notes, it is the three parts; read as a message, it is one to be put away.

    The decoder is not told where an element comes from, and only kombu's notes are lists.
    """

    def __init__(self, parts: list[Any], message: dict[str, Any]) -> None:
        super().__init__(message)
        self._parts = parts

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parts)


def guard_message_decoding(
    queues: Collection[str], known_tasks: Collection[str], unacknowledged: str | None = None
) -> None:
    """From now on this process decodes broker elements with a net.

    Args:
        unacknowledged: The queue that is consumed without acknowledgement. kombu's Redis transport keeps no record of
            what came from there and yet takes each message off it again: four commands a step for nothing. Its own
            mark for such consumers, which the AMQP transports set, spares them.
        queues: Our queues. What is addressed to others, such as events and remote control, is only made sure to be
            a message.
        known_tasks: Names of tasks this worker has; a live view.
    """
    address = min(queues)

    def loads(text: Any) -> Any:
        try:
            message: Any = _decoded(text)
            if unacknowledged is not None and isinstance(message, dict):
                mark_unacknowledged(cast("dict[str, Any]", message), unacknowledged)
            return cast("Any", message)
        except _Refused as refused:
            return _quarantine_message(address, str(text), str(refused))
        except _Triple as triple:
            return _Record(triple.parts, _quarantine_message(address, str(text), "a JSON list, not an object"))
        except Exception as error:  # noqa: BLE001 - whatever else somebody thinks of must not end the worker
            return _quarantine_message(address, str(text), f"cannot be examined: {type(error).__name__}")

    def deliver(transport: Any, message: Any, queue: Any) -> None:
        if queue in queues:
            try:
                _check_task(message, known_tasks)
            except _Refused as refused:
                message = _quarantine_message(address, json.dumps(message), str(refused))
            except Exception as error:  # noqa: BLE001 - as above
                message = _quarantine_message(address, repr(message), f"cannot be examined: {type(error).__name__}")
        try:
            _stock_deliver(transport, message, queue)
        except _OF_THE_MESSAGE as error:
            if queue not in queues:
                raise
            log.warning("an element of queue %s was put away: %s", queue, type(error).__name__)
            reason = f"cannot be delivered: {type(error).__name__}"
            _stock_deliver(transport, _quarantine_message(address, repr(message), reason), queue)

    # The decoder is not told which queue an element was in, and the address it bears may be forged.
    _transport.Transport._deliver = deliver
    _transport.loads = loads
    _transport.bytes_to_str = _text
    if unacknowledged is not None:
        _transport.Channel.no_ack_consumers = frozenset({_NO_ACK})


def mark_unacknowledged(message: dict[str, Any], queue: str) -> None:
    """Note in a decoded message that it came from the queue that is consumed without acknowledgement, if it did."""
    delivery_info = message["properties"]["delivery_info"]
    if delivery_info.get("routing_key") == queue:
        delivery_info["consumer_tag"] = _NO_ACK


def _text(value: Any) -> Any:
    """Invalid UTF-8 becomes visible instead of an exception."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def _decoded(text: Any) -> dict[str, Any]:
    """An element as far as kombu itself looks into it, whoever it is for."""
    if len(text) > _LARGEST_BYTES:
        raise _Refused(f"larger than {_LARGEST_BYTES} bytes")
    try:
        # kombu looks at every object for one of its marked types, which takes longer than all the rest of the decoding.
        element: Any = _stock_loads(text) if "__type__" in text else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _Refused(f"not JSON: {type(error).__name__}") from None
    if isinstance(element, list) and len(cast("list[Any]", element)) == 3:
        raise _Triple(cast("list[Any]", element))
    _check_shape(element)
    message = cast("dict[str, Any]", element)
    _check_encoding(message)
    return message


def _check_task(message: dict[str, Any], known_tasks: Collection[str]) -> None:
    """What lies in one of our queues is a call of a task we know, in JSON."""
    if not isinstance(message["headers"].get("id"), str):
        raise _Refused("no task id")
    for part, kinds in (("headers", _HEADERS), ("properties", _PROPERTIES)):
        for name, fits in kinds.items():
            value = message[part].get(name)
            if value is not None and not fits(value):
                raise _Refused(f"{name}={str(value)[:100]!r} in the {part}")
    if message.get("content-type") != "application/json":
        raise _Refused(f"content type {str(message.get('content-type'))[:100]!r}, only JSON is read")
    if str(message.get("content-encoding")).lower() not in ("utf-8", "utf8"):
        raise _Refused(f"content encoding {str(message.get('content-encoding'))[:100]!r}, only UTF-8 is read")
    if message["headers"].get("task") not in known_tasks:
        raise _Refused(f"unknown task {str(message['headers'].get('task'))[:100]!r}")
    _check_body(message)


def _check_shape(element: Any) -> None:
    if not isinstance(element, dict):
        raise _Refused(f"a JSON {type(element).__name__}, not an object")
    message = cast("dict[str, Any]", element)
    for name, kind in (("headers", dict), ("properties", dict), ("body", str)):
        if not isinstance(message.get(name), kind):
            raise _Refused(f"no {name}")
    properties: dict[str, Any] = message["properties"]
    if not isinstance(properties.get("delivery_info"), dict) or not isinstance(properties.get("delivery_tag"), str):
        raise _Refused("no delivery information")


def _check_encoding(message: dict[str, Any]) -> None:
    """kombu decodes the body of every message, whoever it is for."""
    encoding = message["properties"].get("body_encoding")
    if encoding not in (None, "base64"):
        raise _Refused(f"body encoding {str(encoding)[:100]!r}")
    try:
        if encoding == "base64":
            base64.b64decode(message["body"].encode())
    except (ValueError, binascii.Error) as error:
        raise _Refused(f"a body that cannot be read: {type(error).__name__}") from None


def _check_body(message: dict[str, Any]) -> None:
    try:
        raw = message["body"]
        if message["properties"].get("body_encoding") == "base64":
            raw = base64.b64decode(raw, validate=True).decode()
        args, kwargs, _ = json.loads(raw)
    except (ValueError, TypeError, RecursionError, binascii.Error) as error:
        raise _Refused(f"a body that cannot be read: {type(error).__name__}") from None
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise _Refused("a body without arguments")


def _quarantine_message(queue: str, text: str, reason: str) -> dict[str, Any]:
    """A well-formed call of the quarantine task, as kombu would have decoded it."""
    payload = ascii(text[:_PAYLOAD_CHARS])
    body = json.dumps([[], {"payload": payload, "reason": reason}, {}])
    task_id = uuid.uuid4().hex
    return {
        "body": base64.b64encode(body.encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            "lang": "py", "task": QUARANTINE, "id": task_id, "root_id": task_id, "parent_id": None, "group": None,
            "argsrepr": "()", "kwargsrepr": repr({"reason": reason}), "retries": 0, "timelimit": [None, None],
            "eta": None, "expires": None, "ignore_result": True, "origin": "celery-agents", "shadow": None,
        },
        "properties": {
            "correlation_id": task_id, "reply_to": "", "delivery_mode": 2, "priority": 0, "body_encoding": "base64",
            "delivery_info": {"exchange": queue, "routing_key": queue}, "delivery_tag": uuid.uuid4().hex,
        },
    }  # fmt: skip
