"""The differences between SQLite and PostgreSQL: opening, finding words, and errors in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from sqlalchemy import ColumnElement, Connection, Engine, delete
from sqlalchemy.sql.dml import ReturningInsert

from ..errors import CeleryAgentsError, StateUnreadable
from .tables import sessions

READ_SECONDS: Final = 10.0
"""A read that takes longer is given up."""
WRITE_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 5
TOO_LONG: Final = f"a search took longer than {READ_SECONDS:.0f} s; name an agent, a label or a shorter time"


class Dialect(Protocol):
    """One kind of database.

    Attributes:
        words_of_schema: What stands for the types of the database in `migrations`.
        own_schema: Statements of the database alone, by the schema version that they belong to.
        insert_new: The statement that inserts a row of `sessions` and gives its `id`; nothing where the key is there.
        error: The errors of its library.
    """

    words_of_schema: Mapping[str, str]
    own_schema: Mapping[int, Sequence[str]]
    insert_new: ReturningInsert[Any]
    error: type[Exception]

    def open(self) -> Engine:
        """Make an engine; nothing is sent yet. With the execution option `writes`, its transactions write."""
        ...

    def prepare(self, connection: Connection) -> None:
        """Keep others from changing the schema until the end of the transaction.

        Raises:
            ConfigurationError: The database cannot hold an archive.
        """
        ...

    def matches(self, column: str, found: Sequence[str]) -> ColumnElement[bool]:
        """The condition that a session has words that begin so, in a column of `session_words`."""
        ...

    def write_words(self, connection: Connection, row: int, found: Sequence[str], error: Sequence[str]) -> None:
        """Replace the words of a row; none remove it."""
        ...

    def describe(self, error: BaseException) -> CeleryAgentsError:
        """Say what an error of the database means: `StateUnreadable` where it refuses a value, and would each time."""
        ...


def refused_value(said: str) -> StateUnreadable:
    """A value that a database refuses: the archive can be used for other sessions."""
    return StateUnreadable("a row of the archive", f"its database refuses a value: {said}")


def remove_rows(dialect: Dialect, connection: Connection, rows: Sequence[int]) -> None:
    """Remove rows with all that belongs to them."""
    for row in rows:
        dialect.write_words(connection, row, (), ())
    connection.execute(delete(sessions).where(sessions.c.id.in_(rows)))
