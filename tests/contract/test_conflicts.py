"""What comes together: actions beside steps, inbox, release and stop, on every store."""

from __future__ import annotations

import uuid

import pytest

from celery_agents.worker.engine import operation_transition, stop_transition
from celery_agents.worker.errors import (
    ActionRefused,
    StateUnreadable,
)
from celery_agents.worker.state import (
    StopReason,
)
from celery_agents.worker.store import (
    Claimed,
    NextState,
    NotClaimed,
    NotClaimedReason,
    Snapshot,
    StepRef,
)
from celery_agents.worker.store.database import Database, Guard

from support.points import Points
from support.store import Bench, step_transition
from support.wait import wait_until

pytestmark = pytest.mark.leaves_keys("sessions are left in the middle of an execution")


# --- one script instead of WATCH --------------------------------------------------------------------------------------


def test_an_attempt_applies_all_or_nothing(database: Database) -> None:
    key = f"t:{{{uuid.uuid4().hex}}}"
    database.pipeline("test", [("HSET", key, "a", 1)])
    here: Guard = (("HMGET", key, "a", "b"), (1, ""))
    more = [("HSET", key, "a", 5), ("HSET", key, "c", b"\x00\xff"), ("HMGET", key, "a", "c", "d")]
    assert database.compare_and_apply("test", [here, (("EXISTS", f"{key}:other"), (0,))], more) == [
        0,
        1,
        [b"5", b"\x00\xff", None],
    ]
    assert database.compare_and_apply("test", [here], [("HSET", key, "a", 9)]) is None
    assert database.compare_and_apply("test", [(("HMGET", key, "a", "b"), (5, "x"))], [("HSET", key, "a", 9)]) is None
    assert database.pipeline("test", [("HGET", key, "a")]) == [b"5"]


def test_what_is_too_much_for_a_script_is_not_applied_in_part(database: Database) -> None:
    key = f"t:{uuid.uuid4().hex}"
    replies = database.compare_and_apply("test", [], [("RPUSH", key, *range(20_000))])
    (length,) = database.pipeline("test", [("LLEN", key)])
    assert (replies, length) in [(None, 0), ([20_000], 20_000)]


def test_a_key_of_another_type_in_a_script_is_named_as_such(database: Database) -> None:
    key = f"t:{uuid.uuid4().hex}"
    database.pipeline("test", [("SET", key, "x")])
    with pytest.raises(StateUnreadable):
        database.compare_and_apply("test", [], [("HSET", key, "a", 1)])


# --- the inbox --------------------------------------------------------------------------------------------------------


def test_a_message_to_a_running_step_waits_for_its_commit(bench: Bench) -> None:
    claimed = bench.claim()
    applied = bench.message("more")
    assert applied.outcome == "queued"
    assert bench.store.sessions.load(bench.session).version == 1
    committed = bench.commit(claimed)
    assert [message.content for message in committed.state.messages] == ["first", "text", "more"]
    assert bench.snapshot()[2] == []


def test_a_message_to_a_step_that_nobody_runs_joins_at_once(bench: Bench) -> None:
    applied = bench.message("more")
    assert (applied.outcome, applied.execution_id, applied.publish) == ("joined", bench.execution, None)
    assert [message.content for message in bench.store.sessions.load(bench.session).state.messages] == ["first", "more"]


def test_a_message_that_comes_too_late_starts_the_next_execution_in_the_final_commit(bench: Bench) -> None:
    claimed = bench.claim()
    bench.message("late")
    committed = bench.commit(claimed, final=True)
    assert committed.next is not None
    assert committed.next.execution_id != bench.execution
    assert committed.next.step == 1
    assert bench.due() is not None
    record = bench.store.sessions.record(bench.session, bench.execution)
    assert record is not None
    assert record.status == "completed"
    keys = bench.store.context.keys(bench.session)
    assert bench.database("PTTL", keys.session) == -1


def test_a_message_between_the_commits_read_and_its_transaction_is_not_stranded(bench: Bench) -> None:
    claimed = bench.claim()
    bench.spy.before(bench.commits_at, lambda: bench.message("in between"))
    committed = bench.commit(claimed, final=True)
    assert committed.next is not None
    assert "in between" in [message.content for message in committed.state.messages]


def test_a_message_to_an_ended_session_starts_the_next_execution_and_takes_the_life_off(bench: Bench) -> None:
    bench.commit(bench.claim(), final=True)
    applied = bench.message("again")
    assert applied.outcome == "started"
    assert applied.publish == StepRef(bench.session, applied.execution_id, 1)
    keys = bench.store.context.keys(bench.session)
    lasting = [keys.session, keys.ctl, keys.events, keys.section("messages", 0), keys.steps(bench.execution)]
    assert [bench.database("PTTL", name) for name in lasting] == [-1] * len(lasting)


@pytest.mark.parametrize("when", ["running", "idle", "ended"])
def test_the_same_operation_is_applied_once(bench: Bench, when: str) -> None:
    claimed = bench.claim() if when != "idle" else None
    if when == "ended":
        assert claimed is not None
        bench.commit(claimed, final=True)
    bench.message("once", "operation-1")
    assert bench.message("once", "operation-1").outcome == "again"
    if when == "running":
        assert claimed is not None
        bench.commit(claimed)
    assert bench.message("once", "operation-1").outcome == "again"
    contents = [message.content for message in bench.store.sessions.load(bench.session).state.messages]
    assert contents.count("once") == 1


@pytest.mark.parametrize("point", [Points.ACT_READ, Points.ACT_EXEC])
def test_a_lost_reply_to_an_action_applies_it_once(bench: Bench, point: str) -> None:
    bench.spy.lose(point)
    bench.message("once")
    contents = [message.content for message in bench.store.sessions.load(bench.session).state.messages]
    assert contents.count("once") == 1


def test_a_lost_reply_to_a_queued_action_queues_it_once(bench: Bench) -> None:
    claimed = bench.claim()
    bench.spy.lose(Points.ACT_PUSH)
    bench.message("once")
    contents = [message.content for message in bench.commit(claimed).state.messages]
    assert contents.count("once") == 1


def test_a_full_inbox_refuses(database: Database) -> None:
    bench = Bench(database, inbox_limit=2)
    bench.submit()
    bench.claim()
    bench.message("one")
    bench.message("two")
    with pytest.raises(ActionRefused):
        bench.message("three")


# --- release ----------------------------------------------------------------------------------------------------------


def test_a_released_step_is_free_at_once(bench: Bench) -> None:
    claim = bench.claim().claim
    assert bench.store.steps.release(claim, delay_ms=None, give_back=True) == bench.ref(1)
    assert bench.claim().claim.attempt == 1
    assert bench.store.steps.renew([claim])[0].alive is False


def test_a_release_that_does_not_give_back_counts(bench: Bench) -> None:
    bench.store.steps.release(bench.claim().claim, delay_ms=None, give_back=False)
    assert bench.claim().claim.attempt == 2


def test_a_delayed_step_is_not_claimed_before_its_time(bench: Bench) -> None:
    claim = bench.claim().claim
    assert bench.store.steps.release(claim, delay_ms=300, give_back=True) is None
    assert bench.answer() == NotClaimed(NotClaimedReason.NOT_YET)
    claimed = wait_until(lambda: a if isinstance(a := bench.answer(), Claimed) else None, "its time comes", 5)
    assert (claimed.claim.attempt, claimed.loaded.delays) == (1, 1)


def test_a_release_by_whoever_lost_the_claim_changes_nothing(bench: Bench) -> None:
    slept = bench.claim().claim
    bench.end_lease(slept)
    bench.claim()
    before = bench.snapshot()
    assert bench.store.steps.release(slept, delay_ms=None, give_back=True) is None
    assert bench.snapshot() == before


# --- stop -------------------------------------------------------------------------------------------------------------


def test_a_stop_ends_what_nobody_runs_in_its_own_transaction(bench: Bench) -> None:
    applied = bench.store.sessions.stop(bench.session, None, stop_transition)
    assert (applied.outcome, applied.execution_id) == ("changed", bench.execution)
    record = bench.store.sessions.record(bench.session, bench.execution)
    assert record is not None
    assert (record.status, record.stop_reason) == ("stopped", StopReason.USER_REQUESTED.value)
    assert bench.due() is None


def test_a_stop_asks_whoever_runs_the_step(bench: Bench) -> None:
    claimed = bench.claim()
    assert bench.store.sessions.stop(bench.session, None, stop_transition).outcome == "queued"
    seen: list[str | None] = []

    def transition(fresh: Snapshot) -> NextState:
        seen.append(fresh.cancel)
        return step_transition(claimed, final=True)(fresh)

    bench.store.steps.commit(claimed.claim, claimed.loaded, transition, results={}, keep_claim=False)
    assert seen[-1] == bench.execution


def test_a_stop_never_drops_what_a_dead_worker_has_obtained(bench: Bench) -> None:
    claim = bench.claim().claim
    bench.store.steps.record_answer(claim, b"paid")
    bench.end_lease(claim)
    applied = bench.store.sessions.stop(bench.session, None, stop_transition)
    assert (applied.outcome, applied.publish) == ("queued", bench.ref(1))
    claimed = bench.claim()
    assert claimed.loaded.cancel == bench.execution
    assert claimed.loaded.journal.answer == b"paid"


def test_a_stop_without_anything_obtained_leaves_no_journal_for_ever(bench: Bench) -> None:
    claim = bench.claim().claim
    bench.end_lease(claim)
    assert bench.store.sessions.stop(bench.session, None, stop_transition).outcome == "changed"
    assert bench.database("PTTL", bench.store.context.keys(bench.session).journal(bench.execution, 1)) != -1


def test_a_stop_of_another_execution_or_of_an_ended_one_is_nothing(bench: Bench) -> None:
    before = bench.snapshot()
    assert bench.store.sessions.stop(bench.session, "another", stop_transition).outcome == "again"
    assert bench.snapshot() == before
    bench.store.sessions.stop(bench.session, None, stop_transition)
    assert bench.store.sessions.stop(bench.session, None, stop_transition).outcome == "again"


def test_a_lost_reply_to_a_stop_stops_once(bench: Bench) -> None:
    bench.spy.lose(Points.STOP_EXEC)
    assert bench.store.sessions.stop(bench.session, None, stop_transition).outcome == "changed"
    assert bench.store.sessions.header(bench.session).version == 2
    assert bench.store.sessions.stop(bench.session, None, stop_transition).outcome == "again"


def test_a_lost_reply_to_a_stop_does_not_stop_the_execution_that_follows(bench: Bench) -> None:
    claimed = bench.claim()
    bench.message("and then?")
    bench.end_lease(claimed.claim)

    def go_on() -> None:
        bench.store.sessions.release_queue(bench.session, "r1", operation_transition)

    bench.spy.lose(Points.STOP_EXEC)
    bench.spy.before(Points.STOP_EXEC, lambda: bench.spy.before(Points.STOP_READ, go_on))
    bench.store.sessions.stop(bench.session, None, stop_transition)
    header = bench.store.sessions.header(bench.session)
    assert header.execution_id != bench.execution
    assert header.status == "pending"


def test_a_step_that_was_asked_to_stop_and_has_ended_before_the_lost_reply_was_missed_was_asked(bench: Bench) -> None:
    claimed = bench.claim()
    bench.spy.lose(Points.STOP_ASK)
    bench.spy.before(
        Points.STOP_ASK, lambda: bench.spy.before(Points.STOP_READ, lambda: bench.commit(claimed, final=True))
    )
    assert bench.store.sessions.stop(bench.session, None, stop_transition).outcome == "queued"
