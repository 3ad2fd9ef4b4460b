"""Which execution a message has become part of, for those who hold its handle."""

from __future__ import annotations

import dataclasses
import uuid
from dataclasses import replace

import pytest

from celery_agents.tasks.client.job import Job
from celery_agents.worker.engine import operation_transition
from celery_agents.worker.errors import ActionRefused, IdempotencyMismatch
from celery_agents.worker.state import ExecutionBudget
from celery_agents.worker.store import ActionResult, InboxKind, Operation, new_change_id
from celery_agents.worker.store.memory.database import MemoryDatabase
from celery_agents.worker.store.records import MessageMode

from support.store import Bench, an_operation

pytestmark = pytest.mark.leaves_keys("sessions are left in the middle of an execution")


def test_a_handle_finds_its_execution_after_the_events_are_gone(bench: Bench) -> None:
    """Redis keeps the last events only, and fewer of them when it is full."""
    claimed = bench.claim()
    assert bench.message("more", "m1").outcome == "queued"
    job = Job(bench.store, bench.session, operation_id="m1")
    assert job.execution_id == ""
    bench.commit(claimed)
    bench.database("XTRIM", bench.store.context.keys(bench.session).events, "MAXLEN", 0)
    assert bench.store.sessions.events(bench.session) == []
    assert job.execution_id == bench.execution


def test_a_message_that_starts_an_execution_is_part_of_it(bench: Bench) -> None:
    bench.commit(bench.claim(), final=True)
    started = bench.message("the next", "m1").execution_id
    assert started not in ("", bench.execution)
    assert bench.store.sessions.read_joined(bench.session, "m1") == started
    assert bench.store.sessions.read_joined(bench.session, "op-first") == bench.execution
    assert bench.store.sessions.read_joined(bench.session, "never sent") == ""


def test_operations_that_are_too_many_leave_nothing_behind() -> None:
    bench = Bench(MemoryDatabase(), operations_kept=8)
    bench.submit()
    for number in range(20):
        claimed = bench.claim(number + 1)
        bench.message("more", f"m{number}")
        bench.commit(claimed)
    names = bench.database("HGETALL", bench.store.context.keys(bench.session).session)[::2]
    assert sorted(name for name in names if name.startswith(b"o:")) == sorted(b"o:m%d" % n for n in range(12, 20))


def act(bench: Bench, operation: Operation) -> ActionResult:
    return bench.store.sessions.act(bench.session, operation, operation_transition)


def keyed(text: str, digest: str, operation: str = "m1") -> Operation:
    return dataclasses.replace(an_operation(text, operation), fingerprint=digest)


def texts(bench: Bench) -> list[str]:
    return [each.content for each in bench.store.sessions.load(bench.session).state.messages]


def run_idle(bench: Bench) -> None:
    bench.commit(bench.claim(), final=True)


@pytest.mark.parametrize("is_running", [True, False])
def test_another_message_under_the_id_of_one_is_refused_and_changes_nothing(bench: Bench, is_running: bool) -> None:
    claimed = bench.claim()
    if not is_running:
        bench.commit(claimed, final=True)
    act(bench, keyed("the first", "1:aa"))
    before = bench.snapshot()
    with pytest.raises(IdempotencyMismatch, match="another message or budget"):
        act(bench, keyed("the second", "1:bb"))
    assert bench.snapshot() == before
    assert act(bench, keyed("the first", "1:aa")).outcome == "again"
    if is_running:
        bench.commit(claimed)
        with pytest.raises(IdempotencyMismatch):
            act(bench, keyed("the second", "1:bb"))


def test_an_id_whose_digest_nobody_can_compare_is_the_same_message(bench: Bench) -> None:
    """It was used before the upgrade, by a client of another version, or without an idempotency key."""
    bench.claim()
    act(bench, keyed("the first", ""))
    assert act(bench, keyed("the second", "1:bb")).outcome == "again"
    act(bench, keyed("the third", "9:cc", "m3"))
    assert act(bench, keyed("the third", "1:dd", "m3")).outcome == "again"
    assert act(bench, keyed("the third", "", "m3")).outcome == "again"


@pytest.mark.parametrize("is_running", [True, False])
def test_changes_do_not_push_out_the_ids_of_messages(bench: Bench, is_running: bool) -> None:
    claimed = bench.claim()
    if not is_running:
        bench.commit(claimed, final=True)
    message = an_operation("only once", "m1")
    act(bench, message)
    for number in range(140):
        act(bench, Operation(new_change_id(), InboxKind.METADATA, {"key": "progress", "value": number}))
    if is_running:
        bench.commit(claimed)
    assert act(bench, message).outcome == "again"
    assert texts(bench).count("only once") == 1


def test_few_changes_are_remembered_and_leave_nothing_behind(bench: Bench) -> None:
    run_idle(bench)
    changes = [Operation(new_change_id(), InboxKind.METADATA, {"key": "n", "value": n}) for n in range(40)]
    for change in changes:
        act(bench, change)
    assert act(bench, changes[-1]).outcome == "again"
    assert act(bench, changes[0]).outcome != "again"
    names = bench.database("HGETALL", bench.store.context.keys(bench.session).session)[::2]
    assert len([name for name in names if name.startswith(b"o:change-")]) <= 32


def test_what_is_kept_of_an_idempotency_key_goes_with_its_message() -> None:
    bench = Bench(MemoryDatabase(), operations_kept=8)
    bench.submit()
    run_idle(bench)
    for number in range(20):
        act(bench, keyed("more", "1:aa", f"m{number}"))
    names = bench.database("HGETALL", bench.store.context.keys(bench.session).session)[::2]
    assert sorted(name for name in names if name.startswith(b"f:")) == sorted(b"f:m%d" % n for n in range(12, 20))


@pytest.mark.parametrize("is_claimed", [True, False])
def test_a_message_with_a_budget_is_refused_while_an_execution_has_another_one(bench: Bench, is_claimed: bool) -> None:
    claimed = bench.claim() if is_claimed else None
    budget = ExecutionBudget(max_steps=3)
    plain = an_operation("more", "m1")
    message = dataclasses.replace(plain, payload={**plain.payload, "budget": budget.to_dict()})
    before = bench.snapshot()
    with pytest.raises(ActionRefused, match="change that one's limits"):
        act(bench, message)
    assert bench.snapshot() == before
    bench.commit(claimed or bench.claim(), final=True)
    assert act(bench, message).outcome == "started"
    execution = bench.store.sessions.load(bench.session).state.execution
    assert execution is not None
    assert execution.budget == budget
    assert act(bench, message).outcome == "again", "a lost reply is no refusal"


def with_budget(budget: ExecutionBudget, when: str = "") -> Operation:
    plain = an_operation("more", "m1", when=when)
    return dataclasses.replace(plain, payload={**plain.payload, "budget": budget.to_dict()})


def test_a_parked_session_takes_no_message_with_a_budget_but_behind_its_execution(bench: Bench) -> None:
    bench.store.steps.park(bench.ref(), "nobody offers the agent")
    before = bench.snapshot()
    with pytest.raises(ActionRefused, match="change that one's limits"):
        act(bench, with_budget(ExecutionBudget(max_steps=3)))
    assert bench.snapshot() == before
    assert act(bench, with_budget(ExecutionBudget(max_steps=3), "queue")).placed == "queued"


def test_a_queued_message_with_a_budget_does_not_join_the_execution_that_runs(bench: Bench) -> None:
    claimed = bench.claim()
    act(bench, with_budget(ExecutionBudget(max_steps=3), "queue"))
    before = bench.snapshot()
    for mode in (MessageMode.STEER, MessageMode.INTERRUPT):
        with pytest.raises(ActionRefused, match="change that one's limits"):
            bench.set_mode("m1", mode)
    assert bench.snapshot() == before
    bench.stop()
    bench.commit(claimed, final=True)
    assert bench.queue[1], "the stop holds it"
    assert bench.set_mode("m1", MessageMode.STEER).placed == "starts"
    execution = bench.store.sessions.load(bench.session).state.execution
    assert execution is not None
    assert execution.budget == ExecutionBudget(max_steps=3)


def test_a_change_behind_an_end_tells_nobody_of_it_again(bench: Bench) -> None:
    bench.session, bench.execution = uuid.uuid4().hex, uuid.uuid4().hex
    bench.submit(notify={"webhook": "http://localhost/hook"})
    bench.commit(bench.claim(), final=True)
    (note,) = bench.database("ZRANGE", bench.shard.callbacks, 0, -1)
    bench.database("ZREM", bench.shard.callbacks, note)  # the callback was made
    record = bench.store.sessions.outcome(bench.session, bench.execution)
    metadata = Operation("a-change", InboxKind.METADATA, {"key": "seen", "value": True})
    bench.store.sessions.act(bench.session, metadata, operation_transition)
    stored = bench.store.sessions.load(bench.session)
    bench.store.sessions.save(bench.session, replace(stored, status="suspended"))
    assert bench.database("ZRANGE", bench.shard.callbacks, 0, -1) == []
    assert bench.store.sessions.outcome(bench.session, bench.execution) == record
