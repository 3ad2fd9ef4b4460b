"""The archive in a file of SQLite, which the processes of one machine share."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, ColumnElement, Connection, Engine, create_engine, event, text
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.sql import bindparam
from sqlalchemy.sql.dml import ReturningInsert

from ..errors import ArchiveUnavailable, CeleryAgentsError, ConfigurationError
from .dialects import READ_SECONDS, TOO_LONG, WRITE_SECONDS, refused_value
from .tables import sessions

_BUSY_MS: Final = 10_000
_PAUSE_SECONDS: Final = 0.01
# Between two looks at the clock; about a millisecond of work.
_INSTRUCTIONS: Final = 10_000
_FILE: Final = "file"
_CLEAR: Final = text("DELETE FROM session_words WHERE rowid = :row")
_WRITE: Final = text("INSERT INTO session_words (rowid, words, error_words) VALUES (:row, :words, :error_words)")


class Sqlite:
    """See `Dialect`."""

    words_of_schema: Mapping[str, str] = {
        "id": "INTEGER PRIMARY KEY AUTOINCREMENT",
        "name": "TEXT",
        "real": "REAL",
        "bytes": "BLOB",
    }
    own_schema: Mapping[int, Sequence[str]] = {
        1: (
            # Words come in the form in which they are compared, with blanks between them.
            "CREATE VIRTUAL TABLE session_words USING fts5 (words, error_words, detail = 'column', tokenize = 'ascii')",
        )
    }

    insert_new: ReturningInsert[Any] = insert(sessions).on_conflict_do_nothing().returning(sessions.c.id)
    error: type[Exception] = sqlite3.Error

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()

    def open(self) -> Engine:
        """See `Dialect`."""
        # Without an isolation level sqlite3 begins no transaction by itself: `_begin` does, as the writer it may be.
        options: dict[str, Any] = {"isolation_level": None, "timeout": _BUSY_MS / 1000}
        engine = create_engine(URL.create("sqlite+pysqlite", database=str(self._path)), connect_args=options)
        event.listen(engine, "connect", self._set_up)
        event.listen(engine, "begin", self._begin)
        return engine

    def _set_up(self, connection: sqlite3.Connection, record: ConnectionPoolEntry) -> None:
        """Let readers go on beside one writer, and let a commit be on the disk before it returns."""
        _use_wal(connection)
        for pragma in ("synchronous = FULL", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}")
        record.info[_FILE] = self._file()

    def _begin(self, connection: Connection) -> None:
        writes = bool(connection.get_execution_options().get("writes"))
        limit = time.monotonic() + (WRITE_SECONDS if writes else READ_SECONDS)
        if connection.info[_FILE] != self._file():  # what is written to a file without a name is lost
            connection.invalidate()
            raise sqlite3.OperationalError("its file was deleted or replaced while it was open")
        raw = connection.connection.driver_connection
        assert isinstance(raw, sqlite3.Connection)
        raw.set_progress_handler(lambda: int(time.monotonic() > limit), _INSTRUCTIONS)
        # A transaction that would write later than it reads may find that another one has written, and fail.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    def _file(self) -> tuple[int, int] | None:
        """The file that has the archive's name at present; None: there is none."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def prepare(self, connection: Connection) -> None:
        """See `Dialect`: the transaction is the only one that writes."""
        del connection

    def matches(self, column: str, found: Sequence[str]) -> ColumnElement[bool]:
        """See `Dialect`."""
        query = " AND ".join(f'{column} : "{word}" *' for word in found)
        condition = text(f"sessions.id IN (SELECT rowid FROM session_words WHERE session_words MATCH :{column}_query)")
        return condition.bindparams(bindparam(f"{column}_query", query))  # pyright: ignore[reportReturnType]

    def write_words(self, connection: Connection, row: int, found: Sequence[str], error: Sequence[str]) -> None:
        """See `Dialect`."""
        connection.execute(_CLEAR, {"row": row})
        if found or error:
            connection.execute(_WRITE, {"row": row, "words": " ".join(found), "error_words": " ".join(error)})

    def describe(self, error: BaseException) -> CeleryAgentsError:
        """See `Dialect`."""
        code, path = str(getattr(error, "sqlite_errorname", "")), self._path
        # Extended codes begin with the name of the code that they belong to.
        for name, sentence in _MEANINGS.items():
            if code.startswith(name):
                return ArchiveUnavailable(f"the archive {path} {sentence}")
        if code.startswith(("SQLITE_CONSTRAINT", "SQLITE_TOOBIG")):
            return refused_value(str(error))
        if code.startswith("SQLITE_NOTADB"):
            return ConfigurationError(f"the archive {path} is no database of SQLite; name another file")
        if "no such module: fts5" in str(error):
            return ConfigurationError("this Python's SQLite has no FTS5, by which the archive finds words; use another")
        if "no such table" in str(error) or "no such column" in str(error):
            return ArchiveUnavailable(f"the archive {path} is damaged: {error}; restore it from a backup")
        return ArchiveUnavailable(f"the archive {path} answers: {error}")


_MEANINGS: Final = {
    "SQLITE_FULL": "has no space left on its disk: nothing was archived; make room",
    "SQLITE_READONLY": "may not be written by this user; give the user the right to write the file and its folder",
    "SQLITE_PERM": "may not be opened by this user",
    "SQLITE_CANTOPEN": "cannot be opened: its folder does not exist, or this user may not use it",
    "SQLITE_CORRUPT": "is damaged; restore it from a backup",
    "SQLITE_BUSY": "is locked by another process for too long; try again",
    "SQLITE_LOCKED": "is locked by another process for too long; try again",
    "SQLITE_INTERRUPT": f"gave up: {TOO_LONG}",
    "SQLITE_IOERR": "cannot be read or written: its disk fails or is full",
}


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL, as a new file is once. Where two do so at once, SQLite refuses one of them without waiting."""
    limit = time.monotonic() + _BUSY_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > limit:
                raise
            time.sleep(_PAUSE_SECONDS)
        else:
            return
