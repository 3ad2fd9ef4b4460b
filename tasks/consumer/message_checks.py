"""Checks of the form and size of broker elements: what passes cannot make kombu or Celery raise in the consumer.

The size is checked before anything is parsed: a text of `{}` takes twenty times its bytes as Python objects.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, cast

from kombu.utils import json as kombu_json

LARGEST_BYTES: Final = 4_000_000
"""Most bytes of an element."""

MOST_VALUES: Final = 10_000
"""Most JSON values of an element, and of the body that is a text in it, together with the names of an object's."""

LARGEST_LATER_BYTES: Final = 64_000
"""Most bytes of the body of a control message with an `eta`: a worker keeps it in its memory until then."""

_SHOWN_CHARS: Final = 100
# A string of JSON, or the rest of the text where it has no end: no place is looked at twice.
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
TYPED: Final = "__type__"
"""The key of JSON objects of which kombu makes dates and the like."""


class InvalidMessage(Exception):
    """An element is no message, or one that is not taken; the text says why."""


def parse_element(value: bytes) -> Any:
    """Parse an element of the broker as kombu will.

    Raises:
        InvalidMessage: It is too large, or no JSON in UTF-8.
    """
    try:
        if len(value) > LARGEST_BYTES:
            raise InvalidMessage(f"larger than {LARGEST_BYTES} bytes")
        text = value.decode()
        check_size(text)
        # kombu looks at every object for one of its marked types, which takes longer than all the rest of the decoding.
        return kombu_json.loads(text) if TYPED in text else json.loads(text)
    except InvalidMessage:
        raise
    except Exception as error:  # noqa: BLE001 - the decoders of types raise whatever they like
        raise InvalidMessage(f"not JSON: {type(error).__name__}") from None


def describe_fault(error: Exception) -> str:
    """Say in a reason why an element is not taken."""
    return str(error) if isinstance(error, InvalidMessage) else f"cannot be examined: {type(error).__name__}"


def check_size(text: str) -> None:
    """Check how much memory a JSON text takes when it is parsed. Every text of the broker passes it first.

    Raises:
        InvalidMessage: It has more values than an element may have.
    """
    # The second count leaves out what is inside texts; few elements need it.
    if _count_values(text) > MOST_VALUES and _count_values(_STRING.sub("", text)) > MOST_VALUES:
        raise InvalidMessage(f"more than {MOST_VALUES} JSON values")


def _count_values(text: str) -> int:
    return sum(map(text.count, "[{,:")) if len(text) > MOST_VALUES else 0


def check_message(element: Any) -> dict[str, Any]:
    """Return a decoded element if it has all that kombu reads of a message, whichever app it is for.

    Raises:
        InvalidMessage: A part is missing or of another form.
    """
    if not isinstance(element, dict):
        raise InvalidMessage(f"a JSON {type(element).__name__}, not an object")
    message = cast("dict[str, Any]", element)
    for name, kind in (("headers", dict), ("properties", dict), ("body", str)):
        if not isinstance(message.get(name), kind):
            raise InvalidMessage(f"no {name}")
    properties: dict[str, Any] = message["properties"]
    if not isinstance(properties.get("delivery_info"), dict) or not isinstance(properties.get("delivery_tag"), str):
        raise InvalidMessage("no delivery information")
    _check_encoding(message)
    return message


def check_unacked(entry: Any) -> None:
    """Check a decoded entry of the hash in which kombu keeps messages that were not acknowledged.

    Raises:
        InvalidMessage: It is not a list of a message, an exchange and a routing key.
    """
    parts = cast("list[Any]", entry) if isinstance(entry, list) else []
    if len(parts) != 3:
        raise InvalidMessage("an unacknowledged entry is not a list of three")
    check_message(parts[0])
    for name, value in zip(("exchange", "routing key"), parts[1:], strict=True):
        if not isinstance(value, str):
            raise InvalidMessage(f"{name} {shown(value)} of an unacknowledged entry is no text")


def check_form(message: Mapping[str, Any]) -> None:
    """Check that headers and properties of a task have the types that Celery expects, and its body is JSON.

    Raises:
        InvalidMessage: One would make Celery raise.
    """
    if not isinstance(message["headers"].get("id"), str):
        raise InvalidMessage("no task id")
    for part, kinds in (("headers", _HEADERS), ("properties", _PROPERTIES)):
        for name, fits in kinds.items():
            value = message[part].get(name)
            if value is not None and not fits(value):
                raise InvalidMessage(f"{name}={shown(value)} in the {part}")
    check_json(message)


def check_json(message: Mapping[str, Any]) -> None:
    """Check that the body of a message is said to be JSON in UTF-8, and not compressed.

    Raises:
        InvalidMessage: It is anything else.
    """
    if message.get("content-type") != "application/json":
        raise InvalidMessage(f"content type {shown(message.get('content-type'))}, only JSON is read")
    if str(message.get("content-encoding")).lower() not in ("utf-8", "utf8"):
        raise InvalidMessage(f"content encoding {shown(message.get('content-encoding'))}, only UTF-8 is read")
    if message["headers"].get("compression") is not None:
        raise InvalidMessage(f"compression={shown(message['headers']['compression'])}; send messages uncompressed")


def decode_body(message: Mapping[str, Any]) -> Any:
    """Decode the body of a message as kombu will.

    Raises:
        InvalidMessage: kombu would fail.
    """
    try:
        raw = read_body_text(message)
        check_size(raw)
        if TYPED in raw:  # kombu fails at some of them
            kombu_json.loads(raw)
        return json.loads(raw)
    except InvalidMessage:
        raise
    except Exception as error:  # noqa: BLE001 - the decoders of types raise whatever they like
        raise InvalidMessage(f"a body that cannot be read: {type(error).__name__}") from None


def read_body_text(message: Mapping[str, Any]) -> str:
    """Return the body of a message as JSON."""
    body: str = message["body"]
    if message["properties"].get("body_encoding") == "base64":
        return base64.b64decode(body, validate=True).decode()
    return body


def shown(value: Any) -> str:
    """Show the beginning of a value in a reason."""
    return repr(str(value)[:_SHOWN_CHARS])


def _check_encoding(message: Mapping[str, Any]) -> None:
    encoding = message["properties"].get("body_encoding")
    if encoding not in (None, "base64"):
        raise InvalidMessage(f"body encoding {shown(encoding)}")
    try:
        if encoding == "base64":
            base64.b64decode(message["body"].encode())
    except (ValueError, binascii.Error) as error:
        raise InvalidMessage(f"a body that cannot be read: {type(error).__name__}") from None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_texts(value: Any) -> bool:
    """Tell whether a value is a list of texts."""
    return isinstance(value, list) and all(isinstance(each, str) for each in cast("list[Any]", value))


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


# What Celery and kombu read of a message before its task runs, where None or nothing means the default. A value of
# another form would raise in the consumer, and end the worker or leave a slot taken for ever.
_HEADERS: Final[Mapping[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("root_id", "parent_id", "group", "shadow", "origin", "lang", "argsrepr", "kwargsrepr"), _is_text),
    **dict.fromkeys(("retries", "group_index", "replaced_task_nesting"), _is_count),
    **dict.fromkeys(("eta", "expires"), _is_moment),
    "timelimit": _is_pair_of_limits,
    "ignore_result": lambda value: isinstance(value, bool),
    "stamped_headers": is_texts,  # Celery looks each up among the revoked stamps
    "headers": lambda value: isinstance(value, dict),
    "stamps": lambda value: isinstance(value, dict),
}
_PROPERTIES: Final[Mapping[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("correlation_id", "reply_to"), _is_text),
    **dict.fromkeys(("priority", "delivery_mode"), _is_count),
}
