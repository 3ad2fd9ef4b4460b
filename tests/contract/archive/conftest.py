"""An archive on each kind of database."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from celery_agents.worker.archive.archive import open_archive
from celery_agents.worker.archive.sql_archive import Archive


@pytest.fixture
def opened(archive_url: str) -> Iterator[Callable[[], Archive]]:
    """Opens the same archive as another process would."""
    found: list[Archive] = []

    def open_one() -> Archive:
        found.append(open_archive(archive_url))
        return found[-1]

    yield open_one
    for each in found:
        each.close()


@pytest.fixture
def archive(opened: Callable[[], Archive]) -> Archive:
    return opened()


@pytest.fixture
def run(archive_url: str) -> Iterator[Callable[..., None]]:
    """Runs a statement on the database, besides the archive."""
    engine = create_engine(archive_url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)

    def run_one(statement: str, **values: object) -> None:
        with engine.begin() as connection:
            connection.execute(text(statement), values)

    yield run_one
    engine.dispose()


@pytest.fixture
def damage(run: Callable[..., None]) -> Callable[[str, bytes], None]:
    """Writes other bytes in the place of a session's document."""

    def write(session_id: str, body: bytes) -> None:
        wanted = "(SELECT id FROM sessions WHERE session_id = :name)"
        run(f"UPDATE documents SET body = :body WHERE id = {wanted}", body=body, name=session_id)

    return write
