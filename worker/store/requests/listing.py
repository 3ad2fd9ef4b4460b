"""Listing requests: the inbox of everybody from the index, and the requests of one session from its journal."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

from ...errors import InvalidInput
from ...state.execution.requests import RequestStatus, RequestSummary
from .. import fields
from ..children.trees import Trees
from ..context import StoreContext, StorePart
from ..keys import ShardKeys
from .index import read_entry
from .reading import StoredRequests
from .records import FoundRequest, OpenCount, RequestFilter, RequestPage

_MOST: Final = 1000
# A filtered page reads up to this number of entries; an unfiltered one reads what it shows.
_CHUNK: Final = 500
_CURSOR: Final = re.compile(r"(\d{1,15})-([0-9a-f]{1,64})")

Position = tuple[int, str]


class RequestListVerbs(StorePart):
    """Finding, listing and counting requests."""

    def find(self, session_id: str, request_id: str) -> FoundRequest:
        """Find a request by its id, or by the model's id of its call (then its newest round).

        Raises:
            SessionNotFound: There is no such session, or it has expired.
            RequestNotFound: The session never made this request, or it is too long ago.
        """
        return StoredRequests.read(self._context.session(session_id)).find(request_id)

    def page(self, wanted: RequestFilter, *, limit: int = 50, cursor: str | None = None) -> RequestPage:
        """List requests, oldest first. The inbox of everybody is one read of one index, however many wait.

        Raises:
            InvalidInput: The cursor is none of ours, the limit is not 1 to 1000, or a status other than open is asked
                for without a session.
            SessionNotFound: `session_id` names no session.
        """
        if not 1 <= limit <= _MOST:
            raise InvalidInput("limit", limit, f"give 1 to {_MOST}.")
        after = _parse_cursor(cursor)
        if wanted.session_id is None and wanted.status is not RequestStatus.OPEN:
            status = wanted.status.value if wanted.status else None
            raise InvalidInput("status", status, "without a session_id only open requests can be listed.")
        source = (
            _everywhere(self._context, wanted, limit, after)
            if wanted.session_id is None
            else _of_session(self._context, wanted)
        )
        chosen = (found for found in source if _matches(wanted, found) and _position(found.summary) > after)
        found = list(islice(chosen, limit + 1))
        more = len(found) > limit
        return RequestPage(requests=tuple(found[:limit]), cursor=_cursor_of(found[limit - 1].summary) if more else None)

    def count_open(self) -> OpenCount:
        """Count the open requests of all sessions; one read of the index."""
        total, oldest = 0, None
        for shard in self._context.shards:
            first = ("ZRANGEBYSCORE", shard.requests, "-inf", "+inf", "WITHSCORES", "LIMIT", 0, 1)
            count, found = self._context.database.pipeline("requests.count", [("ZCARD", shard.requests), first])
            total += count
            if found:
                asked = fields.score_ms(found[1])
                oldest = asked if oldest is None else min(oldest, asked)
        return OpenCount(total, oldest)


def _everywhere(context: StoreContext, wanted: RequestFilter, limit: int, after: Position) -> Iterator[FoundRequest]:
    is_filtered = wanted.to is not None or wanted.kind is not None
    chunk = _CHUNK if is_filtered else limit + 1 + bool(after[0])
    shards = (_entries(context, shard, after[0], chunk) for shard in context.shards)
    for summary in heapq.merge(*shards, key=_position):
        yield FoundRequest(summary=summary, status=RequestStatus.OPEN)


def _entries(context: StoreContext, shard: ShardKeys, from_ms: int, chunk: int) -> Iterator[RequestSummary]:
    """The entries of a shard's index from a time on, read chunk by chunk as they are asked for."""
    start = 0
    while True:
        (entries,) = context.database.pipeline(
            "requests.page", [("ZRANGEBYSCORE", shard.requests, from_ms, "+inf", "LIMIT", start, chunk)]
        )
        yield from (summary for summary in map(read_entry, entries) if summary is not None)
        if len(entries) < chunk:
            return
        start += chunk


def _of_session(context: StoreContext, wanted: RequestFilter) -> Iterator[FoundRequest]:
    """All requests of a session, oldest first, and the open ones of the sessions below it."""
    assert wanted.session_id is not None
    stored = StoredRequests.read(context.session(wanted.session_id))
    found = list(stored.of_step() if wanted.status is RequestStatus.OPEN else stored.all())
    if wanted.tree:
        below = {header.session_id for header in Trees(context).below(wanted.session_id)}
        shard = context.keys(wanted.session_id).shard
        summaries = _entries(context, shard, 0, _CHUNK) if below else ()
        found += [
            FoundRequest(summary=each, status=RequestStatus.OPEN) for each in summaries if each.session_id in below
        ]
    return iter(sorted(found, key=lambda each: _position(each.summary)))


def _matches(wanted: RequestFilter, found: FoundRequest) -> bool:
    summary = found.summary
    return (
        (wanted.to is None or summary.to == wanted.to)
        and (wanted.kind is None or summary.kind is wanted.kind)
        and (wanted.status is None or found.status is wanted.status)
    )


def _position(summary: RequestSummary) -> Position:
    return summary.asked_at_ms, summary.id


def _cursor_of(summary: RequestSummary) -> str:
    return f"{summary.asked_at_ms}-{summary.id}"


def _parse_cursor(cursor: str | None) -> Position:
    if cursor is None:
        return 0, ""
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise InvalidInput("cursor", cursor, "give back the cursor of the page before.")
    return int(match[1]), match[2]
