"""Journals and inboxes as they are stored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from ..errors import StateUnreadable
from . import fields
from .records import BeginRecord, InboxKind, Journal, Operation


def journal(reply: list[bytes]) -> Journal:
    """A step's journal from its hash."""
    if not reply:
        return Journal()
    tries, answer = 0, None
    begun: dict[int, BeginRecord] = {}
    results: dict[int, bytes] = {}
    failures: list[bytes] = []
    auxiliary: dict[str, bytes] = {}
    for name, value in fields.pairs(reply).items():
        if name == "llm":
            answer = value
        elif name.startswith("try:"):
            tries += 1
        elif name.startswith("err:"):
            failures.append(value)
        elif name.startswith("x:"):
            auxiliary[name[2:]] = value
        elif name.endswith(":s"):
            begun[_place(name)] = begun_record(value)
        elif name.endswith(":r"):
            results[_place(name)] = value
    return Journal(tries, answer, begun, results, tuple(failures), auxiliary)


def begun_record(value: bytes) -> BeginRecord:
    """`<claim> <redis ms> <timeout ms>`."""
    try:
        claim, at_ms, timeout_ms = value.decode().split(" ")
        return BeginRecord(claim, int(at_ms), int(timeout_ms))
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
    data = fields.read_json(entry, "inbox")
    try:
        operation = Operation(data["id"], InboxKind(data["kind"]), data["payload"])
    except (KeyError, TypeError, ValueError):
        raise StateUnreadable("inbox", "an entry is no operation") from None
    named = isinstance(cast("object", operation.id), str) and fields.is_text(operation.id)
    if not isinstance(operation.payload, dict) or not named:
        raise StateUnreadable("inbox", "an entry is no operation")
    return operation


def inbox_entry(operation: Operation) -> bytes:
    """How an operation is stored."""
    return fields.packed({"id": operation.id, "kind": operation.kind, "payload": operation.payload})
