"""`state.smart`: every field of the document, on states with and without what fills it."""

from __future__ import annotations

from dataclasses import fields

from celery_agents.worker.capabilities import SmartView
from celery_agents.worker.state import AgentState, Message, RequestKind, RequestSummary

from support.states import NOON

FIELDS = (
    "messages", "tool_history", "tool_history_archived", "summaries", "summary_records", "memory_facts", "plan",
    "plan_version", "reflections", "pending_approvals", "pending_user_questions", "ctx",
)  # fmt: skip


def fresh() -> AgentState:
    return AgentState.fresh(now=NOON)


def test_a_fresh_state_shows_every_field_of_the_document() -> None:
    smart = fresh().smart
    assert {name: getattr(smart, name) for name in FIELDS} == {
        **dict.fromkeys(FIELDS, ()), "plan": None, "plan_version": None, "ctx": {},
    }  # fmt: skip
    assert [each.name for each in fields(SmartView)] == ["state"]


def test_messages_are_all_of_the_conversation() -> None:
    state = fresh().with_messages_added([Message.user("hi"), Message.assistant("hello")], now=NOON)
    assert [each.content for each in state.smart.messages] == ["hi", "hello"]


def test_ctx_is_the_metadata() -> None:
    state = fresh().with_metadata("customer", {"id": 7}, now=NOON)
    assert state.smart.ctx == {"customer": {"id": 7}}


def summary(kind: RequestKind, tool: str) -> RequestSummary:
    return RequestSummary(
        id=f"r-{tool}", kind=kind, session_id="s", agent="a", execution_id="e", step=1, tool=tool, asked_at_ms=1
    )


def test_pending_requests_are_told_apart_by_kind() -> None:
    waiting = [
        summary(RequestKind.APPROVAL, "refund"),
        summary(RequestKind.QUESTION, "ask_user_question"),
        summary(RequestKind.QUESTION, "form"),
    ]
    state = fresh().with_execution("x1", now=NOON).with_execution_started(now=NOON)
    state = state.with_execution_waiting(waiting, now=NOON)
    assert [each.tool for each in state.smart.pending_approvals] == ["refund"]
    assert [each.tool for each in state.smart.pending_user_questions] == ["ask_user_question"]
