"""The database of an archive: its schema and its versions, and a sentence for each database that cannot be used."""

from __future__ import annotations

import os
import signal
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, event, inspect

from celery_agents.worker.archive import tables
from celery_agents.worker.archive.archive import open_archive
from celery_agents.worker.archive.migrations import SCHEMA
from celery_agents.worker.archive.postgresql import Postgresql
from celery_agents.worker.archive.rows import Search
from celery_agents.worker.archive.sql_archive import Archive
from celery_agents.worker.errors import ArchiveUnavailable, ConfigurationError, StateUnreadable

from support.archives import entry, key
from support.postgresql import POSTGRESQL_MISSING, PostgresqlServer, find_programs
from support.processes import free_port

Statements = Callable[..., list[tuple[object, ...]]]


@pytest.fixture
def engine_url(archive_url: str) -> str:
    return archive_url.replace("postgresql://", "postgresql+psycopg://")


def test_the_schema_has_the_columns_that_queries_name(archive: Archive, engine_url: str) -> None:
    archive.facts()
    engine = create_engine(engine_url)
    found = inspect(engine)
    for table in (tables.about, tables.sessions, *tables.PARTS):
        assert [each["name"] for each in found.get_columns(table.name)] == [each.name for each in table.columns] or {
            each["name"] for each in found.get_columns(table.name)
        } == {each.name for each in table.columns}
    engine.dispose()


def test_a_second_process_finds_the_schema_and_the_rows(opened: Callable[[], Archive]) -> None:
    opened().store(entry(), seen=0)
    assert opened().document(key())[1] == b"everything"


def test_processes_that_start_together_make_one_schema(opened: Callable[[], Archive]) -> None:
    archives = [opened() for _ in range(6)]
    failed: list[BaseException] = []
    barrier = threading.Barrier(6, timeout=30)

    def begin(archive: Archive, number: int) -> None:
        barrier.wait()
        try:
            archive.store(entry(f"s{number}"), seen=0)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=begin, args=(each, number)) for number, each in enumerate(archives)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert archives[0].facts().sessions == 6


def test_a_process_that_was_forked_opens_connections_of_its_own(archive: Archive) -> None:
    archive.store(entry(), seen=0)
    assert in_a_child(lambda: archive.document(key())[1].decode()) == "everything"
    assert archive.document(key())[1] == b"everything"


def test_a_newer_archive_is_refused_also_while_it_is_open(opened: Callable[[], Archive], run: Statements) -> None:
    archive = opened()
    archive.store(entry(), seen=0)
    run("UPDATE celery_agents_archive SET value = '99'")
    told = f"the archive has version 99, and this package knows up to {SCHEMA}; upgrade"
    with pytest.raises(ConfigurationError, match=told):
        archive.store(entry(), seen=1)
    with pytest.raises(ConfigurationError, match=told):
        opened().facts()
    run(f"UPDATE celery_agents_archive SET value = '{SCHEMA}'")
    assert archive.store(entry(), seen=1) == 2


def test_a_database_that_does_not_say_its_version_is_refused(opened: Callable[[], Archive], run: Statements) -> None:
    opened().facts()
    for value in ("'two'", "''"):
        run(f"UPDATE celery_agents_archive SET value = {value}")
        with pytest.raises(ConfigurationError, match="does not say which version"):
            opened().facts()
    run("DELETE FROM celery_agents_archive")
    with pytest.raises(ConfigurationError, match="does not say which version"):
        opened().facts()


@pytest.mark.parametrize("table", ["sessions", "users"])
def test_a_database_of_something_else_is_refused_and_left_as_it_is(
    archive: Archive, run: Statements, table: str
) -> None:
    run(f"CREATE TABLE {table} (a INTEGER)")
    with pytest.raises(ConfigurationError, match=f"a database of something else \\(it has {table}\\)"):
        archive.store(entry(), seen=0)
    with pytest.raises(Exception, match="celery_agents_archive"):
        run("SELECT * FROM celery_agents_archive")


def test_a_schema_that_lost_a_table_is_told(archive: Archive, run: Statements) -> None:
    archive.store(entry(), seen=0)
    run("DROP TABLE documents")
    with pytest.raises(ArchiveUnavailable, match="restore it from a backup"):
        archive.document(key())
    assert len(archive.search(Search()).sessions) == 1


def test_a_migration_that_fails_leaves_the_schema_before_it(
    archive: Archive, opened: Callable[[], Archive], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.store(entry(), seen=0)
    from celery_agents.worker.archive import database, migrations

    broken = ("ALTER TABLE sessions ADD COLUMN later BIGINT", "UPDATE nowhere SET a = 1")
    monkeypatch.setattr(migrations, "_MIGRATIONS", (migrations._FIRST, broken))
    monkeypatch.setattr(database, "SCHEMA", 2)
    with pytest.raises(ArchiveUnavailable):
        opened().facts()
    monkeypatch.setattr(migrations, "_MIGRATIONS", (migrations._FIRST, broken[:1]))
    forward = opened()
    assert forward.document(key())[1] == b"everything"
    monkeypatch.setattr(database, "SCHEMA", 1)
    with pytest.raises(ConfigurationError, match="version 2"):
        archive.store(entry(), seen=1)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("mysql://user:geheim@host/db", "a file of SQLite .* or a PostgreSQL .*, and mysql:// is neither"),
        ("history.db", "a URL without a scheme is neither"),
        ("", "a URL without a scheme is neither"),
        ("sqlite://", "names no host"),
        ("sqlite://history.db", "names no host"),
        ("sqlite:///", "keeps nothing; name a file"),
        ("sqlite:///:memory:", "keeps nothing; name a file"),
        ("sqlite:///a.db?mode=memory", "takes no options"),
        ("sqlite+aiosqlite:///a.db", "is neither"),
        ("postgresql+asyncpg://host/db", "is neither"),
    ],
)
def test_a_url_that_names_no_archive_is_refused(url: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as error:
        open_archive(url)
    assert "geheim" not in str(error.value)
    assert str(error.value).startswith("CELERY_AGENTS_ARCHIVE_URL: ")


# --- SQLite --------------------------------------------------------------------------------------------------------


def refused(url: str) -> str:
    with pytest.raises((ArchiveUnavailable, ConfigurationError)) as error:
        open_archive(url).store(entry(), seen=0)
    return str(error.value)


def test_sqlite_says_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database, but long enough to be looked at " * 50)
    assert "is no database of SQLite" in refused(f"sqlite:///{tmp_path}/text.db")
    assert "its folder does not exist" in refused(f"sqlite:///{tmp_path}/missing/a.db")
    assert "cannot be opened" in refused(f"sqlite:///{tmp_path}")


def test_sqlite_says_that_it_is_full_and_has_written_nothing(tmp_path: Path) -> None:
    archive = open_archive(f"sqlite:///{tmp_path}/a.db")
    archive.store(entry("first"), seen=0)
    engine = archive._database._engine
    assert engine is not None
    event.listen(
        engine, "begin", lambda connection: connection.exec_driver_sql("PRAGMA max_page_count = 1"), insert=True
    )
    with pytest.raises(ArchiveUnavailable, match="no space left on its disk"):
        archive.store(entry("second", document=os.urandom(1_000_000)), seen=0)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("PRAGMA max_page_count = 1000000"))
    archive.close()
    assert [each.name for each in archive.search(Search()).sessions] == ["first"]
    archive.close()


def test_sqlite_without_the_right_to_write_says_so() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        archive = open_archive(f"sqlite:///{folder}/a.db")
        archive.store(entry(), seen=0)
        archive.close()
        (path / "a.db").chmod(0o444)
        path.chmod(0o555)
        told = in_a_child(lambda: drop_rights() or refused(f"sqlite:///{folder}/a.db"))
        path.chmod(0o755)
    assert "may not be written by this user" in told or "this user may not use it" in told


def drop_rights() -> None:
    """Be an ordinary user: root may write everything."""
    if os.geteuid() == 0:
        os.setuid(65_534)


def in_a_child(call: Callable[[], str]) -> str:
    """Call in a process that was forked."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, call().encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as found:
        return found.read()


def test_sqlite_gives_up_a_search_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from celery_agents.worker.archive import sqlite

    archive = open_archive(f"sqlite:///{tmp_path}/a.db")
    archive.store(entry(), seen=0)
    monkeypatch.setattr(sqlite, "READ_SECONDS", 0.05)
    monkeypatch.setattr(sqlite, "_INSTRUCTIONS", 1)
    with pytest.raises(ArchiveUnavailable, match="a search took longer"), archive._database.reading() as connection:
        connection.exec_driver_sql(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
        ).all()
    monkeypatch.undo()
    assert len(archive.search(Search()).sessions) == 1
    archive.close()


def test_sqlite_that_another_process_locks_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from celery_agents.worker.archive import sqlite

    monkeypatch.setattr(sqlite, "_BUSY_MS", 200)
    url = f"sqlite:///{tmp_path}/a.db"
    archive = open_archive(url)
    archive.store(entry(), seen=0)
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    assert len(archive.search(Search()).sessions) == 1, "readers go on"
    with pytest.raises(ArchiveUnavailable, match="is locked by another process for too long"):
        archive.store(entry(), seen=1)
    other.execute("COMMIT")
    assert archive.store(entry(), seen=1) == 2
    other.close()
    archive.close()


@pytest.mark.parametrize("replaced", [False, True])
def test_nothing_is_written_to_a_file_that_was_deleted_or_replaced(tmp_path: Path, *, replaced: bool) -> None:
    archive, other = (open_archive(f"sqlite:///{tmp_path}/{name}.db") for name in "ab")
    for each in (archive, other):
        each.store(entry(), seen=0)
    other.close()
    (tmp_path / "a.db").unlink()
    if replaced:
        (tmp_path / "a.db-wal").unlink()
        (tmp_path / "a.db-shm").unlink()
        (tmp_path / "b.db").rename(tmp_path / "a.db")
    with pytest.raises(ArchiveUnavailable, match="was deleted or replaced while it was open"):
        archive.store(entry("second"), seen=0)
    if replaced:
        assert archive.store(entry("second"), seen=0) == 1
        assert archive.facts().sessions == 2
    else:
        with pytest.raises(ArchiveUnavailable, match="restore it from a backup"):
            archive.facts()
    archive.close()


# --- PostgreSQL ----------------------------------------------------------------------------------------------------


def test_a_postgresql_that_is_not_there_says_so() -> None:
    assert "does not answer" in refused(f"postgresql://user:geheim@127.0.0.1:{free_port()}/db")
    assert "geheim" not in refused(f"postgresql://user:geheim@127.0.0.1:{free_port()}/db")


def test_a_url_of_postgresql_with_an_unknown_option_is_refused() -> None:
    assert refused("postgresql://h/db?colour=red").startswith("CELERY_AGENTS_ARCHIVE_URL cannot be used: ")


def test_postgresql_says_what_is_wrong(postgresql: PostgresqlServer) -> None:
    assert "does not exist" in refused(postgresql.url("nowhere"))
    latin = postgresql.new_database(encoding="LATIN1")
    assert "has the encoding LATIN1; make one with ENCODING 'UTF8'" in refused(postgresql.url(latin))
    name = postgresql.new_database()
    assert "has no such schema" in refused(f"{postgresql.url(name)}?options=-csearch_path%3Dnowhere")
    postgresql.run(f"CREATE ROLE reader_{name} LOGIN")
    assert "does not give this user the right to do that" in refused(postgresql.url(name, user=f"reader_{name}"))
    postgresql.run(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    assert "is read-only; name the primary" in refused(postgresql.url(name))


def test_an_archive_can_share_a_postgresql_by_a_schema_of_its_own(postgresql: PostgresqlServer) -> None:
    name = postgresql.new_database()
    postgresql.run("CREATE TABLE sessions (a INTEGER); CREATE SCHEMA history", database=name)
    archive = open_archive(f"{postgresql.url(name)}?options=-csearch_path%3Dhistory")
    assert archive.store(entry(), seen=0) == 1
    archive.close()


def test_a_commit_waits_for_the_disk_whatever_the_servers_default_is(postgresql: PostgresqlServer) -> None:
    name = postgresql.new_database()
    postgresql.run(f"ALTER DATABASE {name} SET synchronous_commit = off")
    archive = open_archive(postgresql.url(name))
    with archive._database.writing() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
    archive.close()


def test_words_are_kept_whatever_encoding_the_database_offers_its_clients(postgresql: PostgresqlServer) -> None:
    for encoding in ("LATIN1", "SQL_ASCII"):
        name = postgresql.new_database()
        postgresql.run(f"ALTER DATABASE {name} SET client_encoding = '{encoding}'")
        archive = open_archive(postgresql.url(name))
        assert archive.store(entry(text="grüße 日本 😀", first_words="😀"), seen=0) == 1
        (found,) = archive.search(Search(text="日本")).sessions
        assert found.session.first_words == "😀"
        archive.close()


def test_a_writer_that_stands_still_holds_no_row_up(
    postgresql: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from celery_agents.worker.archive import postgresql as module

    monkeypatch.setattr(module, "READ_SECONDS", 1.0)
    url = postgresql.url(postgresql.new_database())
    still, other = open_archive(url), open_archive(url)
    still.store(entry(), seen=0)

    def write() -> None:
        with still._database.writing() as connection:
            connection.exec_driver_sql("SELECT id FROM sessions FOR UPDATE")
            assert other.store(entry(), seen=1) == 2
            connection.exec_driver_sql("SELECT 1")

    with pytest.raises(ArchiveUnavailable, match="idle-in-transaction"):
        write()
    assert still.make_valid(key(), seen=2)
    for each in (still, other):
        each.close()


def test_a_row_that_others_lock_keeps_no_other_from_being_forgotten(postgresql: PostgresqlServer) -> None:
    url = postgresql.url(postgresql.new_database())
    archive = open_archive(url)
    for name in ("locked", "old"):
        archive.store(entry(name, expires_ms=5), seen=0)
    with psycopg.connect(url) as other:
        other.execute("SELECT id FROM sessions WHERE session_id = 'locked' FOR UPDATE")
        assert (archive.forget(10), archive.forget(10)) == (1, 0)
    assert archive.forget(10) == 1
    archive.close()


def test_a_damaged_page_is_told_of_its_row_alone() -> None:
    described = Postgresql("postgresql://h/db").describe(psycopg.errors.DataCorrupted("invalid page in block 7"))
    assert isinstance(described, StateUnreadable)
    assert "is damaged there: invalid page in block 7" in str(described)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (psycopg.errors.DiskFull("could not extend file"), "has no space left on its disk"),
        (psycopg.errors.InsufficientPrivilege("permission denied"), "does not give this user the right"),
        (psycopg.errors.QueryCanceled("canceling statement"), "a search took longer"),
        (psycopg.errors.AdminShutdown("terminating"), "is stopping or starting; try again"),
        (psycopg.errors.TooManyConnections("sorry"), "has too little of something"),
        (psycopg.OperationalError("server closed the connection"), "does not answer: server closed"),
    ],
)
def test_errors_of_postgresql_have_a_sentence(error: Exception, told: str) -> None:
    described = Postgresql("postgresql://h/db").describe(error)
    assert isinstance(described, ArchiveUnavailable)
    assert told in str(described)


def test_a_postgresql_that_was_killed_is_used_again_when_it_is_back(tmp_path_factory: pytest.TempPathFactory) -> None:
    if find_programs() is None:
        pytest.skip(POSTGRESQL_MISSING)
    with tempfile.TemporaryDirectory(prefix="postgresql-") as folder, PostgresqlServer(Path(folder)) as server:
        archive = open_archive(server.url(server.new_database()))
        assert archive.store(entry(), seen=0) == 1
        server.kill()
        with pytest.raises(ArchiveUnavailable):
            archive.store(entry("second"), seen=0)
        server.start()
        assert archive.document(key())[1] == b"everything"
        assert archive.store(entry("second"), seen=0) == 1
        archive.close()


def test_a_postgresql_that_hangs_is_given_up_by_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    from celery_agents.worker.archive import postgresql

    if find_programs() is None:
        pytest.skip(POSTGRESQL_MISSING)
    monkeypatch.setattr(postgresql, "READ_SECONDS", 0.5)
    monkeypatch.setattr(postgresql, "_GRACE_SECONDS", 0.5)
    monkeypatch.setattr(postgresql, "CONNECT_SECONDS", 2)
    with tempfile.TemporaryDirectory(prefix="postgresql-") as folder, PostgresqlServer(Path(folder)) as server:
        url = server.url(server.new_database())
        archive, other = open_archive(url), open_archive(url)
        archive.store(entry(), seen=0)
        server.signal_all(signal.SIGSTOP)
        waits: list[float] = []

        def ask(asked: Archive) -> None:
            began = time.monotonic()
            with pytest.raises(ArchiveUnavailable, match="does not answer"):
                asked.facts()
            waits.append(time.monotonic() - began)

        threads = [threading.Thread(target=ask, args=(asked,), daemon=True) for asked in (archive, *[other] * 4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(30)
        server.signal_all(signal.SIGCONT)
        assert len(waits) == 5
        assert max(waits) < 6, waits
        assert archive.document(key())[1] == b"everything"
        for each in (archive, other):
            each.close()
