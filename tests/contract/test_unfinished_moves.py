"""Finishing the moves of workers that have died, and deleting the rows of sessions that were deleted, on every store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from celery_agents.worker import crash_points
from celery_agents.worker.archive.rows import CostBy, RowState, Search
from celery_agents.worker.engine import operation_transition
from celery_agents.worker.errors import SessionConflict, SessionDeleted, SessionNotFound, StoreUnavailable
from celery_agents.worker.store.archiving.moving import MoveOutcome
from celery_agents.worker.store.database import Database

from support.archive_lab import ArchiveLab
from support.store import Bench, an_operation

pytestmark = pytest.mark.leaves_keys("sessions that ended stay until the archive has them")


def test_a_mark_gets_its_life_when_its_worker_has_died_before(lab: ArchiveLab) -> None:
    lab.end()
    lab.bench.spy.before("archive.mark", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        lab.move()
    lab.archiver.finish_pending()
    assert lab.bench.database("PTTL", lab.names.session) > 0


def test_a_move_whose_reply_was_lost_is_finished_by_housekeeping(lab: ArchiveLab) -> None:
    lab.end()
    lab.bench.spy.lose("archive.exec")
    with pytest.raises(StoreUnavailable):
        lab.move()
    assert lab.row_state(lab.key) is RowState.PENDING
    assert lab.bench.database("PTTL", lab.names.session) == -1
    assert lab.store.sessions.header(lab.session).status == "completed"  # pending, and its mark names it
    assert lab.archiver.finish_pending() == 1
    assert lab.row_state(lab.key) is RowState.VALID
    assert lab.bench.database("PTTL", lab.names.session) > 0
    assert lab.archiver.finish_pending() == 0


def test_a_move_is_finished_when_its_mark_has_gone(lab: ArchiveLab) -> None:
    lab.end()
    key = lab.key
    die_before_row_is_valid(lab)
    lab.bench.database("DEL", lab.names.session)
    assert lab.row_state(key) is RowState.PENDING
    assert lab.archiver.finish_pending() == 1
    assert lab.row_state(key) is RowState.VALID
    assert lab.store.sessions.header(lab.session).status == "completed"


def test_a_move_is_finished_when_its_id_is_used_again(lab: ArchiveLab) -> None:
    lab.end()
    key = lab.key
    die_before_row_is_valid(lab)
    lab.bench.database("DEL", lab.names.session)
    lab.bench.submit(execution="another")
    assert lab.key != key
    assert lab.archiver.finish_pending() == 1
    assert lab.row_state(key) is RowState.VALID
    assert lab.store.sessions.header(lab.session).status == "pending"


def die_before_row_is_valid(lab: ArchiveLab) -> None:
    """Begin a move that ends at a2."""

    def die(point: str) -> None:
        if point == "a2":
            raise _DiedError

    crash_points.install(die)
    with contextlib.suppress(_DiedError):
        lab.move()
    crash_points.install(None)


class _DiedError(Exception):
    """A worker has died."""


def test_an_archived_session_is_deleted_in_both_places(lab: ArchiveLab) -> None:
    lab.end()
    lab.move()
    key = lab.key
    assert lab.store.sessions.delete(lab.session).outcome == "changed"
    assert lab.store.sessions.delete(lab.session).outcome == "again"
    with pytest.raises(SessionDeleted):
        lab.store.sessions.header(lab.session)
    assert list(lab.store.archived.search(Search())) == []  # type: ignore[union-attr]
    (note,) = lab.bench.database("ZRANGEBYSCORE", lab.names.shard.archive, "-inf", "+inf")
    lab.bench.database("ZADD", lab.names.shard.archive, 1, note)
    assert lab.archiver.bury_deleted([lab.names.shard]) == 1
    assert lab.row_state(key) is RowState.TOMBSTONE
    with pytest.raises(SessionNotFound):
        lab.archive.document(key)
    assert lab.bench.database("ZCARD", lab.names.shard.archive) == 0


def test_a_deleted_session_stays_away_although_its_mark_goes_before_its_row(lab: ArchiveLab) -> None:
    lab.end(labels={"customer": "42"})
    lab.move()
    lab.store.sessions.delete(lab.session)
    lab.bench.database("DEL", lab.names.session)
    archived, sessions = lab.store.archived, lab.store.sessions
    assert archived is not None
    with pytest.raises(SessionNotFound):
        sessions.header(lab.session)
    with pytest.raises(SessionNotFound):
        sessions.act(lab.session, an_operation("are you there?"), operation_transition)
    assert list(archived.search(Search())) == sessions.headers_of([lab.session]) == []
    assert sessions.find_matching(lab.session) == []


@pytest.mark.parametrize("has_url", [True, False])
def test_the_row_of_a_restored_session_goes_with_its_deletion(lab: ArchiveLab, has_url: bool) -> None:
    lab.end()
    lab.move()
    lab.restore()
    key = lab.key
    store = lab.store if has_url else Bench(lab.bench.spy.inner).store
    assert store.sessions.delete(lab.session).outcome == "changed"
    bury(lab)
    assert lab.row_state(key) is RowState.TOMBSTONE


def bury(lab: ArchiveLab) -> None:
    for note in lab.bench.database("ZRANGEBYSCORE", lab.names.shard.archive, "-inf", "+inf"):
        lab.bench.database("ZADD", lab.names.shard.archive, 1, note)
    lab.archiver.bury_deleted([lab.names.shard])


def test_a_slow_mover_stores_nothing_over_a_tombstone(lab: ArchiveLab) -> None:
    lab.end()
    key, document = lab.key, lab.document()
    assert document is not None
    lab.bench.spy.before("archive.read", lambda: lab.store.sessions.delete(lab.session))
    assert lab.move() is MoveOutcome.LATER
    bury(lab)
    assert lab.row_state(key) is RowState.TOMBSTONE
    # A Redis from a backup has the session again.
    lab.bench.database("DEL", lab.names.session)
    commands = list(document.write_commands(lab.names))
    lab.bench.spy.inner.pipeline("test", commands)
    assert lab.move() is MoveOutcome.DELETED
    assert lab.bench.store.sessions.header(lab.session).status == "completed"


def test_a_pending_row_of_a_deleted_session_is_deleted(lab: ArchiveLab) -> None:
    lab.end()
    key = lab.key
    lab.bench.spy.before("archive.read", lambda: Bench(lab.bench.spy.inner).store.sessions.delete(lab.session))
    assert lab.move() is MoveOutcome.LATER
    lab.archiver.finish_pending()
    bury(lab)
    assert lab.row_state(key) is RowState.TOMBSTONE


def test_a_session_whose_mark_is_gone_is_still_found_and_deleted(lab: ArchiveLab) -> None:
    lab.end()
    lab.move()
    key = lab.key
    lab.bench.database("DEL", lab.names.session)
    assert lab.store.sessions.header(lab.session).status == "completed"
    assert [each.name for each in lab.store.archived.search(Search())] == [lab.session]  # type: ignore[union-attr]
    lab.restore()
    lab.move()
    lab.bench.database("DEL", lab.names.session)
    assert lab.store.sessions.delete(lab.session).outcome == "changed"
    bury(lab)
    assert lab.row_state(key) is RowState.TOMBSTONE


def test_a_session_that_is_restored_while_it_is_deleted_without_a_mark_is_deleted(lab: ArchiveLab) -> None:
    lab.end()
    lab.move()
    lab.bench.database("DEL", lab.names.session)
    lab.bench.spy.before("archive.there", lab.restore)
    assert lab.store.sessions.delete(lab.session).outcome == "changed"
    with pytest.raises(SessionDeleted):
        lab.store.sessions.header(lab.session)


def test_a_deletion_that_redis_may_still_lose_leaves_the_row(database: Database, tmp_path: Path) -> None:
    lab = ArchiveLab(database, f"sqlite:///{tmp_path}/history.db")
    lab.end()
    lab.move()
    key = lab.key
    lab.store.sessions.delete(lab.session)
    assert lab.archiver.bury_deleted([lab.names.shard]) == 0
    assert lab.row_state(key) is RowState.VALID
    assert lab.bench.database("ZCARD", lab.names.shard.archive) == 1


def test_a_session_that_is_restored_before_its_move_has_ended_is_counted_once(lab: ArchiveLab) -> None:
    lab.end()
    lab.bench.spy.before("archive.mark", lab.restore)
    lab.move()
    assert lab.row_state(lab.key) is RowState.PENDING  # sums of costs leave it out
    assert lab.store.sessions.header(lab.session).status == "completed"


def test_costs_come_to_an_end_while_sessions_move_all_the_time(lab: ArchiveLab) -> None:
    names = [f"{lab.session}-{number}" for number in range(12)]
    for lab.bench.session in names:
        lab.end()
    moved = list[str]()

    def move_one() -> None:
        if len(moved) < 10:
            moved.append(names[len(moved)])
            lab.archiver.move(moved[-1])
        lab.bench.spy.before("archive.counted", move_one)

    move_one()
    assert lab.store.archived is not None
    assert lab.store.archived.costs(CostBy.AGENT, "", None, None, counted=set(names)) == []
    assert 1 < len(moved) < 5


class _BeforePending:
    """An archive in which something happens just before a row is made pending, once."""

    def __init__(self, archive: Any, call: Callable[[], object]) -> None:
        self._archive, self._calls = archive, [call]

    def __getattr__(self, name: str) -> Any:
        if name == "make_pending" and self._calls:
            self._calls.pop()()
        return getattr(self._archive, name)


def test_the_row_of_a_session_that_is_restored_while_its_move_is_finished_is_pending(lab: ArchiveLab) -> None:
    lab.end()
    die_before_row_is_valid(lab)
    archived = lab.store.archived
    assert archived is not None
    archived.archive = _BeforePending(archived.archive, lab.archiver.finish_pending)  # type: ignore[assignment]
    lab.restore()
    assert lab.store.sessions.header(lab.session).status == "completed"
    assert lab.row_state(lab.key) is RowState.PENDING  # sums of costs leave it out


def test_a_session_that_is_deleted_while_it_is_restored_stays_away(lab: ArchiveLab) -> None:
    lab.end()
    lab.move()

    def delete() -> None:
        lab.store.sessions.delete(lab.session)
        bury(lab)
        lab.bench.database("DEL", lab.names.session)  # as when the life of its mark is over

    archived = lab.store.archived
    assert archived is not None
    archived.archive = _BeforePending(archived.archive, delete)  # type: ignore[assignment]
    assert not archived.restore(lab.session)
    assert lab.bench.database("EXISTS", lab.names.session) == 0


def test_a_deletion_that_is_refused_leaves_no_mark_for_ever(lab: ArchiveLab) -> None:
    lab.end()
    lab.move()
    lab.bench.database("DEL", lab.names.session)
    with pytest.raises(SessionConflict):
        lab.store.sessions.delete(lab.session, version=99)
    assert lab.bench.database("PTTL", lab.names.session) > 0
