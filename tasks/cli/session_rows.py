"""Sessions as rows of a listing. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...worker.moments import moment
from .views import age, one_line

if TYPE_CHECKING:
    from ..observability.listed_sessions import ListedSession

HEAD: Final = ("SESSION", "AGENT", "STATUS", "STEPS", "COST", "AGE", "FIRST MESSAGE", "REASON")
_FIRST_CHARS: Final = 40
_REASON_CHARS: Final = 100


def row(listed: ListedSession) -> tuple[str, ...]:
    """A session as a line of a listing."""
    header, summary = listed.header, listed.summary
    status = f"{header.status} ({header.problem})" if header.problem else str(header.status)
    status += "" if header.session_status == "active" else f", {header.session_status}"
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
