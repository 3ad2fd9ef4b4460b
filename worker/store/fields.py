"""Parsing replies of Redis: bytes, None and lists become texts, numbers and JSON values.

A value that another program wrote, or a flipped bit, raises `StateUnreadable`: it concerns one session and no other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from ..errors import InvalidInput, StateUnreadable
from ..moments import LAST_MS
from ..state.values.ids import read_session_id
from .database import Reply

Parsed = TypeVar("Parsed")

# Made once: `json.dumps` makes one at each call that asks for anything but its defaults.
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def text(value: bytes | None) -> str:
    """Decode a text; "" when it is missing."""
    try:
        return value.decode() if value else ""
    except UnicodeDecodeError:
        raise StateUnreadable("a field", "it is no text") from None


def number(value: bytes | None) -> int:
    """Parse an integer; 0 when it is missing."""
    try:
        return int(value) if value else 0
    except ValueError:
        raise StateUnreadable("a field", "it is no number") from None


def milliseconds(value: bytes | None) -> int:
    """Parse a time in Unix milliseconds; 0 when it is missing."""
    found = number(value)
    if not 0 <= found <= LAST_MS:
        raise StateUnreadable("a field", "it is no time")
    return found


def score_ms(value: bytes) -> int:
    """Parse the score of an index as a time in Unix milliseconds; an infinite one becomes the nearest time."""
    return round(min(max(float(value), 0.0), LAST_MS))


def is_due(first: Sequence[bytes], now_ms: int) -> bool:
    """Whether the first entry of an index by time, as `ZRANGE 0 0 WITHSCORES` gives it, is due."""
    return bool(first) and score_ms(first[1]) <= now_ms


def or_else(parse: Callable[[Reply], Parsed], value: Reply, otherwise: Parsed) -> Parsed:
    """Parse a value; `otherwise` where it is damaged, for code that must continue all the same."""
    try:
        return parse(value)
    except StateUnreadable:
        return otherwise


def is_session_id(value: bytes) -> bool:
    """Whether bytes are the id of a session."""
    try:
        read_session_id(text(value))
    except (InvalidInput, StateUnreadable):
        return False
    return True


def any_text(value: bytes | None) -> str:
    """Decode a text, with a mark in place of what is no UTF-8; "" when it is missing."""
    return (value or b"").decode("utf-8", "replace")


def name(value: bytes) -> str:
    """Decode a name for people to read; bytes that are no UTF-8 are escaped."""
    return value.decode("utf-8", "backslashreplace")


def to_json(value: Any) -> bytes:
    """Encode a value as compact JSON."""
    return _encode(value).encode()


def strings(value: bytes | None) -> tuple[str, ...]:
    """Parse a stored list of strings."""
    found: object = read_json(value, "a list of ids") if value else []
    if not isinstance(found, list):
        raise StateUnreadable("a list of ids", "it is no list")
    items = cast("list[object]", found)
    if not all(isinstance(item, str) and is_text(item) for item in items):
        raise StateUnreadable("a list of ids", "an item is no text")
    return tuple(cast("list[str]", items))


def is_text(value: str) -> bool:
    """Whether UTF-8 can encode a text; it cannot encode half of a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_json(value: bytes, part: str) -> Any:
    """Parse a stored JSON value of any kind."""
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise StateUnreadable(part, f"it is no JSON ({type(error).__name__})") from None


def named_pairs(reply: list[bytes]) -> dict[str, bytes]:
    """Parse a flat list of fields and values; a field whose name is no UTF-8 has an escaped one."""
    return {name(reply[i]): reply[i + 1] for i in range(0, len(reply), 2)}


def info_lines(reply: bytes) -> dict[str, str]:
    """Parse the lines of a reply to INFO by their names; what is no UTF-8 has a mark in its place."""
    lines = (line.partition(":") for line in any_text(reply).splitlines() if ":" in line)
    return {name: value for name, _, value in lines}


def pairs(reply: list[bytes]) -> dict[str, bytes]:
    """Parse a flat list of fields and values, the reply to HGETALL."""
    return {text(reply[i]): reply[i + 1] for i in range(0, len(reply), 2)}
