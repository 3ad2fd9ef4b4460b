"""The schema of the archive: its versions, each made of the one before.

A migration is a list of statements, in the same words for both databases but for what `Dialect.words_of_schema` names.
One that has been released never changes. They all run in one transaction, under a lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

_FIRST: Final = (
    """CREATE TABLE sessions (
        id {id}, session_id {name} NOT NULL, created_ms BIGINT NOT NULL, revision BIGINT NOT NULL, state TEXT NOT NULL,
        mark TEXT NOT NULL, agent {name} NOT NULL, status {name} NOT NULL, reason TEXT NOT NULL, error TEXT NOT NULL,
        execution_id TEXT NOT NULL, root_id {name} NOT NULL,
        parent_id {name} NOT NULL, forked_from {name} NOT NULL, version BIGINT NOT NULL,
        updated_ms BIGINT NOT NULL, expires_ms BIGINT, first_words TEXT NOT NULL, labels TEXT NOT NULL,
        steps BIGINT NOT NULL, tokens BIGINT NOT NULL, cost {real}, size BIGINT NOT NULL,
        UNIQUE (session_id, created_ms))""",
    "CREATE INDEX sessions_updated ON sessions (updated_ms, id)",
    "CREATE INDEX sessions_status ON sessions (status, updated_ms, id)",
    "CREATE INDEX sessions_agent ON sessions (agent, updated_ms, id)",
    "CREATE INDEX sessions_pending ON sessions (id) WHERE state = 'pending'",
    "CREATE INDEX sessions_expires ON sessions (expires_ms) WHERE expires_ms IS NOT NULL",
    """CREATE TABLE documents (
        id BIGINT PRIMARY KEY REFERENCES sessions ON DELETE CASCADE, plain_size BIGINT NOT NULL,
        body {bytes} NOT NULL)""",
    """CREATE TABLE session_labels (
        id BIGINT NOT NULL REFERENCES sessions ON DELETE CASCADE, key {name} NOT NULL, value {name} NOT NULL,
        PRIMARY KEY (id, key))""",
    "CREATE INDEX session_labels_value ON session_labels (key, value, id)",
    """CREATE TABLE costs (
        id BIGINT NOT NULL REFERENCES sessions ON DELETE CASCADE, execution_id {name} NOT NULL, model {name} NOT NULL,
        agent {name} NOT NULL, ended_ms BIGINT NOT NULL, steps BIGINT NOT NULL, tokens BIGINT NOT NULL,
        cost {real} NOT NULL, is_unpriced BIGINT NOT NULL,
        PRIMARY KEY (id, execution_id, model))""",
    "CREATE INDEX costs_ended ON costs (ended_ms)",
)

_MIGRATIONS: Final[Sequence[Sequence[str]]] = (_FIRST,)

SCHEMA: Final = len(_MIGRATIONS)
"""The version of the schema that this package knows."""


def statements(version: int, words: Mapping[str, str], own: Mapping[int, Sequence[str]]) -> list[str]:
    """The statements that lead from a version of the schema to `SCHEMA`.

    Args:
        version: 0 for an empty database.
        words: What stands for the types of the database.
        own: Statements of the database alone, by the version that they belong to.
    """
    found: list[str] = []
    for number, migration in enumerate(_MIGRATIONS[version:], version + 1):
        found += [each.format_map(words) for each in migration]
        found += own.get(number, ())
    return found
