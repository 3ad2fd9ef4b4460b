"""Listings of sessions: pages by last update, newest first."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import groupby
from typing import Any, Final

from ...worker.archive.rows import Search
from ...worker.store.archiving.reaching import ArchivedSessions, header_of
from ...worker.store.labels import check_labels
from ...worker.store.pages import PageOf
from ...worker.store.session_records import Header
from ...worker.store.sessions.listing import WAITS_FOR, Wanted
from ...worker.store.store import Store
from .inputs import check_agent_name, check_kind, check_part, read_cursor, read_time_ms

INDEXES: Final = {"failed": "failed", "pending": "active", "in_progress": "active", "waiting": "active"}
"""The index that holds all sessions with a status; the other statuses have none."""
NEVER_ARCHIVED: Final = ("pending", "in_progress", "waiting", "parked", "unreadable")
"""Sessions with these statuses stay in Redis."""
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
        labels: It has all of these.
        text: Its first message contains this, in whatever case.
        error: Its last execution failed with an error that contains this, in whatever case.
        waits_for: It has an open request of this kind.
        oldest_ms: Updated at or after this time.
        newest_ms: Updated at or before this time.
    """

    status: str | None = None
    agent: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    text: str | None = None
    error: str | None = None
    waits_for: str | None = None
    oldest_ms: int | None = None
    newest_ms: int | None = None

    def __post_init__(self) -> None:
        if self.agent is not None:
            check_agent_name(self.agent)

    @property
    def search(self) -> Search | None:
        """The search of the archive; None: no session there can match."""
        if self.waits_for is not None or self.status in NEVER_ARCHIVED:
            return None
        if self.error is not None and self.status not in (None, "failed"):
            return None
        return Search(
            status="failed" if self.error is not None else self.status,
            agent=self.agent,
            labels=self.labels,
            text=self.text or "",
            error=self.error or "",
            since_ms=self.oldest_ms,
            until_ms=self.newest_ms,
            limit=_BATCH,
        )

    @property
    def index(self) -> str:
        """The index with the fewest other sessions."""
        if self.waits_for is not None:
            return WAITS_FOR + self.waits_for
        return INDEXES.get(("failed" if self.error is not None else self.status) or "", "sessions")

    def choose(self, store: Store, headers: Sequence[Header]) -> list[Header]:
        """Choose the headers that match, in their order."""
        chosen = [each for each in headers if self._matches(each)]
        if self.error is not None and chosen:
            failed = [each for each in chosen if each.status == "failed"]
            errors = store.sessions.last_errors(failed)
            chosen = [each for each in failed if _contains(errors.get(each.session_id), self.error)]
        if self.text is not None and chosen:
            summaries = store.sessions.summaries([each.session_id for each in chosen])
            said = {name: each.first_message for name, each in summaries.items()}
            chosen = [each for each in chosen if _contains(said.get(each.session_id), self.text)]
        return chosen

    def _matches(self, header: Header) -> bool:
        return (
            self.status in (None, header.status)
            and self.agent in (None, header.agent)
            and self.labels.items() <= header.labels.items()
        )


def read_filter(
    *, label: Any = None, text: Any = None, error: Any = None, waits_for: Any = None, since: Any = None,
    until: Any = None, **others: Any,
) -> Filter:  # fmt: skip
    """Read the filter of a listing as callers give it; `others` are status and agent."""
    return Filter(
        labels=check_labels(label, "label"),
        text=check_part("text", text),
        error=check_part("error", error),
        waits_for=check_kind(waits_for),
        oldest_ms=read_time_ms("since", since, may_be_far=True),
        newest_ms=read_time_ms("until", until, may_be_far=True),
        **others,
    )


def _contains(text: str | None, part: str) -> bool:
    return text is not None and part.casefold() in text.casefold()


def read_page(store: Store, wanted: Filter, limit: int, cursor: str | None) -> Page:
    """Read a page of at most `limit` sessions.

    Raises:
        InvalidInput: The cursor is not that of a page.
    """
    listed = read_cursor(cursor)
    found: list[Header] = []
    for header in iterate_all(store, wanted, listed[0] if listed is not None else None):
        if listed is not None and (header.updated_ms, header.session_id) >= listed:
            continue
        if len(found) == limit:
            page = Page(items=tuple(found), cursor=_write_cursor(found), unread=len(store.context.unread))
            return page.followed_by(lambda following: read_page(store, wanted, limit, following))
        found.append(header)
    return Page(items=tuple(found), unread=len(store.context.unread))


def iterate_all(store: Store, wanted: Filter, newest_ms: int | None = None) -> Iterator[Header]:
    """Read the sessions that match, in Redis and in the archive, newest first, each session once.

    Args:
        newest_ms: See `iterate_headers`.
    """
    hot = iterate_headers(store, wanted, newest_ms)
    if store.archived is None or (search := wanted.search) is None:
        return hot
    if newest_ms is not None:
        search = replace(search, until_ms=min(newest_ms, newest_ms if search.until_ms is None else search.until_ms))
    archived = _by_id(_iterate_archived(store, store.archived, wanted, search))
    return _each_once(merge(hot, archived, key=lambda header: (header.updated_ms, header.session_id), reverse=True))


def _iterate_archived(store: Store, archived: ArchivedSessions, wanted: Filter, search: Search) -> Generator[Header]:
    """Read headers in the archive, newest first, and of sessions that were restored since Redis was read."""
    newest_ms = search.until_ms
    for rows, restored in archived.pages(search):
        found = [header_of(row) for row in rows]
        again = store.sessions.headers_of([row.name for row in restored]) if restored else []
        # What has changed since comes in its order on the first page, and would come too late on another one.
        found += [each for each in wanted.choose(store, again) if newest_ms is None or each.updated_ms <= newest_ms]
        yield from sorted(found, key=lambda header: header.updated_ms, reverse=True)
        newest_ms = min((row.session.updated_ms for row in (*rows, *restored)), default=newest_ms)


def _by_id(headers: Iterable[Header]) -> Iterator[Header]:
    """Order headers of the same time by their ids."""
    for _, same in groupby(headers, lambda header: header.updated_ms):
        yield from sorted(same, key=lambda header: header.session_id, reverse=True)


def _each_once(headers: Iterable[Header]) -> Iterator[Header]:
    """Leave out sessions that have moved, or were restored, while they were listed."""
    seen: set[str] = set()
    for header in headers:
        if header.session_id not in seen:
            seen.add(header.session_id)
            yield header


def iterate_headers(
    store: Store, wanted: Filter, newest_ms: int | None = None, *, index: str | None = None
) -> Generator[Header]:
    """Read the sessions in Redis that match in batches, newest first, each session once.

    Args:
        newest_ms: Begin at this update time (inclusive). None: at that of the filter.
        index: The index to read. None: that of the filter.
    """
    bounds = [each for each in (newest_ms, wanted.newest_ms) if each is not None]
    newest_ms = min(bounds) if bounds else None
    seen: set[str] = set()
    while True:
        page, following = store.sessions.headers(
            index=index or wanted.index,
            newest_ms=newest_ms,
            oldest_ms=wanted.oldest_ms,
            limit=_BATCH,
            wanted=Wanted(wanted.status, wanted.agent, wanted.labels),
        )
        fresh = [header for header in page if header.session_id not in seen]
        yield from wanted.choose(store, fresh)
        if following is None:
            return
        seen.update(header.session_id for header in page)
        # Expired sessions give no header. A batch of them alone must not end the listing, nor come again for ever.
        newest_ms = following if fresh or following != newest_ms else following - 1


def _write_cursor(found: list[Header]) -> str:
    """The time and the id of the last session of the page; one that has changed meanwhile says when that was."""
    updated_ms, session_id = min((header.updated_ms, header.session_id) for header in found)
    return f"{updated_ms}:{session_id}"
