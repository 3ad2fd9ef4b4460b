"""Requests as lines and rows. Pure: values in, text out."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, cast

from ...worker.moments import moment
from .views import age, as_json, clean, one_line

if TYPE_CHECKING:
    from ...worker.state.execution.requests import Request
    from ...worker.store.requests.records import AnswerResult, FoundRequest

REQUESTS_HEAD: Final = ("SESSION", "REQUEST", "KIND", "CALL", "TO", "STATUS", "ASKED", "EXPIRES", "TEXT")
_SHORT_ID: Final = 12


def request_row(found: FoundRequest) -> list[str]:
    """A request as a row of the inbox."""
    summary = found.summary
    expires = (
        "" if summary.expires_at_ms is None else f"{_format_time(summary.expires_at_ms)}: {summary.on_expiry.value}"
    )
    return [
        summary.session_id,
        summary.id[:_SHORT_ID],
        summary.kind.value,
        summary.call,
        summary.to or "",
        found.status.value,
        age(moment(summary.asked_at_ms)),
        expires,
        one_line(summary.text, 60),
    ]


def answer_line(result: AnswerResult) -> str:
    """The reply to an answer for people."""
    return {
        "woken": "answered; the session goes on",
        "recorded": "answered; the session takes it up when it goes on",
        "again": "this was answered before",
    }[result.outcome]


def request_lines(request: Request) -> list[str]:
    """A request in full, for the person who answers it."""
    lines = [
        f"{request.kind.value} {request.id[:_SHORT_ID]}  of agent {clean(request.agent)}, session {request.session_id}"
    ]
    lines += [f"  {clean(line)}" for line in request.text.splitlines()]
    lines.append(f"  {clean(request.tool)}")
    lines += [
        f"    {clean(name)} = {as_json(value)}"
        for name, value in cast("Mapping[str, Any]", request.to_dict()["args"]).items()
    ]
    if request.to:
        lines.append(f"  to {clean(request.to)}")
    if request.expires_at_ms is not None:
        lines.append(f"  until {_format_time(request.expires_at_ms)}, then: {request.on_expiry.then.value}")
    return lines


def _format_time(at_ms: int) -> str:
    """A time for people: only the time of day when it is today."""
    at, now = moment(at_ms).astimezone(), datetime.now().astimezone()
    return f"{at:%H:%M}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M}"
