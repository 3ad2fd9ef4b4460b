"""Lanes of sessions on every store: each publication names them, and the sweep knows what waits in them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from celery_agents.flow import FairShares
from celery_agents.worker.engine import FirstExecution, first_state
from celery_agents.worker.errors import StateUnreadable
from celery_agents.worker.flow.shares import FIELD, lane_of
from celery_agents.worker.moments import moment
from celery_agents.worker.state import AgentState, Message
from celery_agents.worker.store import Claimed, NextState, QueueSnapshot, StepRef
from celery_agents.worker.store.context import Publisher
from celery_agents.worker.store.control import ControlFields, control_command
from celery_agents.worker.store.database import Command, Database
from celery_agents.worker.store.lanes import lane_key, read_waiting, wait_commands

from support.store import Bench

pytestmark = [
    pytest.mark.leaves_keys("sessions are left in the middle of an execution"),
    pytest.mark.one_server("the queues are in another database"),
]
QUEUE, LANE = "queue:lanes", lane_of("acme")


class LanePublisher(Publisher):
    """Lets steps wait in lanes, without the shares and the turns: who takes these is not the store's business."""

    def commands(self, ref: StepRef, now_ms: int) -> Sequence[Command]:
        return wait_commands(QUEUE, ref, now_ms)[:1]

    def lane_commands(self, ref: StepRef) -> Sequence[Command]:
        return (("LINDEX", lane_key(QUEUE, ref.lane), -1),)

    def count_commands(self, queue: str) -> Sequence[Command]:
        return (("LLEN", QUEUE),)


class Lanes(Bench):
    """A bench whose sessions have a lane."""

    def another(self) -> Any:
        store = super().another()
        object.__setattr__(store.context, "publisher", LanePublisher())
        return store

    def submit_in(self, lane: str, queue: str | None = "") -> None:
        def transition(now_ms: int) -> NextState:
            now, first = moment(now_ms), Message.user("first")
            return first_state(AgentState.fresh(now=now), first, FirstExecution(self.execution, "op"), now)

        self.store.sessions.submit(self.session, "agent", "f", transition, lane=lane, queue=queue)

    def waiting(self, lane: str = LANE) -> list[tuple[StepRef, int]]:
        """What waits in a lane, the oldest first."""
        entries = self.database("LRANGE", lane_key(QUEUE, lane), 0, -1)
        return [read_waiting(each, queue="", lane=lane) for each in reversed(entries)]

    def take(self, lane: str = LANE) -> StepRef:
        *later, oldest = self.database("LRANGE", lane_key(QUEUE, lane), 0, -1)
        self.database("DEL", lane_key(QUEUE, lane))
        for each in later:
            self.database("RPUSH", lane_key(QUEUE, lane), each)
        return read_waiting(oldest, queue="", lane=lane)[0]

    def claim_it(self, ref: StepRef) -> Claimed:
        answer = self.store.steps.claim(ref, uuid.uuid4().hex, "worker", alone=True)
        assert isinstance(answer, Claimed), answer
        return answer

    def control(self) -> ControlFields:
        return ControlFields.read(self.database(*control_command(self.store.context.keys(self.session))))

    def sweep(self, turns_ms: int = 1, offers: Mapping[str, Sequence[str]] | None = None) -> Any:
        self.make_due()
        return self.store.housekeeping.sweep(QueueSnapshot(oldest_ms=turns_ms, offers=offers))


@pytest.fixture(params=["as expected", "the long way"])
def lanes(request: pytest.FixtureRequest, database: Database) -> Lanes:
    bench = Lanes(database) if request.param == "as expected" else Lanes(database, cache_bytes=0)
    for lane in (LANE, "0/acme"):
        database.pipeline("test", [("DEL", lane_key(QUEUE, lane))])
    return bench


def test_every_publication_of_a_session_goes_to_its_lane(lanes: Lanes) -> None:
    lanes.submit_in(LANE)
    assert lanes.control().lane == LANE
    claimed = lanes.claim_it(lanes.take())
    lanes.commit(claimed)
    second = lanes.take()
    assert (second, second.lane) == (lanes.ref(2), LANE)

    lanes.store.steps.release(lanes.claim_it(second).claim, delay_ms=None, give_back=True)
    assert lanes.take().step == 2
    (lost,) = lanes.sweep().lost
    assert (lost, lost.lane) == (lanes.ref(2), LANE)

    lanes.commit(lanes.claim_it(lost), final=True)
    lanes.message("more")
    assert lanes.take().lane == LANE, "a later execution stays in it"


def test_a_lane_that_a_worker_finds_stays_with_the_session(lanes: Lanes) -> None:
    lanes.submit_in("")
    assert lanes.control().lane == ""
    lanes.take("")
    claimed = lanes.claim_it(lanes.ref())
    lanes.commit(replace(claimed, claim=replace(claimed.claim, ref=replace(claimed.claim.ref, lane="0/acme"))))
    assert lanes.control().lane == lanes.take("0/acme").lane == "0/acme"


def test_the_sweep_leaves_what_waits_in_its_lane_and_publishes_what_is_gone(lanes: Lanes) -> None:
    lanes.submit_in(LANE)
    assert (lanes.sweep().lost, lanes.sweep().queued) == ((), 1)
    ref = lanes.take()
    (lost,) = lanes.sweep().lost
    assert (lost, lost.lane) == (ref, LANE)


def test_the_sweep_publishes_what_waits_in_a_lane_where_no_turn_is_left(lanes: Lanes) -> None:
    lanes.submit_in(LANE)
    assert [each.lane for each in lanes.sweep(turns_ms=-1).lost] == [LANE]


def test_a_step_that_was_published_before_the_oldest_of_its_lane_is_lost(lanes: Lanes) -> None:
    lanes.submit_in(LANE)
    lanes.take()
    later = lanes.store.housekeeping.now_ms() + 60_000
    other = StepRef("another", "execution", 1, lane=LANE)
    lanes.store.context.database.pipeline("test", wait_commands(QUEUE, other, later)[:1])
    assert [each.session_id for each in lanes.sweep().lost] == [lanes.session]


def test_a_damaged_entry_of_a_lane_ends_no_sweep(lanes: Lanes) -> None:
    lanes.submit_in(LANE)
    lanes.database("RPUSH", lane_key(QUEUE, LANE), "?")
    assert lanes.sweep().queued == 1
    with pytest.raises(StateUnreadable):
        lanes.waiting()
    lanes.database("DEL", lane_key(QUEUE, LANE))
    assert len(lanes.sweep().lost) == 1


def test_a_session_that_has_waited_for_a_worker_comes_into_its_lane(lanes: Lanes) -> None:
    lanes.submit_in(LANE, queue=None)
    assert lanes.waiting() == []
    assert lanes.store.housekeeping.offer({"agent": [""]}) == 1
    assert lanes.take().lane == LANE


def test_shares_are_set_read_and_removed(lanes: Lanes) -> None:
    flow = lanes.store.flow
    assert flow.view().shares is None
    flow.set_value(FairShares("customer", weights={"acme": 2, "": 0.5}), by="ann")
    stored = flow.view().shares
    assert stored is not None
    assert (stored.label, dict(stored.weights), stored.by) == ("customer", {"acme": 2.0, "": 0.5}, "ann")
    assert flow.remove_value(FIELD)
    assert not flow.remove_value(FIELD)
    assert flow.view().shares is None


def test_what_waits_is_counted_by_share_and_priority(lanes: Lanes) -> None:
    for share, priority in (("acme", "normal"), ("acme", "normal"), ("acme", "bulk"), ("other", "interactive")):
        ref = StepRef("s", "e", 1, lane=lane_of(share, priority))
        lanes.store.context.database.pipeline("test", wait_commands(QUEUE, ref, 1)[:1])
    lanes.database("ZADD", f"{QUEUE}:lanes", 0, "acme", 0, "other")
    assert lanes.store.flow.shares_waiting([QUEUE, "queue:none"]) == {
        "acme": {"normal": 2, "bulk": 1}, "other": {"interactive": 1},
    }  # fmt: skip
    lanes.database("DEL", *(lane_key(QUEUE, lane) for lane in (LANE, "2/acme", "0/other")), f"{QUEUE}:lanes")


def test_a_queue_that_nobody_takes_is_dropped_with_its_lanes(lanes: Lanes) -> None:
    lanes.submit_in(LANE)
    lanes.database("ZADD", f"{QUEUE}:lanes", 0, "acme")
    lanes.database("HSET", f"{QUEUE}:lanes:state", "now", 1)
    lanes.store.housekeeping.drop_queue(QUEUE)
    assert lanes.waiting() == []
    assert lanes.database("EXISTS", f"{QUEUE}:lanes", f"{QUEUE}:lanes:state", QUEUE) == 0
