"""Sessions as rows of a listing, and as JSON without their content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from ...worker.errors import CeleryAgentsError
from .views import age, one_line

if TYPE_CHECKING:
    from ...worker.store import Header, SessionSummary, Store

HEAD: Final = ("SESSION", "AGENT", "STATUS", "STEPS", "COST", "AGE", "FIRST MESSAGE", "WAITS FOR")
_FIRST_CHARS: Final = 40
_REASON_CHARS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSession:
    """A session of a listing.

    Attributes:
        summary: None where it cannot be read.
        reason: Why it has not ended yet; "" when it has.
    """

    header: Header
    summary: SessionSummary | None
    reason: str


def listed_sessions(store: Store, headers: Sequence[Header]) -> list[ListedSession]:
    """Read what a listing shows of sessions besides their headers."""
    from ..observability.waiting_reasons import waiting_reason

    summaries = store.sessions.summaries([header.session_id for header in headers])
    workers = store.registry.workers()
    found: list[ListedSession] = []
    for header in headers:
        try:
            reason = waiting_reason(store, header, workers)
        except CeleryAgentsError as error:  # of one session, and the others are to be seen
            reason = str(error)
        found.append(ListedSession(header=header, summary=summaries.get(header.session_id), reason=reason))
    return found


def row(listed: ListedSession) -> tuple[str, ...]:
    """A session as a line of a listing."""
    header, summary = listed.header, listed.summary
    status = f"{header.status} ({header.problem})" if header.problem else str(header.status)
    cost = f"${summary.cost:.4f}" if summary is not None and summary.cost else ""
    return (
        header.session_id,
        header.agent,
        status,
        str(summary.steps) if summary is not None else "",
        cost,
        age(moment(header.created_ms)),
        one_line(summary.first_message, _FIRST_CHARS) if summary is not None else "",
        one_line(listed.reason, _REASON_CHARS),
    )


def listed_value(listed: ListedSession) -> dict[str, Any]:
    """A session of a listing as JSON."""
    summary = listed.summary
    return {
        **header_value(listed.header),
        "first_message": summary.first_message if summary is not None else "",
        "steps": summary.steps if summary is not None else None,
        "cost": summary.cost if summary is not None else None,
        "reason": listed.reason,
    }


def header_value(header: Header) -> dict[str, Any]:
    """A session without its content, as JSON."""
    return {
        "session_id": header.session_id,
        "agent": header.agent,
        "status": header.status,
        "execution_id": header.execution_id,
        "step": header.step,
        "version": header.version,
        "created_at": moment(header.created_ms),
        "updated_at": moment(header.updated_ms),
        "problem": header.problem,
        "unoffered_since": moment(header.unoffered_since_ms) if header.unoffered_since_ms else None,
    }


def moment(milliseconds: int) -> datetime:
    """Unix time in milliseconds as a datetime."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
