"""Writing rows: each write names the revision that its writer has read, and a tombstone is passed by none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, and_, bindparam, case, delete, insert, select, update
from sqlalchemy.sql import Update

from . import documents
from .database import ArchiveDatabase
from .dialects import Dialect, remove_rows
from .rows import ArchivedSession, Entry, ExecutionCost, RowState, SessionKey, StoredRow
from .tables import PARTS, costs, session_labels, sessions
from .tables import documents as documents_table
from .words import words

NEW: Final = 0
"""The revision that a writer has read where there is no row."""

_FIRST_WORDS: Final = 200
_ERROR_CHARS: Final = 2_000
_MODEL_CHARS: Final = 200  # PostgreSQL has a limit for what is in an index
_LARGEST: Final = 2**53
_AT_ONCE: Final = 500


# Statements are made once: to make one anew takes longer than SQLite takes to run it.
IS_OF: Final = and_(
    sessions.c.session_id == bindparam("of_session"), sessions.c.created_ms == bindparam("of_created_ms")
)
"""The condition that a row is that of a session, for the parameters of `key_values`."""
_LOCK: Final = select(sessions.c.id, sessions.c.revision, sessions.c.state).where(IS_OF).with_for_update()
_AS_SEEN: Final = update(sessions).where(IS_OF, sessions.c.revision == bindparam("seen"))
_NEXT: Final = sessions.c.revision + 1
# A fork is the root of its tree, although its id begins with that of its source's root.
_ROOT_OF_PARENT: Final = (
    select(case((sessions.c.parent_id == "", sessions.c.session_id), else_=sessions.c.root_id))
    .where(sessions.c.session_id == bindparam("parent"))
    .order_by(sessions.c.created_ms.desc())
    .limit(1)
)
_MAKE_VALID: Final = _AS_SEEN.where(sessions.c.state == RowState.PENDING).values(state=RowState.VALID, revision=_NEXT)
_MAKE_PENDING: Final = _AS_SEEN.where(sessions.c.state != RowState.TOMBSTONE).values(
    state=RowState.PENDING, revision=_NEXT
)


class ArchivePart:
    """Verbs on one archive."""

    def __init__(self, database: ArchiveDatabase) -> None:
        self._database = database


class StoreVerbs(ArchivePart):
    """Writing the rows of sessions."""

    def store(self, entry: Entry, *, seen: int) -> int | None:
        """Store a session as a pending row, which is on the disk then; it replaces an earlier state of the session.

        Args:
            seen: The revision of the row when the writer began; `NEW` where there was none.
        Returns:
            The row's new revision. None: it has another revision by now, or is a tombstone; nothing was written.
        Raises:
            ArchiveUnavailable: It may have been written; read the row again.
        """
        body, session = documents.pack(entry.document), entry.session
        dialect, key = self._database.dialect, session.key
        found_words, error_words = words(entry.text), words(session.error[:_ERROR_CHARS])
        values = _values(session, size=len(body), revision=seen + 1)
        with self._database.writing() as connection:
            if session.parent_id:
                root = connection.execute(_ROOT_OF_PARENT, {"parent": session.parent_id}).scalar()
                values["root_id"] = root or values["root_id"]
            row = _lock(connection, key)
            if (NEW if row is None else row.revision) != seen or (row is not None and row.is_tombstone):
                return None
            number = _insert(dialect, connection, key, values) if row is None else row.id
            if number is None:
                return None
            if row is not None:
                _replace(connection, number, values)
            document = {"id": number, "plain_size": len(entry.document), "body": body}
            connection.execute(insert(documents_table), document)
            _insert_labels(connection, number, session)
            _insert_costs(connection, number, entry.costs)
            dialect.write_words(connection, number, found_words, error_words)
        return seen + 1

    def make_valid(self, key: SessionKey, *, seen: int) -> bool:
        """Say of a pending row that its session is not in Redis any more; False where the row has changed since."""
        return self._execute(_MAKE_VALID, key, seen)

    def make_pending(self, key: SessionKey, *, seen: int) -> bool:
        """Say of a row that its session may be in Redis again; False where the row has changed since."""
        return self._execute(_MAKE_PENDING, key, seen)

    def _execute(self, change: Update, key: SessionKey, seen: int) -> bool:
        with self._database.writing() as connection:
            return connection.execute(change, {**key_values(key), "seen": seen}).rowcount == 1

    def bury(self, key: SessionKey, *, expires_ms: int) -> None:
        """Make the row of a deleted session a tombstone, also where there is none; nothing else is left of it.

        Args:
            expires_ms: When the tombstone may be removed (Redis ms).
        """
        gone = ArchivedSession(key=key, mark="", agent="", status="", updated_ms=0, expires_ms=expires_ms)
        values = _values(gone, size=0, revision=NEW + 1) | {"state": RowState.TOMBSTONE}
        with self._database.writing() as connection:
            while (
                row := _lock(connection, key)
            ) is None:  # where it cannot be inserted, another writer has been quicker
                if _insert(self._database.dialect, connection, key, values) is not None:
                    return
            _replace(connection, row.id, values | {"revision": row.revision + 1})
            self._database.dialect.write_words(connection, row.id, (), ())

    def forget(self, now_ms: int) -> int:
        """Remove some of the rows whose time is over, tombstones too; returns how many. 0: there are no more."""
        # Locked: a row that is stored again before it is removed has another time. What others lock has a later turn.
        expired = select(sessions.c.id).where(sessions.c.expires_ms <= now_ms).limit(_AT_ONCE)
        expired = expired.with_for_update(skip_locked=True)
        with self._database.writing() as connection:
            rows = list(connection.execute(expired).scalars())
            remove_rows(self._database.dialect, connection, rows)
            return len(rows)


@dataclass(frozen=True, slots=True)
class _LockedRow:
    """A row that no other transaction changes before the end of this one."""

    id: int
    revision: int
    is_tombstone: bool


def key_values(key: SessionKey) -> dict[str, Any]:
    """The parameters that say which session a row is of."""
    return {"of_session": key.session_id, "of_created_ms": key.created_ms}


def _lock(connection: Connection, key: SessionKey) -> _LockedRow | None:
    found = connection.execute(_LOCK, key_values(key)).one_or_none()
    return None if found is None else _LockedRow(found.id, found.revision, found.state == RowState.TOMBSTONE)


def _insert(dialect: Dialect, connection: Connection, key: SessionKey, values: Mapping[str, Any]) -> int | None:
    """Insert a row; None where another transaction has inserted one meanwhile."""
    new = {**values, "session_id": key.session_id, "created_ms": key.created_ms}
    return connection.execute(dialect.insert_new, new).scalar_one_or_none()


def _replace(connection: Connection, row: int, values: Mapping[str, Any]) -> None:
    """Give a row other values, and remove its parts."""
    connection.execute(update(sessions).where(sessions.c.id == row).values(**values))
    for table in PARTS:
        connection.execute(delete(table).where(table.c.id == row))


def _insert_labels(connection: Connection, row: int, session: ArchivedSession) -> None:
    values = [{"id": row, "key": key, "value": value} for key, value in session.labels.items()]
    if values:
        connection.execute(insert(session_labels), values)


def _insert_costs(connection: Connection, row: int, found: Sequence[ExecutionCost]) -> None:
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for each in found:
        model = clean(each.model)[:_MODEL_CHARS]
        values = {
            "id": row,
            "execution_id": each.execution_id,
            "model": model,
            "agent": clean(each.agent),
            "ended_ms": each.ended_ms,
            "steps": each.steps,
            "tokens": min(each.tokens, _LARGEST),
            "cost": each.cost,
            "is_unpriced": int(not each.is_priced),
        }
        same = rows.setdefault((each.execution_id, model), values)
        if same is not values:  # models of which nothing but what was cut or replaced differs
            same |= {name: same[name] + values[name] for name in ("steps", "tokens", "cost")}
            same["is_unpriced"] |= values["is_unpriced"]
    if rows:
        connection.execute(insert(costs), list(rows.values()))


def _values(session: ArchivedSession, *, size: int, revision: int) -> dict[str, Any]:
    """The columns of a row that is stored anew, besides its key."""
    return {
        "revision": revision,
        "state": RowState.PENDING,
        "mark": session.mark,
        "agent": clean(session.agent),
        "status": clean(session.status),
        "reason": clean(session.reason),
        "error": clean(session.error[:_ERROR_CHARS]),
        "execution_id": session.execution_id,
        "root_id": session.key.session_id.partition(".")[0],
        "parent_id": session.parent_id,
        "forked_from": session.forked_from,
        "version": session.version,
        "updated_ms": session.updated_ms,
        "expires_ms": session.expires_ms,
        "first_words": clean(session.first_words[:_FIRST_WORDS]),
        "labels": json.dumps(dict(session.labels), ensure_ascii=False, separators=(",", ":")),
        "steps": session.steps,
        "tokens": min(session.tokens, _LARGEST),
        "cost": session.cost,
        "size": size,
    }


def clean(text: str) -> str:
    """Replace what a database refuses in a text: NUL, and halves of surrogate pairs."""
    return text.replace("\0", "�").encode("utf-8", "replace").decode("utf-8")


def read_row(row: Any) -> StoredRow:
    """Parse revision, state and mark."""
    return StoredRow(row.revision, RowState(row.state), row.mark)
