"""Reading replies: bytes, None and lists become what the store works with.

What somebody else wrote there, or a flipped bit, raises `StateUnreadable`: it concerns one session and no other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, cast

from ..errors import StateUnreadable
from .records import Begun, InboxKind, Journal, Operation

# Made once: `json.dumps` makes one at each call that asks for anything but its defaults.
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def text(value: bytes | None) -> str:
    """Decoded, "" when missing."""
    try:
        return value.decode() if value else ""
    except UnicodeDecodeError:
        raise StateUnreadable("a field", "it is no text") from None


def number(value: bytes | None) -> int:
    """As an integer, 0 when missing."""
    try:
        return int(value) if value else 0
    except ValueError:
        raise StateUnreadable("a field", "it is no number") from None


# The year 9999, the last that a datetime knows.
_LAST_MS: Final = 253_402_300_799_999


def milliseconds(value: bytes | None) -> int:
    """A time in Unix milliseconds, 0 when missing."""
    found = number(value)
    if not 0 <= found <= _LAST_MS:
        raise StateUnreadable("a field", "it is no time")
    return found


def packed(value: Any) -> bytes:
    """Compact JSON."""
    return _encode(value).encode()


def strings(value: bytes | None) -> tuple[str, ...]:
    """A stored list of strings."""
    found: object = read_json(value, "a list of ids") if value else []
    if not isinstance(found, list):
        raise StateUnreadable("a list of ids", "it is no list")
    items = cast("list[object]", found)
    if not all(isinstance(item, str) and is_text(item) for item in items):
        raise StateUnreadable("a list of ids", "an item is no text")
    return tuple(cast("list[str]", items))


def is_text(value: str) -> bool:
    """Whether UTF-8 can hold it; half of a surrogate pair it cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_json(value: bytes, part: str) -> Any:
    """A stored JSON value, of whatever kind."""
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise StateUnreadable(part, f"it is no JSON ({type(error).__name__})") from None


def pairs(reply: list[bytes]) -> dict[str, bytes]:
    """A flat list of fields and values."""
    return {text(reply[i]): reply[i + 1] for i in range(0, len(reply), 2)}


def journal(reply: list[bytes]) -> Journal:
    """A step's journal from its hash."""
    if not reply:
        return Journal()
    tries, answer = 0, None
    begun: dict[int, Begun] = {}
    results: dict[int, bytes] = {}
    failures: list[bytes] = []
    for name, value in pairs(reply).items():
        if name == "llm":
            answer = value
        elif name.startswith("try:"):
            tries += 1
        elif name.startswith("err:"):
            failures.append(value)
        elif name.endswith(":s"):
            begun[_place(name)] = begun_record(value)
        elif name.endswith(":r"):
            results[_place(name)] = value
    return Journal(tries, answer, begun, results, tuple(failures))


def begun_record(value: bytes) -> Begun:
    """`<claim> <redis ms> <timeout ms>`."""
    try:
        claim, at_ms, timeout_ms = value.decode().split(" ")
        return Begun(claim, int(at_ms), int(timeout_ms))
    except ValueError:
        raise StateUnreadable("journal", "a call's beginning is not noted as it should be") from None


def _place(name: str) -> int:
    """Of a call, from the name of its field: `t3:s`."""
    try:
        return int(name[1:-2])
    except ValueError:
        raise StateUnreadable("journal", "a field of a call has no number") from None


def inbox(entries: Iterable[bytes], known: Iterable[str]) -> tuple[Operation, ...]:
    """Entries that were not applied before, first come first."""
    seen = set(known)
    fresh: list[Operation] = []
    for entry in entries:
        operation = _operation(entry)
        if operation.id not in seen:
            seen.add(operation.id)
            fresh.append(operation)
    return tuple(fresh)


def _operation(entry: bytes) -> Operation:
    data = read_json(entry, "inbox")
    try:
        operation = Operation(data["id"], InboxKind(data["kind"]), data["payload"])
    except (KeyError, TypeError, ValueError):
        raise StateUnreadable("inbox", "an entry is no operation") from None
    named = isinstance(cast("object", operation.id), str) and is_text(operation.id)
    if not isinstance(operation.payload, dict) or not named:
        raise StateUnreadable("inbox", "an entry is no operation")
    return operation


def inbox_entry(operation: Operation) -> bytes:
    """How an operation is stored."""
    return packed({"id": operation.id, "kind": operation.kind, "payload": operation.payload})
