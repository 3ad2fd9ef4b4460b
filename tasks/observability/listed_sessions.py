"""Sessions of a listing: their headers, and what else one wants to see at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...worker.errors import CeleryAgentsError
from ..client.json_values import header_value
from .waiting_reasons import ending_reason, waiting_reason

if TYPE_CHECKING:
    from ...worker.store.session_records import Header, SessionSummary
    from ...worker.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSession:
    """A session of a listing.

    Attributes:
        summary: None where it cannot be read.
        reason: Why it has not ended yet, or why it failed or was stopped; "" when it was completed.
    """

    header: Header
    summary: SessionSummary | None
    reason: str


def listed_sessions(store: Store, headers: Sequence[Header]) -> list[ListedSession]:
    """Read what a listing shows of sessions besides their headers."""
    summaries = store.sessions.summaries([header.session_id for header in headers])
    workers = store.registry.workers()
    found: list[ListedSession] = []
    for header in headers:
        try:
            reason = waiting_reason(store, header, workers) or ending_reason(store, header)
        except CeleryAgentsError as error:  # of one session, and the others are to be seen
            reason = str(error)
        found.append(ListedSession(header=header, summary=summaries.get(header.session_id), reason=reason))
    return found


def listed_value(listed: ListedSession) -> dict[str, Any]:
    """A session of a listing as JSON."""
    summary = listed.summary
    return {
        **header_value(listed.header),
        "first_message": summary.first_message if summary is not None else "",
        "steps": summary.steps if summary is not None else None,
        "tokens": summary.tokens if summary is not None else None,
        "cost": summary.cost if summary is not None else None,
        "reason": listed.reason,
    }
