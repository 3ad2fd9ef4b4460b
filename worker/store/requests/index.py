"""The index of open requests: the inbox of everybody, one sorted set for each shard, by the time of asking.

An entry is the summary of its request, so a page of the inbox is one read. The code that closes a request has it from
the journal, makes the same summary and removes the entry by it.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import ValidationError

from ...state import Request, RequestKind, RequestSummary
from ..database import Command
from ..keys import ShardKeys


def add_commands(shard: ShardKeys, requests: Iterable[Request]) -> list[Command]:
    """Commands that list open requests; an entry that is there already stays. A child's end is asked of nobody."""
    return [
        ("ZADD", shard.requests, request.asked_at_ms, _entry(request))
        for request in requests
        if request.kind is not RequestKind.CHILD
    ]


def remove_commands(shard: ShardKeys, requests: Iterable[Request]) -> list[Command]:
    """Commands that take requests out of the index; none for none."""
    entries = [_entry(request) for request in requests if request.kind is not RequestKind.CHILD]
    return [("ZREM", shard.requests, *entries)] if entries else []


def read_entry(entry: bytes) -> RequestSummary | None:
    """Parse an entry; None for one that nobody can read, which must not hide the others."""
    try:
        return RequestSummary.from_json(entry)
    except ValidationError:
        return None


def _entry(request: Request) -> bytes:
    return request.summarize().to_json()
