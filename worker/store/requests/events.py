"""The events of requests: opened, answered, expired, cancelled."""

from __future__ import annotations

from ...state import AnswerRecord, AnswerVerb, Request
from ..event_records import EventType, NewEvent


def opened_event(request: Request) -> NewEvent:
    """A request is journaled: from now on it can be answered."""
    data = request.summarize().to_dict()
    for name in ("session_id", "execution_id", "step"):
        del data[name]
    return NewEvent(type=EventType.REQUEST_OPENED, execution_id=request.execution_id, step=request.step, data=data)


def closed_event(request: Request, record: AnswerRecord) -> NewEvent:
    """A request got its answer: of a person or service, at its expiry, or of a stop."""
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
