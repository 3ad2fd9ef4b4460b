"""Sessions that cannot be read, beside others that move to the archive, on every store."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest

from celery_agents.worker.archive.rows import RowState, Search

from support.archive_lab import ArchiveLab
from support.store import Bench
from support.store_client import StoreClient

pytestmark = pytest.mark.leaves_keys("sessions that ended stay until the archive has them")


def damage_one_beside(bench: Bench, damaged: str) -> None:
    """Have another session of the same shard, of which a key cannot be read."""
    name = next(
        name for name in map("beside{}".format, range(10_000)) if bench.store.context.keys(name).shard == bench.shard
    )
    bench.submit(name)
    keys = bench.store.context.keys(name)
    bench.database("HSET", keys.ctl, "phase", "end")
    for index in (keys.shard.ending, keys.shard.sessions):
        bench.database("ZADD", index, 1, name)
    if damaged == "head":
        bench.database("HSET", keys.session, "head", "{")
    else:
        bench.database("DEL", getattr(keys, damaged))
        bench.database("SET", getattr(keys, damaged), "of another type")


@pytest.mark.parametrize("damaged", ["head", "session", "ctl"])
def test_sessions_beside_one_that_cannot_be_read_are_kept_and_moved(lab: ArchiveLab, damaged: str) -> None:
    other = Bench(lab.bench.spy.inner)
    other.submit()
    other.commit(other.claim(), final=True)
    damage_one_beside(other, damaged)
    assert lab.archiver.keep(other.shard) == 1
    assert other.database("PTTL", other.store.context.keys(other.session).session) == -1
    now_ms = lab.store.context.now_ms()
    found, _ = lab.archiver.find_ended(other.shard, behind_ms=-1, until_ms=now_ms + 60_000)
    assert other.session in found


def test_a_session_with_damaged_data_is_named_and_the_others_move_at_once(lab: ArchiveLab) -> None:
    lab.end()
    damage_one_beside(lab.bench, "events")
    lab.bench.database("HSET", lab.names.session, "definition", "[]")
    other = Bench(lab.bench.spy.inner)
    other.submit()
    other.commit(other.claim(), final=True)
    run = StoreClient(lab.store).archive_now(older_than=timedelta(seconds=-60))
    assert run.moved == 1
    assert lab.session in run.unreadable


def test_a_key_of_another_type_keeps_no_other_session_from_being_found(lab: ArchiveLab) -> None:
    lab.end()
    moved, key = lab.session, lab.key
    lab.move()
    lab.bench.session = f"{moved}-2"
    lab.bench.execution = uuid.uuid4().hex
    lab.end()
    lab.move()
    row = lab.archive.row(key)
    assert row is not None
    lab.archive.make_pending(key, seen=row.revision)
    lab.bench.database("DEL", lab.names.session)
    lab.bench.database("SET", lab.names.session, "of another type")
    lab.archiver.finish_pending()
    assert lab.row_state(key) is RowState.VALID
    assert lab.store.archived is not None
    assert [each.name for each in lab.store.archived.search(Search())] == [moved]
    assert list(lab.store.archived.earlier(Search())) == []
    assert StoreClient(lab.store).list().items[0].session_id == moved
