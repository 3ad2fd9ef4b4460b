"""Requests that a message closes: with `while_waiting="withdraw"`, no session waits for them beside a message."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_agents.worker.engine import operation_transition
from celery_agents.worker.errors import RequestNotOpen
from celery_agents.worker.state import AnswerVerb, Request, RequestKind, RequestStatus
from celery_agents.worker.state.execution.answers import MESSAGE_CAME_FIRST
from celery_agents.worker.state.execution.requests import BEGUN
from celery_agents.worker.store import InboxKind, Operation, RefusedWait, StepRef, StoredWait
from celery_agents.worker.store.records import MessageMode, Placement

from support.asking import (
    a_request,
    approve,
    ask,
    commit_leg,
    control,
    events,
    indexed,
    open_requests,
    refused_wait,
    try_to_wait,
    wait,
)
from support.points import Points
from support.store import Bench

pytestmark = pytest.mark.leaves_keys("sessions are left in the middle of an execution")


def yielding(bench: Bench, index: int = 0, **values: object) -> Request:
    return a_request(bench, index, while_waiting="withdraw", **values)


def due_leg(bench: Bench) -> StepRef:
    """The step that waited once, to be published."""
    return replace(bench.ref(), legs=1)


def status(bench: Bench, request: Request) -> RequestStatus:
    return bench.store.requests.find(bench.session, request.id).status


# --- a message to a session that waits --------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["steer", "interrupt"])
def test_a_message_closes_the_request_and_wakes_the_session(bench: Bench, when: str) -> None:
    request = yielding(bench)
    ask(bench, request)
    sent = bench.message("not that one", "m1", when=when)
    assert (sent.placed, sent.publish) == (Placement.JOINS, due_leg(bench))
    assert (control(bench, "phase"), indexed(bench)) == (["run"], [])
    assert events(bench)[-3:] == ["request_cancelled", "execution_resumed", "message_received"]
    claimed = bench.claim()
    record = claimed.loaded.journal.answers[request.place]
    assert (record.verb, record.reason, record.note) == (AnswerVerb.CANCEL, MESSAGE_CAME_FIRST, "message m1")
    assert record.operation_id == ""  # so no answer is taken for sent before
    commit_leg(bench, claimed)
    assert (bench.said, control(bench, "yields")) == (["first", "not that one"], [""])
    with pytest.raises(RequestNotOpen):
        approve(bench, request)


def test_a_queued_message_a_setting_and_one_to_a_request_that_holds_close_nothing(bench: Bench) -> None:
    held, request = a_request(bench), yielding(bench, 1)
    ask(bench, held, request)
    bench.message("later", "q1", when="queue")
    setting = Operation("s1", InboxKind.METADATA, {"key": "colour", "value": "blue"})
    bench.store.sessions.act(bench.session, setting, operation_transition)
    assert control(bench, "phase") == ["wait"]
    assert {status(bench, each) for each in (held, request)} == {RequestStatus.OPEN}
    bench.message("now", "m1")
    assert (status(bench, held), status(bench, request)) == (RequestStatus.OPEN, RequestStatus.CANCELLED)
    assert indexed(bench) == [held.id]


def test_the_step_waits_again_for_the_requests_that_hold(bench: Bench) -> None:
    held, request = a_request(bench), yielding(bench, 1)
    ask(bench, held, request)
    bench.message("now", "m1")
    claimed = bench.claim()
    assert [each.id for each in wait(bench, claimed, claimed.loaded.journal).open] == [held.id]
    bench.message("and now", "m2")
    assert control(bench, "phase") == ["wait"]
    approve(bench, held)
    commit_leg(bench, bench.claim())
    assert bench.said == ["first", "now", "and now"]


def test_a_call_that_has_begun_keeps_its_request(bench: Bench) -> None:
    elsewhere = yielding(bench, kind=RequestKind.APPROVAL, options={BEGUN: True})
    ask(bench, elsewhere)
    assert bench.message("now", "m1").publish is None
    assert status(bench, elsewhere) is RequestStatus.OPEN


@pytest.mark.parametrize("mode", [MessageMode.STEER, MessageMode.INTERRUPT])
def test_a_queued_message_that_gets_another_mode_closes_it(bench: Bench, mode: MessageMode) -> None:
    request = yielding(bench)
    ask(bench, request)
    bench.message("later", "q1", when="queue")
    changed = bench.set_mode("q1", mode)
    assert (changed.placed, changed.publish) == (Placement.JOINS, due_leg(bench))
    assert status(bench, request) is RequestStatus.CANCELLED


def test_what_is_closed_stays_closed_when_its_message_is_taken_back(bench: Bench) -> None:
    request = yielding(bench)
    ask(bench, request)
    bench.message("not that one", "m1")
    bench.store.sessions.withdraw(bench.session, "m1")
    assert status(bench, request) is RequestStatus.CANCELLED
    commit_leg(bench, bench.claim())
    assert bench.said == ["first"]


# --- what else happens at that moment ---------------------------------------------------------------------------------


@pytest.mark.parametrize("point", [Points.ACT_READ, Points.ACT_REQUESTS, Points.ACT_PUSH])
def test_a_lost_reply_closes_once(bench: Bench, point: str) -> None:
    request = yielding(bench)
    ask(bench, request)
    bench.spy.lose(point)
    bench.message("now", "m1")
    assert events(bench).count("request_cancelled") == 1
    commit_leg(bench, bench.claim())
    assert bench.said == ["first", "now"]


def test_the_answer_that_comes_first_counts(bench: Bench) -> None:
    request = yielding(bench)
    ask(bench, request)
    bench.spy.before(Points.ACT_PUSH, lambda: approve(bench, request))
    bench.message("too late", "m1")
    assert status(bench, request) is RequestStatus.ANSWERED
    assert "request_cancelled" not in events(bench)
    commit_leg(bench, bench.claim())
    assert bench.said == ["first", "too late"]


def test_the_message_that_comes_first_counts(bench: Bench) -> None:
    request = yielding(bench)
    ask(bench, request)
    bench.spy.before(Points.ANSWER_EXEC, lambda: bench.message("first come", "m1"))
    with pytest.raises(RequestNotOpen) as refused:
        approve(bench, request)
    assert refused.value.status == "cancelled"


def test_under_a_hold_it_closes_at_once_and_the_resume_wakes(bench: Bench) -> None:
    request = yielding(bench)
    ask(bench, request)
    bench.store.sessions.suspend(bench.session, reason="a look")
    assert bench.message("now", "m1").publish is None
    assert (status(bench, request), control(bench, "phase")) == (RequestStatus.CANCELLED, ["wait"])
    assert bench.store.sessions.resume(bench.session).publish == due_leg(bench)


def test_under_a_stop_the_stop_closes_it(bench: Bench) -> None:
    request = yielding(bench)
    ask(bench, request)
    bench.stop()
    bench.message("afterwards", "m1")
    assert "request_cancelled" not in events(bench)
    commit_leg(bench, bench.claim())
    assert bench.said == ["first", "afterwards"]


# --- a message that has come before the wait --------------------------------------------------------------------------


@pytest.mark.parametrize("is_between", [False, True], ids=["before", "beside"])
def test_no_step_waits_beside_a_message_that_has_come(bench: Bench, is_between: bool) -> None:
    claimed, held, request = bench.claim(), a_request(bench), yielding(bench, 1)
    seen = open_requests(bench, claimed, held, request)
    if is_between:
        bench.spy.before(Points.WAIT_EXEC, lambda: bench.message("now", "m1"))
    else:
        bench.message("now", "m1")
    refused = refused_wait(bench, claimed, seen)
    assert {*refused.journal.answers} == {request.place}
    assert status(bench, request) is RequestStatus.CANCELLED
    assert isinstance(try_to_wait(bench, claimed, refused.journal), StoredWait), "the other one is waited for"
    assert indexed(bench) == [held.id]


def test_a_wait_whose_reply_was_lost_has_closed_once(bench: Bench) -> None:
    claimed, request = bench.claim(), yielding(bench)
    seen = open_requests(bench, claimed, request)
    bench.message("now", "m1")
    bench.spy.lose(Points.WAIT_YIELD)
    assert {*refused_wait(bench, claimed, seen).journal.answers} == {request.place}
    assert events(bench).count("request_cancelled") == 1


def test_the_wait_of_an_execution_that_ends_looks_for_no_message(bench: Bench) -> None:
    claimed, request = bench.claim(), yielding(bench)
    seen = open_requests(bench, claimed, request)
    bench.message("now", "m1")
    bench.stop()
    refused = try_to_wait(bench, claimed, seen)
    assert isinstance(refused, RefusedWait)
    assert (refused.cancel, dict(refused.journal.answers)) == (bench.execution, {})


def test_what_asks_for_nothing_of_it_reads_nothing_more(bench: Bench) -> None:
    claimed, request = bench.claim(), a_request(bench)
    seen = open_requests(bench, claimed, request)
    bench.spy.sent.clear()
    wait(bench, claimed, seen)
    bench.message("now", "m1")
    sent = [(point, command[0]) for point, commands in bench.spy.sent for command in commands]
    assert Points.ACT_REQUESTS not in {point for point, _ in sent}
    assert (Points.WAIT_READ, "LRANGE") not in sent
    assert control(bench, "yields") == [""]
