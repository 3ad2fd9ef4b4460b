"""Bytes that are written into a Redis key, whatever the server needs to keep them."""

from __future__ import annotations

from typing import Any

SCORE_BYTES = 8


def payload_bytes(database: Any, key: str | bytes) -> int:
    """Bytes of the fields, items or entries of a hash, a list or a stream, without those of its name."""
    kind = database.type(key).decode()
    if kind == "hash":
        return sum(len(name) + len(value) for name, value in database.hgetall(key).items())
    if kind == "list":
        return sum(len(item) for item in database.lrange(key, 0, -1))
    entries = database.xrange(key)
    return sum(len(name) + len(value) for _, fields in entries for name, value in fields.items())
