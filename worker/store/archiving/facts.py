"""The row of a session: what its document says that can be listed, searched and added up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...archive.rows import ArchivedSession, Entry, ExecutionCost, SessionKey
from ...errors import StateUnreadable
from ...state.conversation.messages import Message
from ..bookkeeping import read_link
from ..context import StoreContext
from ..session_records import Header
from ..sessions.archive_marks import ArchiveMark
from ..sessions.listing import ListVerbs
from ..sessions.part_reads import PartReadVerbs
from ..sessions.reads import ReadVerbs
from ..sessions.spending import SpendingVerbs
from ..sessions.summaries import SummaryVerbs
from .documents import Document
from .overlays import open_overlay

_TEXT_CHARS: Final = 200_000
_MOST_MESSAGES: Final = 2_000


def entry_of(
    context: StoreContext, key: SessionKey, document: Document, stored: bytes, mark: ArchiveMark, expires_ms: int | None
) -> Entry:
    """Make all that is written for a session.

    Args:
        stored: The document as bytes.
        expires_ms: When the row may be removed; None: never.
    Raises:
        StateUnreadable: The session cannot be read.
    """
    overlay, name = open_overlay(context, {key.session_id: document}), key.session_id
    header = ListVerbs(overlay).header(name)
    messages = PartReadVerbs(overlay).messages(name, 0, _MOST_MESSAGES).messages
    result = ReadVerbs(overlay).record(name, header.execution_id) if header.execution_id else None
    summary = SummaryVerbs(overlay).summaries([name])[name]
    link = read_link(document.session.get(b"parent"))
    session = ArchivedSession(
        key=key,
        mark=mark.text,
        agent=header.agent,
        status=str(header.status),
        updated_ms=header.updated_ms,
        reason=str(result.stop_reason or "") if result else "",
        error=result.errors[-1] if result and result.errors else "",
        execution_id=header.execution_id,
        parent_id="" if link is None else link.session_id,
        forked_from=header.forked_from,
        version=header.version,
        first_words=summary.first_message,
        labels=header.labels,
        steps=summary.steps,
        tokens=summary.tokens or 0,
        cost=summary.cost,
        expires_ms=expires_ms,
    )
    return Entry(session=session, document=stored, text=_text_of(messages), costs=_costs(context, header))


def _costs(context: StoreContext, header: Header) -> tuple[ExecutionCost, ...]:
    """Read how much each execution has used of each model: from Redis, where the session's children may be, too."""
    found, unread = SpendingVerbs(context).costs([header])
    if unread:
        raise StateUnreadable("costs", "what its executions have used cannot be read")
    return tuple(found)


def _text_of(messages: Sequence[Message]) -> str:
    """Join what was said in the conversation, the beginning first."""
    said, length = list[str](), 0
    for message in messages:
        if length < _TEXT_CHARS:
            said.append(message.content)
            length += len(message.content)
    return "\n".join(said)
