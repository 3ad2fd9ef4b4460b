"""The tables of the archive, as queries name their columns. `migrations` makes them; a test compares both."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Float, LargeBinary, MetaData, Table, Text

_tables: Final = MetaData()

about: Final = Table("celery_agents_archive", _tables, Column("name", Text, primary_key=True), Column("value", Text))
"""What the database is: its schema version under the name `schema`."""

sessions: Final = Table(
    "sessions",
    _tables,
    Column("id", BigInteger, primary_key=True),
    Column("session_id", Text),
    Column("created_ms", BigInteger),
    Column("revision", BigInteger),
    Column("state", Text),
    Column("mark", Text),
    Column("agent", Text),
    Column("status", Text),
    Column("reason", Text),
    Column("error", Text),
    Column("execution_id", Text),
    Column("root_id", Text),
    Column("parent_id", Text),
    Column("forked_from", Text),
    Column("version", BigInteger),
    Column("updated_ms", BigInteger),
    Column("expires_ms", BigInteger),
    Column("first_words", Text),
    Column("labels", Text),
    Column("steps", BigInteger),
    Column("tokens", BigInteger),
    Column("cost", Float),
    Column("size", BigInteger),
)
"""A row for each session, `labels` as JSON."""

documents: Final = Table(
    "documents",
    _tables,
    Column("id", BigInteger, primary_key=True),
    Column("plain_size", BigInteger),
    Column("body", LargeBinary),
)

session_labels: Final = Table(
    "session_labels",
    _tables,
    Column("id", BigInteger, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("value", Text),
)
"""The labels again, by which sessions are found."""

costs: Final = Table(
    "costs",
    _tables,
    Column("id", BigInteger, primary_key=True),
    Column("execution_id", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("agent", Text),
    Column("ended_ms", BigInteger),
    Column("steps", BigInteger),
    Column("tokens", BigInteger),
    Column("cost", Float),
    Column("is_unpriced", BigInteger),
)

session_words: Final = Table(
    "session_words",
    _tables,
    Column("id", BigInteger, primary_key=True),
    Column("words", Text),
    Column("error_words", Text),
)
"""Words of a session and of its last error: in SQLite a table of FTS5, whose `id` is `rowid`; else two `tsvector`."""

PARTS: Final = (documents, session_labels, costs)
"""What a row has besides itself and its words, each with the row's `id`."""
