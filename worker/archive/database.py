"""The database of the archive: transactions, and a schema that is made or brought forward before the first of them."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Generator

from sqlalchemy import Connection, Engine, insert, inspect, select, text, update
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ..errors import ArchiveUnavailable, ConfigurationError
from .dialects import Dialect
from .migrations import SCHEMA, statements
from .tables import about

_SHOWN_TABLES = 3
_VERSION = select(about.c.value).where(about.c.name == "schema")


class ArchiveDatabase:
    """Transactions on one database. Threads share it, and a process that was forked opens its own connections."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._owner = 0

    @contextlib.contextmanager
    def reading(self) -> Generator[Connection]:
        """A transaction that reads.

        Raises:
            ArchiveUnavailable: The database does not answer, refuses, or takes too long.
            ConfigurationError: It holds something else, or is of a newer version of this package.
        """
        with self._translating(), self._prepared().begin() as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Generator[Connection]:
        """A transaction that writes; see `reading`. After an error it may have been carried out."""
        with self._translating(), self._prepared().execution_options(writes=True).begin() as connection:
            _check_version(connection.execute(_VERSION).scalar_one_or_none())
            yield connection

    def close(self) -> None:
        """Close all connections; a later transaction opens new ones."""
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None and self._owner == os.getpid():
            engine.dispose()

    def _prepared(self) -> Engine:
        """The engine, whose database has the schema of this version."""
        if (found := self._own()) is not None:
            return found
        engine = self.dialect.open()
        try:  # not under the lock: where the database does not answer, threads wait side by side
            with engine.execution_options(writes=True).begin() as connection:
                self._bring_forward(connection)
        except BaseException:
            engine.dispose()
            raise
        with self._lock:
            if (found := self._own()) is None:
                self._engine, self._owner = engine, os.getpid()
                return engine
        engine.dispose()
        return found

    def _own(self) -> Engine | None:
        """The engine of this process; None: it has none yet."""
        return self._engine if self._owner == os.getpid() else None

    def _bring_forward(self, connection: Connection) -> None:
        """Make the schema in an empty database, or bring it to this version."""
        self.dialect.prepare(connection)
        names = set(inspect(connection).get_table_names())
        if about.name in names:
            version = _check_version(connection.execute(_VERSION).scalar_one_or_none())
        elif names:
            shown = ", ".join(sorted(names)[:_SHOWN_TABLES])
            raise ConfigurationError(
                f"CELERY_AGENTS_ARCHIVE_URL names a database of something else (it has {shown}); give the archive a "
                "database or a schema of its own"
            )
        else:
            version = 0
            connection.exec_driver_sql(f"CREATE TABLE {about.name} (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
            connection.execute(insert(about).values(name="schema", value="0"))
        if version == SCHEMA:
            return
        for statement in statements(version, self.dialect.words_of_schema, self.dialect.own_schema):
            connection.execute(text(statement))
        connection.execute(update(about).where(about.c.name == "schema").values(value=str(SCHEMA)))

    @contextlib.contextmanager
    def _translating(self) -> Generator[None]:
        try:
            yield
        except DBAPIError as error:
            raise self.dialect.describe(error.orig or error) from error
        except self.dialect.error as error:  # while a connection was opened
            raise self.dialect.describe(error) from error
        except SQLAlchemyError as error:  # such as no free connection in time
            raise ArchiveUnavailable(f"the archive cannot be used: {str(error).partition(chr(10))[0]}") from error


def _check_version(stored: str | None) -> int:
    """
    Raises:
        ConfigurationError: Another version of this package has to read the archive, or none can.
    """
    if stored is None or not stored.isdecimal():
        raise ConfigurationError("the archive does not say which version it has; restore it from a backup")
    if int(stored) > SCHEMA:
        raise ConfigurationError(
            f"the archive has version {stored}, and this package knows up to {SCHEMA}; upgrade celery-agents here"
        )
    return int(stored)
