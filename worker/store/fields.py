"""Reading replies: bytes, None and lists become what the store works with."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from .records import Begun, InboxKind, Journal, Operation

# Made once: `json.dumps` makes one at each call that asks for anything but its defaults.
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def text(value: bytes | None) -> str:
    """Decoded, "" when missing."""
    return value.decode() if value else ""


def number(value: bytes | None) -> int:
    """As an integer, 0 when missing."""
    return int(value) if value else 0


def packed(value: Any) -> bytes:
    """Compact JSON."""
    return _encode(value).encode()


def strings(value: bytes | None) -> tuple[str, ...]:
    """A stored list of strings."""
    return tuple(json.loads(value)) if value else ()


def pairs(reply: list[bytes]) -> dict[str, bytes]:
    """A flat list of fields and values."""
    return {reply[i].decode(): reply[i + 1] for i in range(0, len(reply), 2)}


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
            begun[int(name[1:-2])] = begun_record(value)
        elif name.endswith(":r"):
            results[int(name[1:-2])] = value
    return Journal(tries, answer, begun, results, tuple(failures))


def begun_record(value: bytes) -> Begun:
    """`<claim> <redis ms> <timeout ms>`."""
    claim, at_ms, timeout_ms = value.decode().split(" ")
    return Begun(claim, int(at_ms), int(timeout_ms))


def inbox(entries: Iterable[bytes], known: Iterable[str]) -> tuple[Operation, ...]:
    """Entries that were not applied before, first come first."""
    seen = set(known)
    fresh: list[Operation] = []
    for entry in entries:
        data = json.loads(entry)
        if data["id"] not in seen:
            seen.add(data["id"])
            fresh.append(Operation(data["id"], InboxKind(data["kind"]), data["payload"]))
    return tuple(fresh)


def inbox_entry(operation: Operation) -> bytes:
    """How an operation is stored."""
    return packed({"id": operation.id, "kind": operation.kind, "payload": operation.payload})
