"""A changed budget waits in the control fields for the next save, and binds every look at the session until then."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from celery_agents.worker.engine import FirstExecution, first_state, retry_transition, stop_transition
from celery_agents.worker.errors import ActionRefused, SessionNotFound, StateUnreadable, VersionConflict
from celery_agents.worker.moments import moment
from celery_agents.worker.state import AgentState, ExecutionBudget, Message
from celery_agents.worker.store import Claimed, NextState, NotClaimed, NotClaimedReason, Snapshot
from celery_agents.worker.store.control import BUDGET_MARK, HELD_MARK, LONGEST_WAIT_MS

from support.asking import a_request, ask, control, events, now_ms, open_requests, refused_wait, soon
from support.points import Points
from support.store import Bench, step_transition

pytestmark = pytest.mark.leaves_keys("executions run on")

FOUR = ExecutionBudget(max_steps=4)


def change(bench: Bench, budget: ExecutionBudget = FOUR, **options: Any) -> Any:
    return bench.store.sessions.change_budget(bench.session, budget, **{"by": "ann", **options})


def stored_budget(bench: Bench) -> ExecutionBudget:
    """The budget as a reader of the session sees it."""
    execution = bench.store.sessions.load(bench.session).state.execution
    assert execution is not None
    outlined = bench.store.sessions.outline(bench.session).execution
    assert outlined is not None
    assert outlined.budget == execution.budget
    return execution.budget


def commit_with(bench: Bench, claimed: Claimed, *, final: bool = False, keep_claim: bool = False) -> Any:
    """Commit a step that has taken in the budget with which it was claimed, as the engine does."""
    plain = step_transition(claimed, final=final)

    def transition(snapshot: Snapshot) -> NextState:
        made = plain(snapshot)
        execution, budget = made.state.execution, claimed.loaded.budget
        assert execution is not None
        if budget is None:
            return made
        return replace(
            made, state=made.state.with_context_and_execution(made.state.context, execution.with_budget(budget))
        )

    return bench.store.steps.commit(claimed.claim, claimed.loaded, transition, results={}, keep_claim=keep_claim)


# --- the change -------------------------------------------------------------------------------------------------------


def test_a_change_is_one_transaction_that_reads_no_conversation(bench: Bench) -> None:
    bench.spy.sent.clear()
    assert change(bench).outcome == "changed"
    assert bench.spy.points == [Points.BUDGET_READ, Points.BUDGET_EXEC]
    (_, reads), _ = bench.spy.sent
    assert not [command for command in reads if command[0] == "LRANGE"]
    (event,) = [each for each in bench.store.sessions.events(bench.session) if each.type == "budget_changed"]
    assert event.data["by"] == "ann"
    assert (event.data["budget"]["max_steps"], event.data["before"]["max_steps"]) == (4, None)
    assert stored_budget(bench) == FOUR


def test_the_same_change_again_changes_nothing(bench: Bench) -> None:
    change(bench)
    before = bench.snapshot()
    assert change(bench).outcome == "again"
    commit_with(bench, bench.claim())
    assert change(bench).outcome == "again", "the state has it by now"
    assert events(bench).count("budget_changed") == 1
    assert before != bench.snapshot()


@pytest.mark.parametrize("point", [Points.BUDGET_READ, Points.BUDGET_EXEC])
def test_a_change_whose_reply_is_lost_is_made_once(bench: Bench, point: str) -> None:
    bench.spy.lose(point)
    assert change(bench).outcome in ("changed", "again")
    assert events(bench).count("budget_changed") == 1
    assert stored_budget(bench) == FOUR


def test_what_has_ended_is_stopped_or_is_not_there_takes_no_budget(bench: Bench) -> None:
    with pytest.raises(ActionRefused, match="no execution other runs"):
        change(bench, execution_id="other")
    assert change(bench, execution_id=bench.execution).outcome == "changed"
    claimed = bench.claim()
    bench.store.sessions.stop(bench.session, None, stop_transition)
    with pytest.raises(ActionRefused, match="being stopped"):
        change(bench)
    commit_with(bench, claimed, final=True)
    before = bench.snapshot()
    for execution in (None, bench.execution):
        with pytest.raises(ActionRefused, match="retry"):
            change(bench, execution_id=execution)
    assert bench.snapshot() == before
    bench.session = "nobody"
    with pytest.raises(SessionNotFound):
        change(bench)


# --- claims and commits -----------------------------------------------------------------------------------------------


def test_a_claim_behind_a_change_has_it_and_the_commit_takes_it_in(bench: Bench) -> None:
    change(bench)
    assert control(bench, "cancel") == [BUDGET_MARK]
    claimed = bench.claim()
    assert claimed.loaded.budget == FOUR
    commit_with(bench, claimed)
    assert control(bench, "budget", "cancel") == ["", ""]
    assert stored_budget(bench) == FOUR
    assert bench.claim(2).loaded.budget is None


def test_a_commit_of_a_step_that_does_not_know_the_change_writes_nothing(bench: Bench) -> None:
    claimed = bench.claim()
    change(bench)
    before = bench.snapshot()
    with pytest.raises(VersionConflict, match="budget"):
        commit_with(bench, claimed)
    assert bench.snapshot() == before
    loaded = bench.store.steps.reload(claimed.claim)
    assert loaded.budget == FOUR
    commit_with(bench, replace(claimed, loaded=loaded))
    assert control(bench, "budget", "cancel") == ["", ""]
    assert stored_budget(bench) == FOUR


def test_a_change_between_look_and_write_of_a_commit_is_not_lost(bench: Bench) -> None:
    change(bench)
    claimed = bench.claim()
    bench.spy.before(Points.COMMIT_EXEC, lambda: change(bench, ExecutionBudget(max_steps=9)))
    with pytest.raises(VersionConflict):
        commit_with(bench, claimed)
    assert stored_budget(bench) == ExecutionBudget(max_steps=9)


def test_an_end_between_look_and_write_of_a_change_refuses_it(bench: Bench) -> None:
    claimed = bench.claim()
    bench.spy.before(Points.BUDGET_EXEC, lambda: commit_with(bench, claimed, final=True))
    with pytest.raises(ActionRefused):
        change(bench)
    assert control(bench, "budget", "phase") == ["", "end"]


def test_a_claim_that_is_kept_for_the_next_step_knows_the_budget_from_the_state(bench: Bench) -> None:
    change(bench)
    carried = commit_with(bench, bench.claim(), keep_claim=True).carried
    assert carried.loaded.budget is None
    assert carried.loaded.state.execution.budget == FOUR


def test_an_ended_execution_leaves_nothing_of_it(bench: Bench) -> None:
    change(bench)
    commit_with(bench, bench.claim(), final=True)
    assert control(bench, "budget", "cancel", "phase") == ["", "", "end"]


def test_a_stop_that_ends_an_execution_itself_leaves_nothing_of_it(bench: Bench) -> None:
    change(bench)
    assert bench.store.sessions.stop(bench.session, None, stop_transition).outcome == "changed"
    assert control(bench, "budget", "cancel", "phase") == ["", "", "end"]


def test_a_change_of_another_execution_binds_nothing(bench: Bench) -> None:
    ctl = bench.store.context.keys(bench.session).ctl
    bench.database("HSET", ctl, "budget", 'other {"max_steps":0}', "cancel", BUDGET_MARK)
    claimed = bench.claim()
    assert claimed.loaded.budget is None
    commit_with(bench, claimed)
    assert control(bench, "budget", "cancel") == ["", ""]


@pytest.mark.parametrize("damage", ["no budget", '{"max_steps":"many"}', '{"max_steps":-1}', "["])
def test_a_damaged_budget_is_no_budget(bench: Bench, damage: str) -> None:
    ctl = bench.store.context.keys(bench.session).ctl
    bench.database("HSET", ctl, "budget", f"{bench.execution} {damage}", "cancel", BUDGET_MARK)
    with pytest.raises(StateUnreadable, match="budget"):
        bench.answer()
    with pytest.raises(StateUnreadable, match="budget"):
        bench.store.sessions.load(bench.session)


def test_a_heartbeat_tells_of_it(bench: Bench) -> None:
    claimed = bench.claim()
    (before,) = bench.store.steps.renew([claimed.claim])
    change(bench)
    bench.spy.sent.clear()
    (after,) = bench.store.steps.renew([claimed.claim])
    assert before is not None
    assert after is not None
    assert (before.budget, after.budget, after.cancel) == (None, FOUR, None)
    assert bench.spy.points == [Points.RENEW]


# --- waits, holds and later starts ------------------------------------------------------------------------------------


def test_a_step_does_not_wait_under_a_budget_that_it_does_not_know(bench: Bench) -> None:
    claimed = bench.claim()
    journal = open_requests(bench, claimed, a_request(bench))
    change(bench)
    assert refused_wait(bench, claimed, journal).budget == FOUR


def test_a_waiting_session_is_woken_and_its_leg_has_the_budget(bench: Bench) -> None:
    ask(bench)
    result = change(bench)
    assert result.publish is not None
    assert control(bench, "phase", "not_before") == ["run", "0"]
    due = bench.due()
    assert due is not None
    assert due <= now_ms(bench) + 5000
    (resumed,) = [each for each in bench.store.sessions.events(bench.session) if each.type == "execution_resumed"]
    assert resumed.data["cause"] == "budget"
    assert bench.claim().loaded.budget == FOUR


def test_a_claimed_session_is_not_woken(bench: Bench) -> None:
    bench.claim()
    due = bench.due()
    assert change(bench).publish is None
    assert bench.due() == due


def test_a_held_session_stays_held_and_keeps_its_mark(bench: Bench) -> None:
    bench.store.sessions.suspend(bench.session, reason="a freeze")
    change(bench)
    assert control(bench, "cancel") == [HELD_MARK]
    assert bench.answer() == NotClaimed(NotClaimedReason.HELD)
    bench.store.sessions.resume(bench.session)
    assert control(bench, "cancel") == [BUDGET_MARK]
    assert bench.claim().loaded.budget == FOUR


def test_a_hold_over_a_change_ends_with_the_mark_of_the_change(bench: Bench) -> None:
    change(bench)
    bench.store.sessions.suspend(bench.session, reason="a freeze")
    bench.store.sessions.resume(bench.session)
    assert control(bench, "cancel") == [BUDGET_MARK]


def test_a_commit_under_a_hold_takes_the_budget_in_and_stays_held(bench: Bench) -> None:
    claimed = bench.claim()
    bench.store.sessions.suspend(bench.session, reason="a freeze")
    change(bench)
    loaded = bench.store.steps.reload(claimed.claim)
    commit_with(bench, replace(claimed, loaded=loaded))
    assert control(bench, "budget", "cancel") == ["", HELD_MARK]
    assert stored_budget(bench) == FOUR


def test_the_end_of_a_hold_moves_with_the_deadline(bench: Bench) -> None:
    first, second = soon(bench, 600), soon(bench, 60)
    bench.store.sessions.suspend(bench.session, reason="a freeze")
    for deadline in (first, second):
        change(bench, ExecutionBudget(deadline=moment(deadline)))
        assert (bench.due(), control(bench, "held")) == (deadline, [str(deadline)])
    change(bench)  # without a deadline, the hold lasts as long as it would have lasted without one
    since = int(control(bench, "held_since")[0])
    assert bench.due() == since + LONGEST_WAIT_MS


def test_a_hold_that_ends_before_its_deadline_stays_as_it_is(bench: Bench) -> None:
    until = soon(bench, 60)
    bench.store.sessions.suspend(bench.session, reason="a freeze", until_ms=until)
    change(bench, ExecutionBudget(deadline=moment(soon(bench, 600))))
    assert (bench.due(), control(bench, "held")) == (until, [str(until)])


def test_an_execution_that_starts_later_is_looked_at_by_its_deadline(bench: Bench) -> None:
    bench.session, bench.execution = uuid.uuid4().hex, uuid.uuid4().hex

    def transition(at_ms: int) -> NextState:
        now = moment(at_ms)
        first = FirstExecution(bench.execution, "op-first", FOUR)
        return first_state(AgentState.fresh(now=now), Message.user("first"), first, now)

    start, deadline = soon(bench, 7200), soon(bench, 3600)
    bench.store.sessions.submit(bench.session, "agent", "f", transition, start_at_ms=start)
    change(bench, ExecutionBudget(max_steps=1))
    assert bench.due() == start, "another limit moves nothing"
    change(bench, ExecutionBudget(deadline=moment(deadline)))
    assert (bench.due(), control(bench, "not_before")) == (deadline, [str(deadline)])


def test_a_parked_session_goes_on_with_it(bench: Bench) -> None:
    bench.store.steps.park(bench.ref(), "why")
    assert change(bench).outcome == "changed"
    bench.store.sessions.retry(bench.session, lambda _: pytest.fail("it has not ended"))
    assert bench.claim().loaded.budget == FOUR


def test_a_retry_with_a_budget_is_refused_where_the_execution_is_parked_and_has_not_ended(bench: Bench) -> None:
    bench.store.steps.park(bench.ref(), "why")
    with pytest.raises(ActionRefused, match="change_budget"):
        bench.store.sessions.retry(bench.session, retry_transition(FOUR), has_budget=True)
    assert control(bench, "phase") == ["parked"]


def test_a_stop_that_ends_an_execution_itself_keeps_its_budget_for_a_retry(bench: Bench) -> None:
    change(bench)
    bench.store.sessions.stop(bench.session, None, stop_transition)
    assert stored_budget(bench) == FOUR
