"""Parsing stored journals and inboxes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from ..errors import StateUnreadable
from . import fields
from .records import BeginRecord, InboxKind, Journal, Operation


def journal(reply: list[bytes]) -> Journal:
    """Parse a step's journal, the reply to HGETALL."""
    if not reply:
        return Journal()
    answer = None
    begun: dict[int, BeginRecord] = {}
    results: dict[int, bytes] = {}
    auxiliary: dict[str, bytes] = {}
    for name, value in fields.pairs(reply).items():
        if name == "llm":
            answer = value
        elif name.startswith("x:"):
            auxiliary[name[2:]] = value
        elif name.startswith(("try:", "err:")):
            continue  # for those who account for model calls
        elif name.endswith(":s"):
            begun[_call_index(name)] = begun_record(value)
        elif name.endswith(":r"):
            results[_call_index(name)] = value
    return Journal(answer=answer, begun=begun, results=results, auxiliary=auxiliary)


def begun_record(value: bytes) -> BeginRecord:
    """Parse a begin record: `<claim> <redis ms> <timeout ms>`."""
    try:
        claim, at_ms, timeout_ms = value.decode().split(" ")
        return BeginRecord(claim=claim, at_ms=int(at_ms), timeout_ms=int(timeout_ms))
    except ValueError:
        raise StateUnreadable("journal", "a begin record has not three words") from None


def _call_index(name: str) -> int:
    """Parse the index of a call from the name of its field, such as `t3:s`."""
    try:
        return int(name[1:-2])
    except ValueError:
        raise StateUnreadable("journal", "a field of a call has no number") from None


def inbox(entries: Iterable[bytes], known: Iterable[str]) -> tuple[Operation, ...]:
    """Parse inbox entries and leave out those that were applied before."""
    seen = set(known)
    fresh: list[Operation] = []
    for entry in entries:
        operation = _parse_operation(entry)
        if operation.id not in seen:
            seen.add(operation.id)
            fresh.append(operation)
    return tuple(fresh)


def _parse_operation(entry: bytes) -> Operation:
    data = fields.read_json(entry, "inbox")
    try:
        operation = Operation(id=data["id"], kind=InboxKind(data["kind"]), payload=data["payload"])
    except (KeyError, TypeError, ValueError):
        raise StateUnreadable("inbox", "an entry is no operation") from None
    named = isinstance(cast("object", operation.id), str) and fields.is_text(operation.id)
    if not isinstance(operation.payload, dict) or not named:
        raise StateUnreadable("inbox", "an entry is no operation")
    return operation


def inbox_entry(operation: Operation) -> bytes:
    """Encode an operation as it is stored."""
    return fields.to_json({"id": operation.id, "kind": operation.kind, "payload": operation.payload})
