"""A held session begins nothing until it is resumed, and a later start begins nothing before its time."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from celery_agents.worker.engine import FirstExecution, first_state, stop_transition
from celery_agents.worker.errors import ActionRefused, InvalidInput, SessionNotFound
from celery_agents.worker.moments import moment
from celery_agents.worker.state import AgentState, ExecutionBudget, Message
from celery_agents.worker.store import Claimed, Hold, NextState, NotClaimed, NotClaimedReason, QueueSnapshot
from celery_agents.worker.store.control import LONGEST_WAIT_MS

from support.asking import (
    HOUR_MS,
    a_request,
    approve,
    ask,
    commit_leg,
    control,
    events,
    header,
    now_ms,
    open_requests,
    soon,
    wait,
)
from support.points import Points
from support.store import Bench
from support.store_client import StoreClient

pytestmark = pytest.mark.leaves_keys("sessions are held")

HELD = NotClaimed(NotClaimedReason.HELD)
NOT_HELD = ["", "", "", "", ""]


def suspend(bench: Bench, **options: Any) -> Any:
    return bench.store.sessions.suspend(bench.session, **{"reason": "a freeze", "by": "ann", **options})


def resume(bench: Bench) -> Any:
    return bench.store.sessions.resume(bench.session, by="auditor")


def hold_fields(bench: Bench) -> list[str]:
    return control(bench, "held", "held_by", "held_why", "held_since", "cancel")


# --- suspending -------------------------------------------------------------------------------------------------------


def test_a_suspend_reads_the_deadline_and_no_conversation(bench: Bench) -> None:
    bench.spy.sent.clear()
    suspend(bench)
    assert bench.spy.points == [Points.SUSPEND_READ, Points.SUSPEND_EXEC]
    (_, reads), _ = bench.spy.sent
    assert not [command for command in reads if command[0] == "LRANGE"]


def test_a_suspended_session_begins_nothing_and_says_why(bench: Bench) -> None:
    before = now_ms(bench)
    assert suspend(bench).outcome == "changed"
    due = bench.due()
    assert due is not None
    assert due >= before + LONGEST_WAIT_MS
    held = bench.snapshot()
    assert bench.answer() == HELD
    assert bench.snapshot() == held
    assert header(bench).hold == Hold(
        until_ms=int(due), by="ann", reason="a freeze", since_ms=int(due) - LONGEST_WAIT_MS
    )
    assert events(bench)[-1] == "execution_suspended"


def test_a_hold_stays_as_it_is_when_it_is_asked_for_again(bench: Bench) -> None:
    suspend(bench)
    held = bench.snapshot()
    assert suspend(bench, reason="another", by="auditor").outcome == "again"
    assert bench.snapshot() == held


def test_a_session_resumes_where_it_stood(bench: Bench) -> None:
    suspend(bench)
    resumed = resume(bench)
    assert (resumed.outcome, resumed.publish) == ("changed", bench.ref())
    assert hold_fields(bench) == NOT_HELD
    assert isinstance(bench.answer(), Claimed)
    assert events(bench).count("execution_resumed") == 1
    assert resume(bench).outcome == "again"


def test_a_hold_ends_no_later_than_the_deadline_of_the_execution(bench: Bench) -> None:
    deadline = soon(bench, 60)
    bench.session, bench.execution = uuid.uuid4().hex, uuid.uuid4().hex
    _submit(bench, budget=ExecutionBudget(deadline=moment(deadline)))
    suspend(bench, until_ms=soon(bench, 7200))
    assert bench.due() == deadline


def test_only_what_runs_or_waits_can_be_held(bench: Bench) -> None:
    bench.commit(bench.claim(), final=True)
    bench.spy.sent.clear()
    assert [suspend(bench).outcome, resume(bench).outcome] == ["idle", "idle"]
    assert bench.spy.points == [Points.SUSPEND_READ, Points.RESUME_READ], "nothing is written"
    bench.session = "nobody"
    with pytest.raises(SessionNotFound):
        suspend(bench)
    with pytest.raises(SessionNotFound):
        resume(bench)


def test_a_session_that_is_being_stopped_or_parked_cannot_be_held(bench: Bench) -> None:
    bench.claim()
    bench.store.sessions.stop(bench.session, None, stop_transition)
    with pytest.raises(ActionRefused, match="being stopped"):
        suspend(bench)
    bench.store.steps.park(bench.ref(), "why")
    with pytest.raises(ActionRefused, match="parked"):
        suspend(bench)


@pytest.mark.parametrize("wrong", [{"reason": 5}, {"reason": "x" * 1001}, {"by": "\ud800"}, {"by": None}])
def test_a_hold_with_bad_texts_is_refused_and_changes_nothing(bench: Bench, wrong: dict[str, Any]) -> None:
    before = bench.snapshot()
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        suspend(bench, **wrong)
    assert bench.snapshot() == before


def test_lost_replies_hold_and_resume_once(bench: Bench) -> None:
    bench.spy.lose(Points.SUSPEND_EXEC)
    suspend(bench)
    bench.spy.lose(Points.RESUME_EXEC)
    resume(bench)
    assert events(bench).count("execution_suspended") == events(bench).count("execution_resumed") == 1
    assert hold_fields(bench) == NOT_HELD


# --- a step that runs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_claim", [False, True])
def test_the_running_step_is_committed_and_nothing_is_carried_on(bench: Bench, keep_claim: bool) -> None:
    claimed = bench.claim()
    suspend(bench)
    committed = bench.commit(claimed, keep_claim=keep_claim)
    assert (committed.next, committed.carried) == (None, None)
    assert control(bench, "claim", "step", "phase") == ["", "2", "run"]
    assert bench.due() == header(bench).hold.until_ms  # pyright: ignore[reportOptionalMemberAccess]
    assert bench.answer(2) == HELD
    resume(bench)
    assert isinstance(bench.answer(2), Claimed)


def test_a_hold_that_comes_into_a_commit_is_seen_by_it(bench: Bench) -> None:
    claimed = bench.claim()
    bench.spy.before(bench.commits_at, lambda: suspend(bench))
    committed = bench.commit(claimed, keep_claim=True)
    assert (committed.next, committed.carried) == (None, None)


def test_a_commit_of_a_held_step_whose_reply_was_lost_publishes_nothing(bench: Bench) -> None:
    claimed = bench.claim()
    suspend(bench)
    bench.spy.lose(Points.COMMIT_EXEC)
    committed = bench.commit(claimed)
    assert (committed.again, committed.next) == (True, None)


def test_any_end_of_the_execution_removes_the_hold(bench: Bench) -> None:
    claimed = bench.claim()
    suspend(bench)
    bench.commit(claimed, final=True)
    assert hold_fields(bench) == NOT_HELD
    assert bench.due() is None
    assert bench.message("go on").outcome == "started"
    bench.execution = header(bench).execution_id
    assert isinstance(bench.answer(), Claimed)


@pytest.mark.parametrize("when", ["steer", "queue"])
def test_an_execution_that_a_commit_starts_under_a_hold_starts_held(bench: Bench, when: str) -> None:
    claimed = bench.claim()
    bench.message("and then", when=when)
    suspend(bench)
    committed = bench.commit(claimed, final=True)
    assert committed.next is None
    assert hold_fields(bench) != NOT_HELD
    bench.execution = header(bench).execution_id
    assert bench.answer() == HELD
    resume(bench)
    assert isinstance(bench.answer(), Claimed)


def test_a_stop_ends_the_hold_with_the_execution(bench: Bench) -> None:
    claimed = bench.claim()
    suspend(bench)
    bench.store.sessions.stop(bench.session, None, stop_transition)
    bench.message("and then")
    bench.commit(claimed)
    assert hold_fields(bench) == NOT_HELD
    assert isinstance(bench.next_claim(), Claimed)


def test_a_released_step_of_a_held_session_is_not_published(bench: Bench) -> None:
    claimed = bench.claim()
    suspend(bench)
    assert bench.store.steps.release(claimed.claim, delay_ms=None, give_back=True) is None
    assert bench.answer() == HELD
    resume(bench)
    assert isinstance(bench.answer(), Claimed)


def test_the_sweep_moves_a_held_session_to_the_end_of_its_hold(bench: Bench) -> None:
    claimed = bench.claim()
    suspend(bench)
    bench.end_lease(claimed.claim)
    bench.make_due()
    assert _lost(bench) == []
    assert bench.due() == header(bench).hold.until_ms  # pyright: ignore[reportOptionalMemberAccess]
    resume(bench)
    due = bench.due()
    assert due is not None
    assert due <= now_ms(bench) + 5000, "its worker has died, and the sweep looks soon"


def test_the_end_of_a_hold_lets_a_worker_end_the_execution(bench: Bench) -> None:
    suspend(bench, until_ms=soon(bench, -1))
    assert _lost(bench) != []
    claimed = bench.claim()
    assert claimed.loaded.hold is not None
    assert claimed.loaded.hold.by == "ann"
    bench.commit(claimed, final=True)
    assert hold_fields(bench) == NOT_HELD


def test_a_stop_ends_a_held_session_at_once(bench: Bench) -> None:
    suspend(bench)
    stopped = bench.store.sessions.stop(bench.session, None, stop_transition)
    assert stopped.outcome == "changed", "nothing was begun"
    assert control(bench, "phase", "held", "cancel") == ["end", "", ""]
    assert bench.due() is None


def test_a_stop_of_a_held_session_with_an_open_journal_is_claimed(bench: Bench) -> None:
    claimed = bench.claim()
    bench.store.steps.record_answer(claimed.claim, b"answer")
    suspend(bench)
    bench.end_lease(claimed.claim)
    bench.store.sessions.stop(bench.session, None, stop_transition)
    bench.make_due()
    assert _lost(bench) != []
    assert bench.claim().loaded.cancel == bench.execution


# --- a step that waits ------------------------------------------------------------------------------------------------


def test_an_answer_to_a_held_session_is_kept_and_wakes_it_when_it_is_resumed(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    suspend(bench)
    assert approve(bench, request).outcome == "recorded"
    assert control(bench, "phase") == ["wait"]
    assert bench.answer() == HELD
    assert resume(bench).publish is not None
    leg = bench.claim()
    assert leg.loaded.journal.answer_to(request) is not None
    commit_leg(bench, leg, final=True)


def test_an_expiry_does_not_wake_a_held_session(bench: Bench) -> None:
    ask(bench, a_request(bench, expires_at_ms=soon(bench, -1)))
    suspend(bench)
    assert bench.answer() == HELD
    bench.make_due()
    assert _lost(bench) == []
    resume(bench)
    assert isinstance(bench.answer(), Claimed)


def test_a_step_that_waits_while_it_is_held_is_looked_at_when_the_hold_ends(bench: Bench) -> None:
    claimed = bench.claim()
    journal = open_requests(bench, claimed, a_request(bench, expires_at_ms=soon(bench)))
    suspend(bench)
    wait(bench, claimed, journal)
    assert bench.due() == header(bench).hold.until_ms  # pyright: ignore[reportOptionalMemberAccess]
    resume(bench)
    assert isinstance(bench.answer(), Claimed)


def test_a_stop_of_a_held_session_that_waits_wakes_it(bench: Bench) -> None:
    ask(bench)
    suspend(bench)
    bench.store.sessions.stop(bench.session, None, stop_transition)
    leg = bench.claim()
    assert (leg.loaded.cancel, leg.loaded.hold is not None) == (bench.execution, True)
    commit_leg(bench, leg)
    assert hold_fields(bench) == NOT_HELD


def test_a_parked_session_that_was_held_is_still_held_when_it_is_retried(bench: Bench) -> None:
    suspend(bench)
    bench.store.steps.park(bench.ref(), "why")
    bench.store.sessions.retry(bench.session, stop_transition)
    assert bench.answer() == HELD
    assert bench.due() == header(bench).hold.until_ms  # pyright: ignore[reportOptionalMemberAccess]


# --- a later start ----------------------------------------------------------------------------------------------------


def test_a_later_start_begins_nothing_before_its_time(bench: Bench) -> None:
    start = _later(bench, HOUR_MS)
    assert bench.due() == start
    assert header(bench).not_before_ms == start
    assert bench.answer() == NotClaimed(NotClaimedReason.NOT_YET)
    assert _lost(bench) == []


def test_a_later_start_begins_at_its_time(bench: Bench) -> None:
    _later(bench, 150)
    assert bench.answer() == NotClaimed(NotClaimedReason.NOT_YET)
    bench.clock.pause(0.2)
    while now_ms(bench) < header(bench).not_before_ms:
        pass
    assert bench.session in _lost(bench)
    bench.commit(bench.claim(), final=True)
    assert header(bench).not_before_ms == 0


def test_a_start_in_the_past_is_a_start_at_once(bench: Bench) -> None:
    _later(bench, -HOUR_MS)
    assert isinstance(bench.answer(), Claimed)


@pytest.mark.parametrize("start", [-1, 10**15])
def test_a_start_that_is_no_time_is_refused(bench: Bench, start: int) -> None:
    bench.session = uuid.uuid4().hex
    with pytest.raises(InvalidInput, match="start_at_ms"):
        _submit(bench, start_at_ms=start)
    with pytest.raises(SessionNotFound):
        header(bench)


@pytest.mark.parametrize("is_brought_forward", [True, False])
def test_a_step_that_was_put_off_looks_again_when_it_is_resumed(bench: Bench, is_brought_forward: bool) -> None:
    """Whoever brings forward what was put off passes a held session; it does not wait for a time that is long over."""
    claimed = bench.claim()
    suspend(bench)
    bench.store.steps.release(claimed.claim, delay_ms=HOUR_MS, give_back=True, reason="paused", put_off="cause")
    if is_brought_forward:
        assert bench.store.flow.bring_forward("cause") == []
    resume(bench)
    assert bench.database("ZCARD", bench.store.context.keys(bench.session).shard.delayed) == 0
    assert isinstance(bench.answer(), Claimed)


def test_a_step_that_was_delayed_waits_for_its_time_when_it_is_resumed(bench: Bench) -> None:
    claimed = bench.claim()
    bench.store.steps.release(claimed.claim, delay_ms=HOUR_MS, give_back=False, reason="it is away")
    suspend(bench)
    resume(bench)
    assert bench.answer() == NotClaimed(NotClaimedReason.NOT_YET)


def test_a_later_start_can_be_stopped_held_and_resumed(bench: Bench) -> None:
    start = _later(bench, HOUR_MS)
    suspend(bench)
    assert resume(bench).publish is None
    assert bench.due() == start, "what was to start later still is"
    assert bench.answer() == NotClaimed(NotClaimedReason.NOT_YET)
    assert bench.store.sessions.stop(bench.session, None, stop_transition).outcome == "changed"
    assert bench.due() is None


def test_one_that_has_ended_since_it_was_listed_is_not_held_among_all(bench: Bench) -> None:
    bench.submit()
    held = StoreClient(bench.store).suspend_all(reason="a freeze")
    bench.commit(bench.claim(), final=True)
    assert list(held) == []
    assert bench.store.sessions.header(bench.session).session_status == "active"


def _later(bench: Bench, later_ms: int) -> int:
    bench.session, bench.execution = uuid.uuid4().hex, uuid.uuid4().hex
    start = now_ms(bench) + later_ms
    result = _submit(bench, start_at_ms=start)
    assert (result.publish is None) == (later_ms > 0)
    return start


def _submit(bench: Bench, *, budget: ExecutionBudget | None = None, **options: Any) -> Any:
    def transition(at_ms: int) -> NextState:
        now = moment(at_ms)
        first = FirstExecution(bench.execution, "op-first", budget)
        return first_state(AgentState.fresh(now=now), Message.user("first"), first, now)

    return bench.store.sessions.submit(bench.session, "agent", "f", transition, **options)


def _lost(bench: Bench) -> list[str]:
    found = bench.store.housekeeping.sweep(QueueSnapshot()).lost
    return [ref.session_id for ref in found if ref.session_id == bench.session]
