"""The index of open requests, and the events that tell of requests.

The index is the inbox of all sessions, one sorted set for each shard, by the time of asking. An entry is the summary of
its request, so a page of the inbox is one read. The code that closes a request has it from the journal, makes the same
summary and removes the entry by it.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import ValidationError

from ...state.execution.answers import AnswerRecord, AnswerVerb
from ...state.execution.requests import Request, RequestKind, RequestSummary
from ..database import Command
from ..event_records import EventType, NewEvent
from ..keys import ShardKeys


def add_commands(shard: ShardKeys, requests: Iterable[Request]) -> list[Command]:
    """Commands that list open requests; an entry that is there already stays. Requests for children are left out."""
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
    """Parse an entry; None for one that cannot be read, which must not hide the others."""
    try:
        return RequestSummary.from_json(entry)
    except ValidationError:
        return None


def _entry(request: Request) -> bytes:
    return request.summarize().to_json()


def opened_event(request: Request) -> NewEvent:
    """The event of a journaled request: from now on it can be answered."""
    data = request.summarize().to_dict()
    for name in ("session_id", "execution_id", "step"):
        del data[name]
    return NewEvent(type=EventType.REQUEST_OPENED, execution_id=request.execution_id, step=request.step, data=data)


def closed_event(request: Request, record: AnswerRecord) -> NewEvent:
    """The event of a request that got its answer: of a person or service, at its expiry, or of a stop."""
    type_ = EventType.REQUEST_ANSWERED
    if record.verb is AnswerVerb.CANCEL:
        type_ = EventType.REQUEST_CANCELLED
    elif record.by_expiry:
        type_ = EventType.REQUEST_EXPIRED
    data = {
        "id": request.id,
        "kind": request.kind.value,
        "tool": request.tool,
        "verb": record.verb.value,
        "status": record.status.value,
        "by": record.by,
        "after_ms": max(0, record.at_ms - request.asked_at_ms),
    }
    return NewEvent(type=type_, execution_id=request.execution_id, step=request.step, data=data)
