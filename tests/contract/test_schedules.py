"""Schedules as they are stored, on every store: edits, slots that are taken once, and what a pass of the sweep reads."""

from __future__ import annotations

from typing import Any

import pytest

from celery_agents.flow import Schedule
from celery_agents.worker.flow.slots import decide, look_at_ms, settle
from celery_agents.worker.store.flow.schedules import DueSchedule
from celery_agents.worker.store.housekeeping.sweeps import QueueSnapshot

from support.asking import now_ms
from support.points import Points
from support.store import Bench

pytestmark = pytest.mark.leaves_keys("a session is submitted")

HOUR = 3_600_000


def made(name: str = "nightly", **changes: Any) -> Schedule:
    return Schedule(name, **{"cron": "0 2 * * *", "agent": "report", "message": "Report of {date}", **changes})


def make_due(bench: Bench, name: str = "nightly", late_ms: int = 0) -> None:
    """Let the next slot of a schedule be one of the past."""
    flow, shard = bench.store.flow, bench.store.context.shards[0]
    found = flow.schedule(name)
    assert found is not None
    slot = now_ms(bench) - late_ms
    raw = found.changed(slot_ms=slot - slot % 1000).to_json()
    bench.database("HSET", shard.schedules, name, raw)
    bench.database("ZADD", shard.scheduled, slot - slot % 1000, name)


def due(bench: Bench) -> DueSchedule:
    (found,) = bench.store.flow.due_schedules()
    return found


def take(bench: Bench, found: DueSchedule) -> DueSchedule | None:
    decided = decide(found.status, found.now_ms, lambda _: False)
    return bench.store.flow.change_schedule(found, decided, look_at_ms(decided, found.now_ms))


def test_a_schedule_is_set_read_and_removed(bench: Bench) -> None:
    flow = bench.store.flow
    assert flow.schedules() == []
    flow.set_schedule(made("b"), by="ann")
    flow.set_schedule(made("a"))
    found = flow.schedule("b")
    assert found is not None
    assert (found.schedule, found.by, found.revision, found.submitted) == (made("b"), "ann", 1, 0)
    assert found.slot_ms is not None
    assert 0 < found.slot_ms - now_ms(bench) <= 24 * HOUR
    assert [each.schedule.name for each in flow.schedules()] == ["a", "b"]
    assert flow.remove_schedule("b")
    assert not flow.remove_schedule("b")
    assert flow.schedule("b") is None
    assert bench.database("ZCARD", bench.store.context.shards[0].scheduled) == 1


def test_an_edit_keeps_the_slot_that_has_come_unless_the_time_itself_changes(bench: Bench) -> None:
    flow = bench.store.flow
    flow.set_schedule(made())
    make_due(bench)
    before = due(bench).status
    flow.set_schedule(made(message="another"))
    after = due(bench).status
    assert (after.slot_ms, after.revision, after.schedule.message) == (before.slot_ms, 2, "another")
    flow.set_schedule(made(zone="Asia/Tokyo"))
    assert flow.due_schedules() == []
    found = flow.schedule("nightly")
    assert found is not None
    assert found.slot_ms is not None
    assert found.slot_ms > now_ms(bench)


def test_a_worker_that_was_paused_neither_undoes_an_edit_nor_takes_a_slot_twice(bench: Bench) -> None:
    flow = bench.store.flow
    flow.set_schedule(made())
    make_due(bench)
    paused, other = due(bench), due(bench)
    taken = take(bench, other)
    assert taken is not None
    assert take(bench, paused) is None, "the other has it"
    settled = settle(taken.status, taken.now_ms, session_id="s1")
    assert flow.change_schedule(taken, settled, look_at_ms(settled, taken.now_ms)) is not None
    assert take(bench, paused) is None
    assert flow.change_schedule(taken, settled, 0) is None, "it was noted before"
    assert flow.due_schedules() == []

    make_due(bench)
    paused = due(bench)
    flow.set_schedule(made(agent="other"))
    assert take(bench, paused) is None
    found = flow.schedule("nightly")
    assert found is not None
    assert (found.schedule.agent, found.revision, found.submitted) == ("other", 2, 1)
    flow.remove_schedule("nightly")
    assert take(bench, paused) is None
    assert flow.schedule("nightly") is None


def test_a_slot_that_was_taken_is_due_until_it_is_noted_and_no_edit_changes_it(bench: Bench) -> None:
    flow = bench.store.flow
    flow.set_schedule(made())
    make_due(bench)
    assert take(bench, due(bench)) is not None
    flow.set_schedule(made(message="another"))
    found = due(bench)
    assert found.status.taken is not None
    assert found.status.taken.message.startswith("Report of"), "as it was when the slot was taken"
    flow.put_off_schedule(found, 60_000)
    assert flow.due_schedules() == []


def test_a_change_whose_reply_is_lost_is_seen_by_the_next_read(bench: Bench) -> None:
    flow = bench.store.flow
    flow.set_schedule(made())
    make_due(bench)
    bench.spy.lose(Points.SCHEDULES_CHANGE)
    with pytest.raises(Exception, match="was lost"):
        take(bench, due(bench))
    assert due(bench).status.taken is not None


def test_schedules_of_agents_are_set_once_and_an_edit_stays_until_the_code_changes(bench: Bench) -> None:
    flow, mine = bench.store.flow, [made("a"), made("b")]
    assert flow.deploy_schedules(mine, "deployment") == ["a", "b"]
    assert flow.deploy_schedules(mine, "deployment") == []
    flow.set_schedule(made("a", message="by hand"), by="ann")
    assert flow.deploy_schedules(mine, "deployment") == []
    changed = [made("a", message="of the code"), mine[1]]
    assert flow.deploy_schedules(changed, "deployment") == ["a"]
    found = flow.schedule("a")
    assert found is not None
    assert (found.schedule.message, found.by) == ("of the code", "deployment")


def test_what_is_no_schedule_holds_up_no_other(bench: Bench) -> None:
    flow, shard = bench.store.flow, bench.store.context.shards[0]
    flow.set_schedule(made())
    make_due(bench)
    bench.database("ZADD", shard.scheduled, 1, "gone")
    bench.database("ZADD", shard.scheduled, 1, "unreadable")
    bench.database("HSET", shard.schedules, "unreadable", b'{"schedule": 5}')
    assert [each.status.schedule.name for each in flow.due_schedules()] == ["nightly"]
    assert bench.database("ZSCORE", shard.scheduled, "gone") is None
    assert float(bench.database("ZSCORE", shard.scheduled, "unreadable")) > now_ms(bench)
    assert [each.schedule.name for each in flow.schedules()] == ["nightly"]


def test_the_sweep_sees_that_a_schedule_is_due_in_a_round_trip_that_it_makes_anyway(bench: Bench) -> None:
    bench.store.housekeeping.sweep(QueueSnapshot())
    bench.spy.sent.clear()
    assert not bench.store.housekeeping.sweep(QueueSnapshot()).has_schedules
    without = bench.spy.points
    bench.store.flow.set_schedule(made())
    bench.spy.sent.clear()
    assert not bench.store.housekeeping.sweep(QueueSnapshot()).has_schedules
    assert bench.spy.points == without
    make_due(bench)
    assert bench.store.housekeeping.sweep(QueueSnapshot()).has_schedules


def test_of_many_schedules_a_pass_reads_the_earliest_alone_and_a_hundred_of_those_that_are_due(bench: Bench) -> None:
    """FLOW: they cost the sweep a millisecond at most, which is what it reads of them."""
    flow, shard = bench.store.flow, bench.store.context.shards[0]
    flow.set_schedule(made())
    found = flow.schedule("nightly")
    assert found is not None
    assert found.slot_ms is not None
    names = [f"s{number:03}".encode() for number in range(300)]
    bench.database("HSET", shard.schedules, *(word for name in names for word in (name, found.to_json())))
    bench.database("ZADD", shard.scheduled, *(word for name in names for word in (found.slot_ms, name)))

    def read_of_schedules() -> list[Any]:
        bench.spy.sent.clear()
        bench.store.housekeeping.sweep(QueueSnapshot())
        assert len(flow.due_schedules()) == due_at_once
        sent = [command for _, commands in bench.spy.sent for command in commands]
        return [command for command in sent if {shard.schedules, shard.scheduled} & {*command[1:2]}]

    due_at_once = 0
    earliest, first = ("ZRANGE", shard.scheduled, 0, 0, "WITHSCORES"), ("ZRANGE", shard.scheduled, 0, 99, "WITHSCORES")
    assert read_of_schedules() == [earliest, first]
    bench.database("ZADD", shard.scheduled, *(word for name in names for word in (1, name)))
    due_at_once = 100
    assert read_of_schedules() == [earliest, first, ("HMGET", shard.schedules, *names[:100])]
