"""What a tool, a rule and an expiry may say, refused where it is written when it cannot work."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from celery_agents.worker.capabilities import Approvals, AskUser, Rule
from celery_agents.worker.errors import ConfigurationError, InvalidInput
from celery_agents.worker.requests.schemas import schema_of
from celery_agents.worker.state import Deny
from celery_agents.worker.state.execution.requests import RequestKind
from celery_agents.worker.tools import (
    Allow,
    Ask,
    NeedsAnswer,
    NeedsApproval,
    NeedsTime,
    PassOn,
    Replies,
    Reply,
    ToolContext,
    UserQuestions,
    UseValue,
    as_decision,
    tool,
)

HOUR = timedelta(hours=1)


def define(**options: Any) -> Any:
    @tool(**options)
    def act(work: str) -> str:
        """Act."""
        return work

    return act


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: define(approval="sometimes"), "'never', 'always'"),
        (lambda: define(approval=True), "'never', 'always'"),
        (lambda: define(result="soon"), "'now' or 'later'"),
        (lambda: define(expires=HOUR), r"approval=Ask\("),
        (lambda: define(result="later", expires=timedelta(0)), "timedelta above 0"),
        (lambda: define(result="later", expires=60), "timedelta above 0"),
        (lambda: define(result="later", on_expiry="fail"), "never comes without expires"),
        (lambda: define(result="later", expires=HOUR, on_expiry="approve"), "is for approvals"),
        (lambda: define(result="later", expires=HOUR, on_expiry=PassOn("x")), "is for approvals"),
        (lambda: Ask(on_expiry="maybe"), "'deny', 'approve', 'fail'"),  # type: ignore[arg-type]
        (lambda: Ask(expires=HOUR, on_expiry=UseValue(1)), "for questions"),
        (lambda: Ask(while_waiting="drop"), r"Ask: while_waiting='drop' must be 'hold' or 'withdraw'"),  # type: ignore[arg-type]
        (lambda: NeedsApproval(while_waiting=True), "'hold' or 'withdraw'"),  # type: ignore[arg-type]
        (lambda: NeedsAnswer("?", while_waiting=[]), "NeedsAnswer: while_waiting"),  # type: ignore[arg-type]
        (lambda: AskUser(while_waiting=None), "AskUser: while_waiting"),  # type: ignore[arg-type]
        (lambda: PassOn(""), "next addressee"),
        (lambda: NeedsAnswer("?", expires=HOUR, on_expiry="approve"), "use UseValue"),
        (lambda: NeedsAnswer("?", schema=str, questions=UserQuestions(())), "not both"),
        (lambda: NeedsAnswer("?", schema=object()), "give a pydantic model"),
        (lambda: AskUser(expires=60), "timedelta above 0"),  # type: ignore[arg-type]
        (lambda: AskUser(expires=HOUR, on_expiry="approve"), "use UseValue"),
        (lambda: NeedsAnswer("?", schema={"type": "nonsense"}), "no JSON Schema"),
        (lambda: Rule(7), "name of a tool"),  # type: ignore[arg-type]
        (lambda: Rule("x", when="args.cents > 1"), "a function of"),  # type: ignore[arg-type]
        (lambda: Rule("x", then="ask"), r"Ask\(…\), Deny\(…\) or Allow\(\)"),  # type: ignore[arg-type]
        (lambda: Approvals([]), "a list of Rule"),
        (lambda: Approvals([Ask()]), "a list of Rule"),  # type: ignore[list-item]
        (lambda: as_decision(7, "the rule"), "the rule returned int"),
    ],
)
def test_what_cannot_work_is_refused_with_advice(make: Callable[[], Any], advice: str) -> None:
    with pytest.raises(ConfigurationError, match=advice):
        make()


def test_a_request_is_passed_on_four_times_at_most() -> None:
    rule: Any = "deny"
    for number in range(4):
        rule = PassOn(f"level {number}", expires=HOUR, on_expiry=rule)
    Ask(expires=HOUR, on_expiry=rule)
    with pytest.raises(ConfigurationError, match="4 times at most"):
        Ask(expires=HOUR, on_expiry=PassOn("one more", expires=HOUR, on_expiry=rule))


@pytest.mark.parametrize(
    ("given", "decision"),
    [(True, Ask()), (False, Allow()), (None, Allow()), ("always", Ask()), (Deny("x"), Deny("x")), (Allow(), Allow())],
)
def test_an_approval_function_may_answer_with_a_bool_or_a_decision(given: Any, decision: Any) -> None:
    assert as_decision(given, "f") == decision


def test_a_tool_can_be_called_by_itself_with_a_context_that_has_no_replies() -> None:
    context = ToolContext(
        session_id="s", execution_id="e", step=1, index=0, idempotency_key="k", deadline=datetime.now(UTC)
    )
    assert context.answer(str) is None
    assert context.approval is None
    with pytest.raises(ConfigurationError, match="result='later'"):
        _ = context.completion_token
    with pytest.raises(NeedsTime):
        context.wait_until(datetime.now(UTC))
    with pytest.raises(InvalidInput, match="timezone"):
        context.wait_until(datetime(2030, 1, 1))  # noqa: DTZ001 - it is what is refused
    for beyond in (timedelta.max, timedelta.min):
        with pytest.raises(InvalidInput, match="before the year 10 000"):
            NeedsTime(beyond)


class Visit(BaseModel):
    model_config = ConfigDict(strict=True)
    day: date
    guests: tuple[str, ...]


def test_an_answer_is_read_as_the_json_that_it_is() -> None:
    given = {"day": "2026-01-02", "guests": ["Ann"]}
    reply = Reply(kind=RequestKind.QUESTION, value=given, at=datetime.now(UTC), schema=schema_of(Visit))
    assert Replies((reply,)).answer(Visit) == Visit(day=date(2026, 1, 2), guests=("Ann",))


def test_waits_that_are_over_pass_in_their_order() -> None:
    replies = Replies(past_timers=1)
    replies.wait_until(datetime.now(UTC))
    with pytest.raises(NeedsTime):
        replies.wait_until(datetime.now(UTC))
