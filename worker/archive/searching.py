"""Reading rows and their documents, and searching: newest first, a page at a time, by indexes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, func, select, tuple_

from ..errors import InvalidInput, SessionNotFound
from . import documents
from .dialects import Dialect
from .rows import (
    ArchivedSession,
    ArchiveFacts,
    Cursor,
    FoundSession,
    Page,
    RowState,
    Search,
    SessionKey,
    StoredRow,
)
from .storing import IS_OF, ArchivePart, clean, key_values, read_row
from .tables import documents as documents_table
from .tables import session_labels, sessions
from .words import words

_MOST: Final = 1_000
_MOST_NAMED: Final = 100_000
_newer = sessions.alias("newer")
_IS_NEWEST: Final = (
    ~select(_newer.c.id)
    .where(_newer.c.session_id == sessions.c.session_id, _newer.c.created_ms > sessions.c.created_ms)
    .where(_newer.c.state != RowState.TOMBSTONE)
    .exists()
)
_COLUMNS: Final = select(sessions, _IS_NEWEST.label("is_newest"))
_IS_SESSION: Final = sessions.c.state != RowState.TOMBSTONE
_ROW: Final = select(sessions.c.revision, sessions.c.state, sessions.c.mark).where(IS_OF)
_DOCUMENT: Final = _ROW.add_columns(documents_table.c.plain_size, documents_table.c.body).join(
    documents_table, documents_table.c.id == sessions.c.id
)


class ReadVerbs(ArchivePart):
    """Reading what is stored. Only a mark in Redis says whether a row is to be shown; see `StoredRow`."""

    def row(self, key: SessionKey) -> StoredRow | None:
        """Read revision, state and mark of a row, also of a tombstone; None where there is none."""
        with self._database.reading() as connection:
            found = connection.execute(_ROW, key_values(key)).one_or_none()
        return None if found is None else read_row(found)

    def sessions_of(self, session_id: str, *, limit: int = 10) -> list[FoundSession]:
        """Read the sessions that have had an id, the newest first."""
        wanted = _COLUMNS.where(sessions.c.session_id == session_id, _IS_SESSION)
        wanted = wanted.order_by(sessions.c.created_ms.desc()).limit(limit)
        with self._database.reading() as connection:
            return [_parse(row) for row in connection.execute(wanted)]

    def of_ids(self, session_ids: Sequence[str]) -> list[FoundSession]:
        """Read the sessions that have these ids, each the newest one with its id, in no order."""
        wanted, parts = _COLUMNS.where(_IS_SESSION, _IS_NEWEST), range(0, len(session_ids), _MOST)
        named = [sessions.c.session_id.in_(list(session_ids[first : first + _MOST])) for first in parts]
        with self._database.reading() as connection:
            return [_parse(row) for each in named for row in connection.execute(wanted.where(each))]

    def named(self, prefix: str, *, limit: int = _MOST_NAMED) -> list[FoundSession]:
        """Read the sessions whose ids begin with a text, in the order of their ids; each the newest one with its id."""
        wanted = _COLUMNS.where(_IS_SESSION, _IS_NEWEST).order_by(sessions.c.session_id).limit(limit)
        if prefix:
            beyond = prefix[:-1] + chr(ord(prefix[-1]) + 1)
            wanted = wanted.where(sessions.c.session_id >= prefix, sessions.c.session_id < beyond)
        with self._database.reading() as connection:
            return [_parse(row) for row in connection.execute(wanted)]

    def document(self, key: SessionKey) -> tuple[StoredRow, bytes]:
        """Read the document of a session.

        Raises:
            SessionNotFound: There is none, or it was deleted.
            StateUnreadable: It is damaged.
        """
        with self._database.reading() as connection:
            found = connection.execute(_DOCUMENT, key_values(key)).one_or_none()
        if found is None:
            raise SessionNotFound(key.session_id)
        return read_row(found), documents.unpack(key.name, found.body, found.plain_size)

    def pending(self, *, limit: int = 100, after: int = 0) -> list[FoundSession]:
        """Read pending rows: their writer has not ended its work, or never will, or a client has restored them.

        Args:
            after: Begin behind this place.
        """
        wanted = _COLUMNS.where(sessions.c.state == RowState.PENDING.value, sessions.c.id > after)
        wanted = wanted.order_by(sessions.c.id).limit(limit)
        with self._database.reading() as connection:
            return [_parse(row) for row in connection.execute(wanted)]

    def newest_place(self) -> int:
        """Read the place of the row that was added last; 0 where there is none."""
        with self._database.reading() as connection:
            return connection.execute(select(func.max(sessions.c.id))).scalar_one() or 0

    def facts(self) -> ArchiveFacts:
        """Count what the archive holds."""
        counted = select(
            sessions.c.state, func.count(), func.sum(sessions.c.size), func.min(sessions.c.updated_ms),
            func.max(sessions.c.updated_ms),
        ).group_by(sessions.c.state)  # fmt: skip
        with self._database.reading() as connection:
            found = {state: rest for state, *rest in connection.execute(counted)}
        nothing = [0, 0, None, None]
        (count, *_), kept = found.pop(RowState.TOMBSTONE, nothing), list(found.values())
        return ArchiveFacts(
            sessions=sum(each[0] for each in kept),
            pending=found.get(RowState.PENDING, nothing)[0],
            tombstones=count,
            size=int(sum(each[1] for each in kept)),
            oldest_ms=min((each[2] for each in kept), default=None),
            newest_ms=max((each[3] for each in kept), default=None),
        )


class SearchVerbs(ArchivePart):
    """Finding sessions."""

    def search(self, wanted: Search) -> Page:
        """Find a page of sessions, newest update first; pending ones too, see `StoredRow`.

        Raises:
            InvalidInput: A text to find has no word.
            ArchiveUnavailable: It took too long, or there is no answer.
        """
        limit = min(max(wanted.limit, 1), _MOST)
        query = _COLUMNS.where(_IS_SESSION, *_conditions(wanted, self._database.dialect))
        query = query.order_by(sessions.c.updated_ms.desc(), sessions.c.id.desc()).limit(limit + 1)
        with self._database.reading() as connection:
            found = [_parse(row) for row in connection.execute(query)]
        page = found[:limit]
        after = Cursor(page[-1].session.updated_ms, page[-1].place) if len(found) > limit else None
        return Page(tuple(page), after)


def _conditions(wanted: Search, dialect: Dialect) -> Iterator[ColumnElement[bool]]:
    for column, value in ((sessions.c.status, wanted.status), (sessions.c.agent, wanted.agent)):
        if value is not None:
            yield column == clean(value)
    for key, value in wanted.labels.items():
        labelled = select(session_labels.c.id).where(session_labels.c.key == clean(key))
        yield sessions.c.id.in_(labelled.where(session_labels.c.value == clean(value)))
    for name, column in (("text", "words"), ("error", "error_words")):
        given: str = getattr(wanted, name)
        if given:
            found = words(given)
            if not found:
                raise InvalidInput(name, given, "it has no word to look for; give at least one letter or digit.")
            yield dialect.matches(column, found)
    if wanted.since_ms is not None:
        yield sessions.c.updated_ms >= wanted.since_ms
    if wanted.until_ms is not None:
        yield sessions.c.updated_ms <= wanted.until_ms
    if wanted.after is not None:
        yield _behind(wanted.after)


def _behind(cursor: Cursor) -> ColumnElement[bool]:
    if cursor.place is None:
        return sessions.c.updated_ms < cursor.updated_ms
    return tuple_(sessions.c.updated_ms, sessions.c.id) < tuple_(cursor.updated_ms, cursor.place)


def _parse(row: Any) -> FoundSession:
    session = ArchivedSession(
        key=SessionKey(row.session_id, row.created_ms),
        mark=row.mark,
        agent=row.agent,
        status=row.status,
        updated_ms=row.updated_ms,
        reason=row.reason,
        error=row.error,
        execution_id=row.execution_id,
        parent_id=row.parent_id,
        forked_from=row.forked_from,
        version=row.version,
        first_words=row.first_words,
        labels=json.loads(row.labels),
        steps=row.steps,
        tokens=row.tokens,
        cost=row.cost,
        size=row.size,
        expires_ms=row.expires_ms,
    )
    return FoundSession(session, read_row(row), place=row.id, is_newest=bool(row.is_newest))
