"""Says in one sentence which requests a session waits for: of whom, since when, and what happens without an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, assert_never

from ...worker.moments import moment
from ...worker.state.execution.requests import CLOCK, ExpiryAction, RequestKind, RequestSummary

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60))
_AT_EXPIRY: Final = {
    ExpiryAction.DENY: "denied",
    ExpiryAction.APPROVE: "approved",
    ExpiryAction.VALUE: "answered by a fixed value",
    ExpiryAction.FAIL: "failed",
    ExpiryAction.PASS_ON: "passed on",
}


def describe_requests(requests: Sequence[RequestSummary], now_ms: int) -> str:
    """Write what is open: "waits for an approval of refund(cents=400) by managers, asked 12 min ago, denied at 18:00".

    The request that expires first is described, else the oldest; of the others there is the number.
    """
    first = min(requests, key=lambda each: (each.expires_at_ms or 2**62, each.asked_at_ms))
    parts = [f"waits for {_describe(first)}", f"asked {describe_age(now_ms - first.asked_at_ms)} ago"]
    if first.expires_at_ms is not None:
        parts.append(f"{_AT_EXPIRY[first.on_expiry]} at {describe_time(first.expires_at_ms, now_ms)}")
    if len(requests) > 1:
        parts.append(f"and for {len(requests) - 1} more")
    return ", ".join(parts)


def describe_age(passed_ms: int) -> str:
    """Write how long something took, in one unit: 12 s, 5 min, 3 h, 2 d."""
    seconds = max(0, passed_ms) // 1000
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def describe_time(at_ms: int, now_ms: int) -> str:
    """Write a time in UTC; with its date unless it is today."""
    at, now = moment(at_ms), moment(now_ms)
    return f"{at:%H:%M} UTC" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M} UTC"


def _describe(request: RequestSummary) -> str:
    by = request.to or "anybody"
    match request.kind:
        case RequestKind.APPROVAL if request.to == CLOCK and request.on_expiry is ExpiryAction.APPROVE:
            return f"a time: {request.text}"
        case RequestKind.APPROVAL:
            return f"an approval of {request.call} by {by}"
        case RequestKind.QUESTION:
            return f"an answer to {(request.text or request.call)!r} by {by}"
        case RequestKind.EXTERNAL:
            return f"the result of {request.call} from a service"
        case RequestKind.CHILD:
            return f"the end of the child session of {request.call}"
        case _ as never:
            assert_never(never)
