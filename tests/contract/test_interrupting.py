"""A message that interrupts a step: what it marks, whom it reaches, and what takes the mark away again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_agents.worker.flow.values import AT_PROVIDER
from celery_agents.worker.state import ExecutionBudget
from celery_agents.worker.store import RefusedWait, StepRef, StoredWait
from celery_agents.worker.store.control import BUDGET_MARK, HELD_MARK, INTERRUPT_MARK
from celery_agents.worker.store.keys import WAKE_CHANNEL
from celery_agents.worker.store.records import MessageMode, Placement

from support.asking import HOUR_MS, a_request, approve, ask, commit_leg, control, events, open_requests, try_to_wait
from support.points import Points
from support.store import Bench

pytestmark = pytest.mark.leaves_keys("sessions are left in the middle of an execution")

STEER, QUEUE, INTERRUPT = MessageMode.STEER, MessageMode.QUEUE, MessageMode.INTERRUPT


def interrupt(bench: Bench, operation: str = "i1", text: str = "wait") -> None:
    assert bench.message(text, operation, when="interrupt").placed is Placement.JOINS


def due_leg(bench: Bench) -> StepRef:
    """The step that waited once, to be published."""
    return replace(bench.ref(), legs=1)


def is_marked(bench: Bench, step: int = 1) -> bool:
    """Whether the step is marked as interrupted. What marks it stands in two fields, which never differ."""
    field, mark = control(bench, "interrupt", "cancel")
    assert (field == f"{bench.execution} {step}") == (mark == INTERRUPT_MARK), (field, mark)
    return bool(field)


# --- a step that runs -------------------------------------------------------------------------------------------------


def test_a_worker_hears_of_it_at_once_and_learns_by_its_heartbeat_what_it_is(bench: Bench) -> None:
    claimed = bench.claim()
    (renewed,) = bench.store.steps.renew([claimed.claim])
    assert not renewed.is_interrupted
    bench.spy.sent.clear()
    interrupt(bench)
    words = [command for _, commands in bench.spy.sent for command in commands if command[0] == "PUBLISH"]
    assert words == [("PUBLISH", WAKE_CHANNEL + "worker", "interrupt")]
    assert is_marked(bench)
    (renewed,) = bench.store.steps.renew([claimed.claim])
    assert (renewed.alive, renewed.is_interrupted, renewed.cancel) == (True, True, None)


def test_the_commit_delivers_it_in_front_of_all_others_and_takes_the_mark_away(bench: Bench) -> None:
    claimed = bench.claim()
    bench.message("queued", "q1", when="queue")
    bench.message("and this", "s1", when="steer")
    interrupt(bench)
    interrupt(bench, "i2", "no, wait")
    bench.commit(claimed)
    assert bench.said == ["first", "wait", "no, wait", "and this"]
    assert not is_marked(bench, 2)
    following = bench.claim(2)
    assert not following.loaded.is_interrupted
    bench.commit(following, final=True)
    assert bench.said[-1] == "queued"


def test_behind_a_final_answer_it_starts_the_next_execution_as_steer_does(bench: Bench) -> None:
    claimed = bench.claim()
    interrupt(bench)
    bench.commit(claimed, final=True)
    assert (bench.said, control(bench, "interrupt", "cancel")) == (["first", "wait"], ["", ""])
    assert not bench.next_claim().loaded.is_interrupted


def test_the_claim_after_a_worker_that_died_knows_of_it(bench: Bench) -> None:
    dead = bench.claim()
    bench.store.steps.record_failure(dead.claim, 1, b'{"kind":"timeout"}')
    bench.end_lease(dead.claim)
    interrupt(bench)
    assert bench.claim().loaded.is_interrupted


def test_an_interruption_of_a_step_at_its_provider_takes_back_the_time_until_its_next_look(bench: Bench) -> None:
    bench.store.steps.release(bench.claim().claim, delay_ms=0, give_back=True, reason="503")
    before = int(control(bench, "delayed")[0])
    claim = bench.claim().claim
    bench.store.steps.release(claim, delay_ms=HOUR_MS, give_back=True, reason="at the provider", put_off=AT_PROVIDER)
    interrupt(bench)
    assert abs(int(control(bench, "delayed")[0]) - before) < 5_000, "since when it is retried"
    assert bench.database("ZCARD", bench.store.context.keys(bench.session).shard.delayed) == 0
    assert bench.claim().loaded.is_interrupted


def test_a_worker_whose_claim_was_lost_is_not_interrupted_in_another_step(bench: Bench) -> None:
    claimed = bench.claim()
    interrupt(bench)
    bench.commit(claimed, keep_claim=True)
    (renewed,) = bench.store.steps.renew([replace(claimed.claim, ref=bench.ref(2))])
    assert not renewed.is_interrupted


@pytest.mark.parametrize("point", [Points.ACT_READ, Points.ACT_PUSH])
def test_a_lost_reply_interrupts_once(bench: Bench, point: str) -> None:
    claimed = bench.claim()
    bench.spy.lose(point)
    interrupt(bench)
    bench.commit(claimed)
    assert (bench.said, is_marked(bench, 2)) == (["first", "wait"], False)


def test_one_that_comes_while_the_step_commits_is_delivered_by_that_commit(bench: Bench) -> None:
    claimed = bench.claim()
    bench.spy.before(bench.commits_at, lambda: interrupt(bench))
    bench.commit(claimed)
    assert (bench.said, is_marked(bench, 2)) == (["first", "wait"], False)


# --- tool calls -------------------------------------------------------------------------------------------------------


def test_no_call_begins_any_more_and_one_that_has_begun_may_be_carried_on(bench: Bench) -> None:
    dead = bench.claim().claim
    bench.store.steps.record_answer(dead, b"answer")
    assert bench.store.steps.begin_calls(dead, {0: 1000}, dead.now_ms).own == {0}
    bench.end_lease(dead)
    claim = bench.claim().claim
    interrupt(bench)
    begun = bench.store.steps.begin_calls(claim, {0: 1000, 1: 1000}, claim.now_ms, again=[0])
    assert (begun.own, begun.is_interrupted, begun.cancel) == ({0}, True, None)
    bench.end_lease(claim)
    assert set(bench.claim().loaded.journal.begun) == {0}


def test_requests_of_calls_that_were_to_begin_are_not_opened_and_others_are(bench: Bench) -> None:
    claimed, request = bench.claim(), a_request(bench)
    interrupt(bench)
    assert not open_requests(bench, claimed, request, begins={0: 1000}).open_requests
    opened = bench.store.steps.open_requests(claimed.claim, [request], begins={0: 1000})
    assert (opened.requests, opened.is_interrupted, opened.cancel) == ((), True, None)
    assert open_requests(bench, claimed, request).open_requests == (request,)


# --- a step that waits ------------------------------------------------------------------------------------------------


def test_a_session_that_waits_is_woken_and_its_claim_knows_why(bench: Bench) -> None:
    ask(bench, a_request(bench))
    woken = bench.message("wait", "i1", when="interrupt")
    assert (woken.placed, woken.publish) == (Placement.JOINS, due_leg(bench))
    assert events(bench)[-2:] == ["execution_resumed", "message_received"]
    claimed = bench.claim()
    assert claimed.loaded.is_interrupted
    commit_leg(bench, claimed)
    assert (bench.said, is_marked(bench, 2)) == (["first", "wait"], False)


def test_a_wait_is_refused_once_so_that_the_step_learns_of_it(bench: Bench) -> None:
    claimed = bench.claim()
    seen = open_requests(bench, claimed, a_request(bench))
    interrupt(bench)
    refused = try_to_wait(bench, claimed, seen)
    assert isinstance(refused, RefusedWait)
    assert refused.is_interrupted
    knowing = replace(claimed, loaded=replace(claimed.loaded, is_interrupted=True))
    assert isinstance(try_to_wait(bench, knowing, seen), StoredWait), "a call that has begun is waited for"
    assert is_marked(bench)
    assert bench.message("now", "i2", when="interrupt").publish == due_leg(bench)


def test_one_that_comes_while_it_begins_to_wait_is_not_slept_through(bench: Bench) -> None:
    claimed = bench.claim()
    seen = open_requests(bench, claimed, a_request(bench))
    bench.spy.before(Points.WAIT_EXEC, lambda: interrupt(bench))
    assert isinstance(try_to_wait(bench, claimed, seen), RefusedWait)


# --- what holds the session, and what ends it -------------------------------------------------------------------------


def test_a_hold_keeps_it_and_a_resume_wakes_the_wait(bench: Bench) -> None:
    ask(bench, a_request(bench))
    bench.store.sessions.suspend(bench.session, reason="a look")
    assert bench.message("wait", "i1", when="interrupt").publish is None
    assert control(bench, "interrupt", "cancel") == [f"{bench.execution} 1", HELD_MARK]
    assert bench.store.sessions.resume(bench.session).publish == due_leg(bench)
    assert is_marked(bench)
    assert bench.claim().loaded.is_interrupted


def test_a_hold_behind_it_keeps_it_too(bench: Bench) -> None:
    claimed = bench.claim()
    interrupt(bench)
    bench.store.sessions.suspend(bench.session, reason="a look")
    (renewed,) = bench.store.steps.renew([claimed.claim])
    assert renewed.is_interrupted
    bench.store.sessions.resume(bench.session)
    assert is_marked(bench)


def test_a_changed_budget_and_an_interruption_keep_each_other(bench: Bench) -> None:
    claimed, budget = bench.claim(), ExecutionBudget(max_steps=4)
    bench.store.sessions.change_budget(bench.session, budget, by="ann")
    interrupt_at = bench.message("wait", "i1", when="interrupt")
    assert interrupt_at.placed is Placement.JOINS
    assert control(bench, "cancel") == [BUDGET_MARK]
    assert bench.store.sessions.withdraw(bench.session, "i1").outcome == "changed"
    assert control(bench, "interrupt", "cancel") == ["", BUDGET_MARK]
    bench.message("wait", "i2", when="interrupt")
    (renewed,) = bench.store.steps.renew([claimed.claim])
    assert (renewed.is_interrupted, renewed.budget) == (True, budget)


def test_a_changed_budget_behind_an_interruption_is_learned_all_the_same(bench: Bench) -> None:
    claimed, budget = bench.claim(), ExecutionBudget(max_steps=4)
    interrupt(bench)
    bench.store.sessions.change_budget(bench.session, budget, by="ann")
    bench.store.sessions.withdraw(bench.session, "i1")
    assert control(bench, "interrupt", "cancel") == ["", BUDGET_MARK]
    (renewed,) = bench.store.steps.renew([claimed.claim])
    assert (renewed.is_interrupted, renewed.budget) == (False, budget)


def test_under_a_stop_it_is_what_steer_is(bench: Bench) -> None:
    claimed = bench.claim()
    bench.stop()
    interrupt(bench)
    assert control(bench, "interrupt", "cancel") == ["", bench.execution]
    bench.commit(claimed)
    assert bench.said == ["first", "wait"]
    assert not bench.next_claim().loaded.is_interrupted


@pytest.mark.parametrize("end", ["failed", "stopped", "cleared"])
def test_every_other_end_takes_the_mark_away_and_holds_the_message(bench: Bench, end: str) -> None:
    claimed = bench.claim()
    interrupt(bench)
    if end != "failed":
        bench.stop(clear_queue=end == "cleared")
    bench.commit(claimed, failed=end == "failed")
    assert control(bench, "interrupt", "cancel") == ["", ""]
    assert bench.queue == (([], "") if end == "cleared" else (["i1"], end))


def test_a_stop_of_a_session_that_waits_ends_an_interruption_it_has_slept_on(bench: Bench) -> None:
    claimed = bench.claim()
    seen = open_requests(bench, claimed, a_request(bench))
    interrupt(bench)
    knowing = replace(claimed, loaded=replace(claimed.loaded, is_interrupted=True))
    assert isinstance(try_to_wait(bench, knowing, seen), StoredWait)
    bench.stop()
    commit_leg(bench, bench.claim())
    assert control(bench, "interrupt", "cancel") == ["", ""]


# --- taking it back ---------------------------------------------------------------------------------------------------


def test_taking_the_last_one_back_takes_the_mark_away(bench: Bench) -> None:
    claimed = bench.claim()
    interrupt(bench)
    interrupt(bench, "i2")
    bench.store.sessions.withdraw(bench.session, "i1")
    assert is_marked(bench)
    bench.store.sessions.withdraw(bench.session, "i2")
    assert not is_marked(bench)
    (renewed,) = bench.store.steps.renew([claimed.claim])
    assert not renewed.is_interrupted


@pytest.mark.parametrize("mode", [STEER, QUEUE])
def test_another_mode_takes_the_mark_away(bench: Bench, mode: MessageMode) -> None:
    bench.claim()
    interrupt(bench)
    bench.set_mode("i1", mode)
    assert not is_marked(bench)


@pytest.mark.parametrize("mode", [STEER, QUEUE])
def test_a_message_that_waits_becomes_one_that_interrupts(bench: Bench, mode: MessageMode) -> None:
    ask(bench, a_request(bench))
    bench.message("wait", "m1", when=mode)
    changed = bench.set_mode("m1", INTERRUPT)
    assert (changed.placed, changed.publish) == (Placement.JOINS, due_leg(bench))
    assert is_marked(bench)
    assert bench.set_mode("m1", INTERRUPT).outcome == "again"
    assert bench.claim().loaded.is_interrupted


def test_a_held_message_that_is_to_interrupt_an_idle_session_starts(bench: Bench) -> None:
    claimed = bench.claim()
    bench.message("held", "q1", when="queue")
    bench.commit(claimed, failed=True)
    assert bench.set_mode("q1", INTERRUPT).outcome == "started"
    assert not bench.next_claim().loaded.is_interrupted


def test_an_answer_and_an_interruption_meet_in_the_same_step(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    interrupt(bench)
    approve(bench, request)
    claimed = bench.claim()
    assert claimed.loaded.is_interrupted
    assert (request.index, request.round) in claimed.loaded.journal.answers
    commit_leg(bench, claimed)
    assert not is_marked(bench, 2)
