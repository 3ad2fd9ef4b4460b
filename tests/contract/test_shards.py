"""The layout of a store, and what is done for all of its shards together."""

from __future__ import annotations

import uuid

import pytest

from celery_agents.worker.errors import ConfigurationError
from celery_agents.worker.store import QueueSnapshot
from celery_agents.worker.store.database import Database
from celery_agents.worker.store.events import DeadEntry
from celery_agents.worker.store.shards import NEW

from support.store import Bench, fleet_of

pytestmark = pytest.mark.leaves_keys("sessions are left in the middle of an execution")

SESSIONS = 40


def stored(database: Database) -> bytes:
    return database.pipeline("test", [("GET", fleet_of(database).shards)])[0]


def test_a_new_store_has_many_shards(database: Database) -> None:
    bench = Bench(database)
    assert len(bench.store.context.shards) == NEW
    assert stored(database) == f"{NEW} packed".encode()


def test_an_old_store_keeps_its_number(database: Database) -> None:
    database.pipeline("test", [("SET", fleet_of(database).shards, "3")])
    assert len(Bench(database).store.context.shards) == 3
    assert stored(database) == b"3"


@pytest.mark.parametrize(
    ("number", "wanted"), [("4", 8), ("many", None), ("0", None), ("1000000", None), ("4 folded", None)]
)
def test_a_number_that_does_not_fit_is_said_with_what_to_do(
    database: Database, number: str, wanted: int | None
) -> None:
    database.pipeline("test", [("SET", fleet_of(database).shards, number)])
    with pytest.raises(ConfigurationError, match=f"'{number}'.*(set it to that|SET it to their number)"):
        Bench(database, **({} if wanted is None else {"shards": wanted}))
    database.pipeline("test", [("DEL", fleet_of(database).shards)])


def test_an_emptied_store_gets_its_layout_back(database: Database) -> None:
    bench = Bench(database, shards=5)
    database.pipeline("test", [("DEL", fleet_of(database).shards)])
    bench.store.registry.register("worker", {}, {})
    assert stored(database) == b"5 packed"
    database.pipeline("test", [("HDEL", fleet_of(database).workers, "worker")])


@pytest.fixture
def many(database: Database) -> Bench:
    """Sessions in many shards, whose messages are lost."""
    bench = Bench(database)
    bench.store.housekeeping.sweep(QueueSnapshot())
    for _ in range(SESSIONS):
        bench.session, bench.execution = uuid.uuid4().hex, uuid.uuid4().hex
        bench.submit()
        bench.make_due()
    bench.spy.sent.clear()
    return bench


@pytest.mark.one_server("each server is swept and read by itself")
def test_a_pass_of_the_sweep_looks_at_all_shards_together(many: Bench) -> None:
    assert len(many.store.housekeeping.sweep(QueueSnapshot()).lost) == SESSIONS
    looks = [point for point in many.spy.points if point != "sweep.pass"]
    assert looks == ["sweep.now", "sweep.due", "sweep.claims"]
    many.spy.sent.clear()
    assert many.store.housekeeping.sweep(QueueSnapshot()).lost == ()
    assert many.spy.points == ["sweep.now"], "nothing is due"


@pytest.mark.one_server("each server is swept and read by itself")
def test_shards_share_the_room_for_messages_and_each_comes_first_at_times(many: Bench) -> None:
    first: set[int] = set()
    for _ in range(SESSIONS):
        (lost,) = many.store.housekeeping.sweep(QueueSnapshot(capacity=1)).lost
        first.add(many.store.context.keys(lost.session_id).shard.shard)
        many.session = lost.session_id
        many.make_due()
    assert len(first) > 3


@pytest.mark.one_server("each server is swept and read by itself")
def test_a_pass_looks_at_no_more_than_its_batch(database: Database) -> None:
    bench = Bench(database, sweep_batch=2, shards=2)
    for _ in range(12):
        bench.session, bench.execution = uuid.uuid4().hex, uuid.uuid4().hex
        bench.submit()
        bench.make_due()
    assert len(bench.store.housekeeping.sweep(QueueSnapshot()).lost) <= 2


def test_a_session_that_is_claimed_between_look_and_script_is_left_alone(bench: Bench) -> None:
    bench.make_due()
    bench.spy.before("sweep.pass", bench.claim)
    found = bench.store.housekeeping.sweep(QueueSnapshot())
    assert (found.lost, found.live) == ((), 0)


def test_the_dead_list_has_its_length_in_all_shards_together(database: Database) -> None:
    bench = Bench(database, dead_kept=640)
    entry = DeadEntry(kind="message", reason="x")
    assert entry.command(bench.store.context, bench.shard)[2:5] == ("MAXLEN", "~", 640 // NEW)


@pytest.mark.one_server("each server is swept and read by itself")
def test_listings_ask_all_shards_in_one_round_trip(many: Bench) -> None:
    headers, _ = many.store.sessions.headers(limit=SESSIONS)
    assert len(headers) == SESSIONS
    assert many.spy.points == ["list", "headers"]
    many.spy.sent.clear()
    assert many.store.housekeeping.backlog()[0] == SESSIONS
    assert many.store.requests.count_open().open == 0
    assert many.store.housekeeping.list_dead() == []
    assert many.spy.points == ["backlog.now", "backlog", "requests.count", "dead"]
