"""Queues of agents, and sessions whose agent no live worker offers, on every store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from celery_agents.flow import ConcurrencyLimit
from celery_agents.worker.engine import retry_transition, stop_transition
from celery_agents.worker.flow.concurrency import LimitPart
from celery_agents.worker.store import Claim, Claimed, QueueSnapshot, StepRef, offered_queues
from celery_agents.worker.store.context import Publisher
from celery_agents.worker.store.control import ControlFields, control_command, read_unoffered
from celery_agents.worker.store.database import Command, Database
from celery_agents.worker.store.flow.holders import Holder, NoneFree

from support.points import Points
from support.store import Bench, step_transition
from support.wait import wait_until

pytestmark = [
    pytest.mark.leaves_keys("sessions are left in the middle of an execution"),
    pytest.mark.one_server("the queues are in another database"),
]

GRACE_MS = 86_400_000


class RecordingPublisher(Publisher):
    """Publishes into lists named after the queues, one for each."""

    def commands(self, ref: StepRef, now_ms: int) -> Sequence[Command]:
        return (("RPUSH", f"queue:{ref.queue}", f"{ref.execution_id}.{ref.step}"),)

    def next_commands(self, queue: str) -> Sequence[Command]:
        return (("LINDEX", f"queue:{queue}", 0),)

    def commands_in_front(self, ref: StepRef, now_ms: int, following: bytes | None) -> Sequence[Command]:
        before = "" if following is None else f" before {following.decode()}"
        return (("LPUSH", f"queue:{ref.queue}", f"{ref.execution_id}.{ref.step}{before}"),)

    def count_commands(self, queue: str) -> Sequence[Command]:
        return (("LLEN", f"queue:{queue}"),)


class Queues(Bench):
    """A bench whose messages can be looked at."""

    def another(self) -> Any:
        store = super().another()
        object.__setattr__(store.context, "publisher", RecordingPublisher())
        return store

    def messages(self, queue: str) -> list[str]:
        """Take the messages of a queue out."""
        found = [message.decode() for message in self.database("LRANGE", f"queue:{queue}", 0, -1)]
        self.database("DEL", f"queue:{queue}")
        return [message.partition(".")[2] for message in found if message.startswith(self.execution)]

    def claim_from(self, queue: str, step: int = 1) -> Claimed:
        answer = self.store.steps.claim(replace(self.ref(step), queue=queue), f"claim-{step}", "worker", alone=True)
        assert isinstance(answer, Claimed), answer
        return answer

    def control(self) -> ControlFields:
        return ControlFields.read(self.database(*control_command(self.store.context.keys(self.session))))

    def sweep(self, offers: dict[str, Sequence[str]] | None, **queue: Any) -> Any:
        return self.store.housekeeping.sweep(QueueSnapshot(offers=offers, **queue))

    def parked_reasons(self) -> list[str]:
        return [entry["reason"] for entry in self.store.housekeeping.list_dead() if entry["session"] == self.session]


@pytest.fixture(params=["as expected", "the long way"])
def queues(request: pytest.FixtureRequest, database: Database) -> Queues:
    quick = Queues(database) if request.param == "as expected" else Queues(database, cache_bytes=0)
    for name in ("", "gpu", "@group"):
        database.pipeline("test", [("DEL", f"queue:{name}")])
    return quick


def wait_until_parked(queues: Queues, offers: dict[str, Sequence[str]]) -> None:
    def is_parked() -> bool:
        queues.sweep(offers)
        return queues.store.sessions.header(queues.session).status == "parked"

    wait_until(is_parked, "the grace period is over", 5)


# --- a queue of its own -----------------------------------------------------------------------------------------------


def test_every_publication_of_a_session_goes_to_its_queue(queues: Queues) -> None:
    queues.submit(queue="gpu")
    assert queues.messages("gpu") == ["1"]
    claimed = queues.claim_from("gpu")
    queues.commit(claimed)
    assert queues.messages("gpu") == ["2"]

    second = queues.claim_from("gpu", 2)
    queues.store.steps.release(second.claim, delay_ms=None, give_back=True)
    assert queues.messages("gpu") == ["2"]

    queues.make_due()
    (lost,) = queues.sweep(None).lost
    assert lost.queue == "gpu"

    queues.store.sessions.stop(queues.session, None, stop_transition)
    queues.store.sessions.retry(queues.session, retry_transition(None))
    assert queues.messages("gpu") == ["2"]
    assert queues.messages("") == []
    assert queues.control().queue == "gpu"


def test_a_session_of_the_common_queue_stores_no_queue(queues: Queues) -> None:
    queues.submit()
    queues.commit(queues.claim_from(""))
    fields = queues.database("HGETALL", queues.store.context.keys(queues.session).ctl)[::2]
    assert b"queue" not in fields
    assert b"unoffered" not in fields
    assert queues.messages("") == ["1", "2"]


def test_a_message_is_looked_for_in_its_own_queue_before_it_counts_as_lost(queues: Queues) -> None:
    queues.submit(queue="gpu")
    queues.make_due()
    found = queues.sweep({"agent": ["gpu"]}, named={"gpu": 1})
    assert (found.lost, found.queued) == ((), 1)
    queues.make_due()
    (lost,) = queues.sweep({"agent": ["gpu"]}, oldest_ms=1, named={"gpu": -1}).lost
    assert lost.queue == "gpu"


def test_a_session_whose_queue_nobody_takes_any_more_is_moved_by_the_sweep(queues: Queues) -> None:
    queues.submit(queue="gpu")
    queues.make_due()
    (lost,) = queues.sweep({"agent": ["", "@group"]}, oldest_ms=1, named={"gpu": 1}).lost
    assert lost.queue == ""
    assert queues.control().queue == ""


def test_the_sweep_names_the_queue_that_a_session_was_moved_from(queues: Queues) -> None:
    queues.submit(queue="@before")
    queues.make_due()
    assert queues.sweep({"agent": ["", "@group"]}).left == {"@before"}
    queues.make_due()
    assert queues.sweep({"agent": ["", "@group"]}).left == frozenset()


# --- a worker that does not offer the agent ---------------------------------------------------------------------------


def test_a_step_is_moved_to_another_queue_in_one_round_trip_and_stays_there(queues: Queues) -> None:
    queues.submit()
    queues.messages("")
    claimed = queues.claim_from("")
    queues.spy.sent.clear()
    queues.store.steps.move(claimed.claim, "@group")
    assert queues.spy.points == [Points.MOVE_ATTEMPT]
    assert queues.messages("@group") == ["1"]
    assert (queues.control().claim, queues.control().attempts, queues.control().queue) == ("", 0, "@group")
    assert queues.claims_made(1) == 0, "no model call was made"

    queues.commit(queues.claim_from("@group"))
    assert queues.messages("@group") == ["2"]
    assert queues.messages("") == []


def test_a_claim_that_another_worker_took_over_moves_nothing(queues: Queues) -> None:
    queues.submit()
    claimed = queues.claim_from("")
    queues.end_lease(claimed.claim)
    queues.store.steps.claim(queues.ref(), "mine", "other", alone=True)
    queues.store.steps.move(claimed.claim, "@group")
    queues.store.steps.wait_for_worker(claimed.claim, "agent")
    assert (queues.control().claim, queues.control().queue, queues.control().unoffered) == ("mine", "", "")


# --- nobody offers the agent ------------------------------------------------------------------------------------------


def test_a_job_of_an_agent_that_nobody_has_registered_is_due_without_a_message_until_one_does(queues: Queues) -> None:
    queues.submit(queue=None)
    assert queues.messages("") == []
    assert queues.due() is not None
    assert queues.store.housekeeping.count_unoffered() == {"agent": 1}
    assert queues.store.sessions.header(queues.session).unoffered_since_ms > 0
    assert "waiting_for_worker" in [event.type for event in queues.store.sessions.events(queues.session)]

    assert queues.store.housekeeping.offer({"other": [""]}) == 0
    assert queues.store.housekeeping.offer({"agent": ["gpu", "@group"]}) == 1
    assert queues.messages("gpu") == ["1"]
    assert queues.sweep({"agent": ["gpu", "@group"]}).lost == (), "it is published already"
    assert queues.control().queue == "gpu"
    assert queues.store.housekeeping.count_unoffered() == {}
    assert queues.store.sessions.header(queues.session).unoffered_since_ms == 0
    queues.commit(queues.claim_from("gpu"), final=True)
    assert queues.store.sessions.header(queues.session).status == "completed"


def test_a_step_that_nobody_can_run_waits_and_keeps_no_trace_of_the_claim(queues: Queues) -> None:
    queues.submit()
    assert queues.messages("") == ["1"]
    claimed = queues.claim_from("")
    queues.store.steps.wait_for_worker(claimed.claim, "agent")
    control = queues.control()
    assert (control.claim, control.attempts) == ("", 0)
    assert read_unoffered(control.unoffered)[1] == "agent"
    assert queues.store.housekeeping.count_unoffered() == {"agent": 1}
    queues.store.housekeeping.offer({"agent": [""]})
    assert queues.messages("") == ["1"]
    assert queues.sweep({"agent": [""]}).lost == ()


def test_a_registration_publishes_at_once_though_redis_has_just_started(queues: Queues) -> None:
    queues.clock.up_for = 0.1  # the sweep waits for the holders of leases, and nobody holds one of this step
    queues.submit(queue=None)
    queues.store.housekeeping.offer({"agent": [""]})
    assert queues.messages("") == ["1"]
    queues.clock.up_for = 1e9
    queues.make_due()
    (lost,) = queues.sweep({"agent": [""]}).lost
    assert lost.step == 1, "a message that was lost is published again"


def test_where_the_queue_is_elsewhere_the_sweep_publishes_what_a_registration_frees(queues: Queues) -> None:
    object.__setattr__(queues.store.context, "publisher", Publisher())
    queues.submit(queue=None)
    assert queues.store.housekeeping.offer({"agent": [""]}) == 1
    (lost,) = queues.sweep({"agent": [""]}).lost
    assert (lost.step, lost.queue) == (1, "")


def test_a_session_that_is_held_or_was_put_off_is_not_published_by_a_registration(queues: Queues) -> None:
    queues.submit(queue=None)
    queues.store.sessions.suspend(queues.session, reason="a look", by="", until_ms=None)
    assert queues.store.housekeeping.offer({"agent": [""]}) == 1
    assert queues.messages("") == []
    queues.store.sessions.resume(queues.session, by="")
    assert queues.messages("") == ["1"]


def test_the_sweep_publishes_no_step_that_no_live_worker_could_run(queues: Queues) -> None:
    queues.submit()
    queues.make_due()
    found = queues.sweep({"other": [""]})
    assert (found.lost, found.queued) == ((), 0)
    assert queues.store.housekeeping.count_unoffered() == {"agent": 1}
    queues.make_due()
    assert len(queues.sweep({"agent": [""]}).lost) == 1
    assert queues.store.housekeeping.count_unoffered() == {}
    assert queues.control().unoffered == ""


def test_a_session_is_parked_after_the_grace_period_and_comes_back_by_itself(database: Database) -> None:
    queues = Queues(database, agent_grace_seconds=0.02)
    queues.submit(queue=None)
    wait_until_parked(queues, {"other": [""]})
    assert queues.due() is None
    assert queues.parked_reasons() == ["no worker has offered agent 'agent' for 0:00:00"]

    assert queues.store.housekeeping.offer({"agent": [""]}) == 1
    assert queues.store.sessions.header(queues.session).status == "pending"
    assert queues.messages("") == ["1"]
    queues.commit(queues.claim_from(""), final=True)
    assert queues.store.sessions.header(queues.session).status == "completed"


def test_the_grace_period_counts_from_the_first_time(queues: Queues) -> None:
    queues.submit(queue=None)
    since = read_unoffered(queues.control().unoffered)[0]
    queues.make_due()
    queues.sweep({})
    assert read_unoffered(queues.control().unoffered)[0] == since
    due = queues.due()
    assert due == since + GRACE_MS


def test_a_waiting_session_can_be_stopped_and_leaves_the_index(queues: Queues) -> None:
    queues.submit(queue=None)
    assert queues.store.sessions.stop(queues.session, None, stop_transition).outcome == "changed"
    assert queues.store.housekeeping.count_unoffered() == {}
    assert queues.store.housekeeping.offer({"agent": [""]}) == 0


def test_a_parked_session_that_is_retried_leaves_the_index(database: Database) -> None:
    queues = Queues(database, agent_grace_seconds=0.02)
    queues.submit(queue=None)
    wait_until_parked(queues, {})
    queues.store.sessions.retry(queues.session, retry_transition(None))
    assert queues.store.housekeeping.count_unoffered() == {}
    assert queues.control().phase == "run"


def test_agents_whose_names_begin_alike_are_told_apart(queues: Queues) -> None:
    queues.submit(queue=None)
    for agent in ("agen", "agent-2", "agent_2"):
        assert queues.store.housekeeping.offer({agent: [""]}) == 0
    assert queues.store.housekeeping.count_unoffered() == {"agent": 1}


def test_a_control_field_that_somebody_has_damaged_ends_no_pass(queues: Queues) -> None:
    queues.submit(queue=None)
    keys = queues.store.context.keys(queues.session)
    queues.database("HSET", keys.ctl, "unoffered", "soon\x00")
    queues.make_due()
    queues.sweep({})
    assert queues.store.housekeeping.count_unoffered() == {"agent": 1}
    queues.database("HSET", keys.ctl, "unoffered", "later")
    queues.make_due()
    assert len(queues.sweep({"agent": [""]}).lost) == 1


# --- the registry -----------------------------------------------------------------------------------------------------


def test_the_registry_tells_the_queue_of_an_agent(queues: Queues) -> None:
    registry = queues.store.registry
    assert registry.queue_of("painter") is None
    registry.register("w", {"agent_queues": {"painter": "gpu"}}, {"painter": "hash", "clerk": "hash"})
    assert (registry.queue_of("painter"), registry.queue_of("clerk")) == ("gpu", "")
    registry.unregister("w")
    queues.database("DEL", "ca:agents")


def test_a_new_session_goes_to_the_only_worker_group_that_offers_its_agent(queues: Queues) -> None:
    registry = queues.store.registry
    assert registry.queue_for_new("painter") is None
    taking = {"queues": ["", "@one"], "group": "@one"}
    registry.register("one", taking, {"painter": "hash"})
    assert registry.queue_for_new("painter") == ""  # nobody else would take it from the common queue
    registry.register("two", {"queues": ["", "@two"], "group": "@two"}, {"clerk": "hash"})
    assert (registry.queue_for_new("painter"), registry.queue_for_new("clerk")) == ("@one", "@two")
    registry.register("new", {"queues": ["", "@new"], "group": "@new"}, {"painter": "hash", "guide": "hash"})
    assert registry.queue_for_new("painter") == ""  # two groups offer it, as while a version is replaced
    registry.register("one", {**taking, "draining": True}, {"painter": "hash"})
    assert registry.queue_for_new("painter") == "@new"
    registry.register("new", {"queues": [""], "group": "@new"}, {"painter": "hash", "guide": "hash"})
    assert registry.queue_for_new("painter") == ""  # it does not take the queue of its group
    registry.register("new", {"queues": ["", "gpu"], "agent_queues": {"painter": "gpu"}}, {"painter": "hash"})
    assert registry.queue_for_new("painter") == "gpu"
    for worker in ("one", "two", "new"):
        registry.unregister(worker)
    queues.database("DEL", "ca:agents")


def test_an_offer_names_the_agents_own_queue_first_and_a_draining_worker_last() -> None:
    def facts(queues: list[str], **more: Any) -> dict[str, Any]:
        return {"draining": False, "agents": {"painter": "h"}, "queues": queues, "agent_queues": {}, **more}

    workers = {
        "leaving": facts(["@old"], draining=True),
        "one": facts(["", "@new", "gpu"], agent_queues={"painter": "gpu"}),
    }
    assert offered_queues(workers) == {"painter": ("gpu", "", "@new", "@old")}


def test_a_worker_of_a_version_without_queues_takes_the_common_one(queues: Queues) -> None:
    queues.store.registry.register("old", {"slots": 1}, {"clerk": "hash"})
    assert queues.store.registry.offers() == {"clerk": ("",)}
    queues.store.registry.unregister("old")
    queues.database("DEL", "ca:agents")


def test_a_commit_on_both_ways_keeps_the_queue(queues: Queues) -> None:
    queues.submit(queue="gpu")
    queues.messages("gpu")
    claimed = queues.claim_from("gpu")
    transition = step_transition(claimed, final=False)
    committed = queues.store.steps.commit(claimed.claim, claimed.loaded, transition, results={}, keep_claim=True)
    assert committed.carried is not None
    assert committed.carried.claim.ref.queue == "gpu"


def put_off(queues: Queues, claim: Claim) -> None:
    cause = LimitPart("crm").cause
    queues.store.steps.release(claim, delay_ms=60_000, give_back=True, reason="it waits", put_off=cause)


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_step_that_was_called_goes_in_front_of_its_queue(queues: Queues, is_empty: bool) -> None:
    flow = queues.store.flow
    queues.submit(queue="gpu")
    claim = queues.claim_from("gpu").claim
    waiting = Holder(claim.id, queues.session, (LimitPart("crm"),), since_ms=(0,), claimed_ms=claim.now_ms)
    assert isinstance(flow.take_holder(waiting, lease_ms=60_000), NoneFree)
    put_off(queues, claim)
    queues.database("DEL", "queue:gpu")
    if not is_empty:
        queues.database("RPUSH", "queue:gpu", "other")
    flow.set_value(ConcurrencyLimit("crm", total=1))
    flow.call_waiting()
    assert queues.messages("gpu") == (["1"] if is_empty else ["1 before other"])


def test_a_step_that_may_go_when_it_has_been_put_off_goes_in_front_of_its_queue(queues: Queues) -> None:
    queues.submit(queue="gpu")
    claimed = queues.claim_from("gpu")
    queues.messages("gpu")
    queues.database("RPUSH", "queue:gpu", "other")
    put_off(queues, claimed.claim)
    assert queues.messages("gpu") == ["1 before other"]
