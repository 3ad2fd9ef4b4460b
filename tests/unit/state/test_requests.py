"""Requests and answers as values: their ids, their rounds, what the inbox shows, what a committed call remembers."""

from __future__ import annotations

from typing import Any

import pytest

from celery_agents.worker.errors import InvalidInput
from celery_agents.worker.state import (
    AgentState,
    Answer,
    AnswerNote,
    AnswerRecord,
    AnswerVerb,
    Approve,
    Complete,
    Deny,
    ExecutionStatus,
    ExpiryAction,
    Fail,
    GivenAnswer,
    OnExpiry,
    Request,
    RequestKind,
    RequestStatus,
    ToolCall,
    ToolExecution,
    ToolOutcome,
    arguments_digest,
    head_json,
    read_head,
    record_answer,
    request_id,
)
from celery_agents.worker.state.execution.requests import WhileWaiting
from celery_agents.worker.state.values.field_types import utcnow

ABOUT = AnswerNote("op-1", by="ann", note="seen")


def a_request(**values: Any) -> Request:
    given = {"kind": RequestKind.APPROVAL, "asked_at_ms": 1000, "args": {"cents": 400}, **values}
    return Request(
        id="r1",
        session_id="s",
        agent="a",
        execution_id="e",
        step=2,
        index=1,
        tool="refund",
        call_id="c",
        digest="d",
        **given,
    )


def test_the_id_of_a_request_follows_from_its_call_and_round() -> None:
    args = {"b": 1, "a": [1, 2]}
    same = {"a": [1, 2], "b": 1}
    assert request_id("e", 1, (0, 0), "tool", args) == request_id("e", 1, (0, 0), "tool", same)
    others = [("f", 1, (0, 0), "tool"), ("e", 2, (0, 0), "tool"), ("e", 1, (1, 0), "tool"), ("e", 1, (0, 1), "tool")]
    ids = {request_id(*other, args) for other in others} | {request_id("e", 1, (0, 0), "tool", args)}
    assert len(ids) == 5
    assert {len(each) for each in ids} == {32}


def test_a_digest_is_of_the_tool_and_its_arguments() -> None:
    assert arguments_digest("tool", {"a": 1, "b": 2}) == arguments_digest("tool", {"b": 2, "a": 1})
    assert arguments_digest("tool", {"a": 1}) != arguments_digest("other", {"a": 1})
    assert arguments_digest("tool", {"a": 1}) != arguments_digest("tool", {"a": "1"})


def test_a_request_is_stored_without_loss() -> None:
    rule = OnExpiry(
        then=ExpiryAction.PASS_ON, to="boss", after_ms=5, following=OnExpiry(then=ExpiryAction.VALUE, value=[1])
    )
    request = a_request(
        to="ann", options={"questions": [{"header": "x"}]}, answer_schema={"type": "object"}, on_expiry=rule
    )
    assert Request.from_json(request.to_json()) == request


def test_a_request_that_is_passed_on_asks_the_next_addressee() -> None:
    rule = OnExpiry(then=ExpiryAction.PASS_ON, to="boss", after_ms=500, following=OnExpiry(then=ExpiryAction.APPROVE))
    first = a_request(to="ann", expires_at_ms=2000, on_expiry=rule, while_waiting="withdraw")
    second = first.passed_on(3000)
    assert (second.to, second.round, second.asked_at_ms, second.expires_at_ms) == ("boss", 1, 3000, 3500)
    assert second.on_expiry.then is ExpiryAction.APPROVE
    assert second.id != first.id
    assert second.while_waiting is WhileWaiting.WITHDRAW
    assert (second.args, second.digest) == (first.args, first.digest)
    assert second.passed_on(9000).on_expiry.then is ExpiryAction.DENY


def test_a_renewed_request_has_as_much_time_again() -> None:
    renewed = a_request(to="ann", expires_at_ms=4000).renewed(10_000)
    assert (renewed.to, renewed.round, renewed.expires_at_ms) == ("ann", 1, 13_000)
    assert a_request().renewed(10_000).expires_at_ms is None


def test_a_summary_is_small_and_the_same_each_time() -> None:
    request = a_request(text="x" * 5000, args={"text": "y" * 5000})
    assert request.summarize() == Request.from_json(request.to_json()).summarize()
    assert len(request.summarize().to_json()) < 800
    assert a_request().summarize().call == "refund(cents=400)"


@pytest.mark.parametrize(
    ("given", "verb", "status"),
    [
        (Approve(), AnswerVerb.APPROVE, RequestStatus.ANSWERED),
        (Approve({"cents": 1}), AnswerVerb.APPROVE, RequestStatus.ANSWERED),
        (Deny("no"), AnswerVerb.DENY, RequestStatus.DENIED),
        (Answer({"q": "x"}), AnswerVerb.ANSWER, RequestStatus.ANSWERED),
        (Complete(None), AnswerVerb.COMPLETE, RequestStatus.ANSWERED),
        (Fail("broken"), AnswerVerb.FAIL, RequestStatus.ANSWERED),
    ],
)
def test_an_answer_becomes_a_record_with_who_and_when(
    given: GivenAnswer, verb: AnswerVerb, status: RequestStatus
) -> None:
    record = record_answer(given, ABOUT, 7000)
    assert (record.verb, record.status) == (verb, status)
    assert (record.by, record.note, record.at_ms, record.operation_id) == ("ann", "seen", 7000, "op-1")
    assert AnswerRecord.from_json(record.to_json()) == record


def test_an_answer_that_is_no_json_is_refused_by_its_field() -> None:
    with pytest.raises(InvalidInput, match="values"):
        record_answer(Answer({"q": object()}), ABOUT, 1)
    with pytest.raises(InvalidInput, match="cents"):
        record_answer(Approve({"cents": float("nan")}), ABOUT, 1)


@pytest.mark.parametrize(
    ("record", "status"),
    [
        (AnswerRecord(verb=AnswerVerb.DENY, at_ms=1, by_expiry=True), RequestStatus.EXPIRED),
        (AnswerRecord(verb=AnswerVerb.APPROVE, at_ms=1, by_expiry=True), RequestStatus.EXPIRED),
        (AnswerRecord(verb=AnswerVerb.PASS_ON, at_ms=1, by_expiry=True), RequestStatus.PASSED_ON),
        (AnswerRecord(verb=AnswerVerb.CANCEL, at_ms=1), RequestStatus.CANCELLED),
    ],
)
def test_a_record_of_a_worker_has_its_status(record: AnswerRecord, status: RequestStatus) -> None:
    assert record.status is status


def test_a_committed_call_remembers_how_its_requests_were_resolved() -> None:
    now = utcnow()
    call = ToolCall(id="c", name="refund")
    plain = ToolExecution(tool_call=call, outcome=ToolOutcome.OK, started_at=now, completed_at=now)
    assert b"resolutions" not in plain.to_json(), "a call that asked nobody is stored as before"
    resolution = record_answer(Deny("no"), ABOUT, 7000).resolve(a_request())
    asked = ToolExecution(
        tool_call=call, outcome=ToolOutcome.BLOCKED, started_at=now, completed_at=now, resolutions=(resolution,)
    )
    assert ToolExecution.from_json(asked.to_json()).resolutions == (resolution,)
    assert (resolution.status, resolution.reason, resolution.asked_at_ms) == (RequestStatus.DENIED, "no", 1000)


def test_a_waiting_state_names_what_it_waits_for_and_needs_a_newer_worker() -> None:
    summary = a_request().summarize()
    running = AgentState.fresh().with_execution_started()
    waiting = running.with_execution_waiting([summary])
    assert waiting.execution is not None
    assert (waiting.status, waiting.execution.waiting_for) == (ExecutionStatus.WAITING, (summary,))
    assert (running.schema_version, waiting.schema_version) == (1, 3)
    assert read_head(head_json(waiting)).state.execution == waiting.execution
    resumed = waiting.with_execution_resumed()
    assert resumed.execution is not None
    assert (resumed.schema_version, resumed.execution.waiting_for) == (1, ())
    again = waiting.with_execution_waiting([summary, summary])
    assert again.execution is not None
    assert again.execution.waiting_since == waiting.execution.waiting_since
