"""Listings of sessions: pages by last update, newest first."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

from ...worker.store.pages import PageOf
from ...worker.store.session_records import Header
from ...worker.store.store import Store
from .inputs import read_cursor

INDEXES: Final = {"failed": "failed", "pending": "active", "in_progress": "active", "waiting": "active"}
"""The index that holds all sessions with a status; the other statuses have none."""
_BATCH: Final = 200


@dataclass(frozen=True, slots=True)
class Page(PageOf[Header]):
    """Sessions, newest first. A loop over it goes on with the pages that follow.

    Attributes:
        items: Those of this page.
    """

    items: tuple[Header, ...] = ()

    @property
    def entries(self) -> tuple[Header, ...]:
        """The sessions of this page."""
        return self.items


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which sessions a listing shows; None does not restrict.

    Attributes:
        oldest_ms: Updated at or after this time.
    """

    status: str | None
    agent: str | None
    oldest_ms: int | None

    def matches(self, header: Header) -> bool:
        """Whether the session has the status and the agent."""
        return self.status in (None, header.status) and self.agent in (None, header.agent)


def read_page(store: Store, wanted: Filter, limit: int, cursor: str | None) -> Page:
    """Read a page of at most `limit` sessions.

    Raises:
        InvalidInput: The cursor is not that of a page.
    """
    index = INDEXES.get(wanted.status or "", "sessions")
    listed = read_cursor(cursor)
    newest_ms = None if listed is None else listed[0]
    found: list[Header] = []
    chosen = iterate_headers(store, index, wanted.oldest_ms, newest_ms, status=wanted.status, agent=wanted.agent)
    for header in chosen:
        if listed is not None and (header.updated_ms, header.session_id) >= listed:
            continue
        if wanted.matches(header):
            if len(found) == limit:
                page = Page(items=tuple(found), cursor=_write_cursor(found), unread=len(store.context.unread))
                return page.followed_by(lambda following: read_page(store, wanted, limit, following))
            found.append(header)
    return Page(items=tuple(found), unread=len(store.context.unread))


def iterate_headers(
    store: Store,
    index: str,
    oldest_ms: int | None,
    newest_ms: int | None = None,
    *,
    status: str | None = None,
    agent: str | None = None,
) -> Generator[Header]:
    """Read an index of sessions in batches, newest first, each session once.

    Args:
        status: Only those with this status; the others cost little. None: all.
        agent: Only those of this agent; the same. None: all.
    """
    wanted = Filter(status=status, agent=agent, oldest_ms=oldest_ms)
    seen: set[str] = set()
    while True:
        page, following = store.sessions.headers(
            index=index, newest_ms=newest_ms, oldest_ms=oldest_ms, limit=_BATCH, status=status, agent=agent
        )
        fresh = [header for header in page if header.session_id not in seen]
        yield from filter(wanted.matches, fresh)
        if following is None:
            return
        seen.update(header.session_id for header in page)
        # Expired sessions give no header. A batch of them alone must not end the listing, nor come again for ever.
        newest_ms = following if fresh or following != newest_ms else following - 1


def _write_cursor(found: list[Header]) -> str:
    """The time and the id of the last session of the page whose time is known: that of an unreadable one may not be."""
    last = next((header for header in reversed(found) if header.updated_ms), found[-1])
    return f"{last.updated_ms}:{last.session_id}"
