"""Answers are checked before anything is written: each error names the field, the value and what fits."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from celery_agents.worker.errors import InvalidInput
from celery_agents.worker.requests import check_answer, check_remember, check_schema, schema_of
from celery_agents.worker.state import (
    MAX_REQUEST_BYTES,
    Answer,
    Approve,
    Complete,
    Deny,
    Fail,
    FrozenDict,
    GivenAnswer,
    Remember,
    Request,
    RequestKind,
)


class Line(BaseModel):
    sku: str
    count: int = 1


class Order(BaseModel):
    lines: list[Line]
    note: str | None = None


def request(kind: RequestKind, **fields: Any) -> Request:
    return Request(
        id="r", kind=kind, session_id="s", agent="a", execution_id="e", step=1, index=0, tool="t", call_id="c",
        digest="d", asked_at_ms=1, **fields,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (RequestKind.APPROVAL, Answer("x")),
        (RequestKind.APPROVAL, Complete()),
        (RequestKind.QUESTION, Approve()),
        (RequestKind.QUESTION, Fail("x")),
        (RequestKind.EXTERNAL, Deny("x")),
        (RequestKind.EXTERNAL, Approve()),
        (RequestKind.CHILD, Complete()),
    ],
)
def test_an_answer_of_another_kind_is_refused(kind: RequestKind, answer: GivenAnswer) -> None:
    with pytest.raises(InvalidInput, match=f"kind {kind}"):
        check_answer(request(kind), answer)


@pytest.mark.parametrize(
    ("args", "field", "advice"),
    [
        ({"lines": [{"sku": 7}]}, "args.lines.0.sku", "a string"),
        ({"lines": [{}]}, "args.lines.0", "it needs sku"),
        ({"lines": []}, None, ""),
        ({"lines": [{"sku": "a", "count": "2"}]}, "args.lines.0.count", "an integer"),
        ({}, "args", "it needs lines"),
        ("no", "args", "give a dict"),
        ({"lines": float("nan")}, "args.lines", "NaN"),
    ],
)
def test_edited_arguments_are_checked_against_the_schema_of_the_request(
    args: Any, field: str | None, advice: str
) -> None:
    asked = request(RequestKind.APPROVAL, edits_allowed=True, answer_schema=FrozenDict(schema_of(Order)))
    if field is None:
        assert check_answer(asked, Approve(args)) == Approve(FrozenDict(args))
        return
    with pytest.raises(InvalidInput) as refused:
        check_answer(asked, Approve(args))
    assert refused.value.field == field
    assert advice in str(refused.value)


def test_arguments_are_refused_where_the_request_takes_none() -> None:
    with pytest.raises(InvalidInput, match="takes no other arguments"):
        check_answer(request(RequestKind.APPROVAL), Approve({"lines": []}))


@pytest.mark.parametrize(
    "answer",
    [Deny("x" * 10_001), Deny(7), Deny("\ud800")],  # type: ignore[arg-type]
)
def test_a_reason_is_a_text_of_bounded_length(answer: Deny) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_answer(request(RequestKind.APPROVAL), answer)
    assert refused.value.field == "reason"
    longest = Deny("x" * 10_000)
    assert check_answer(request(RequestKind.APPROVAL), longest) == longest


def test_a_result_is_json_of_bounded_size() -> None:
    asked = request(RequestKind.EXTERNAL)
    for value in (object(), {"deep": {1: 2}}, float("inf"), "x" * 262_143):
        with pytest.raises(InvalidInput, match="value"):
            check_answer(asked, Complete(value))
    assert check_answer(asked, Complete("x" * 262_142))  # with its quotation marks at the limit
    assert check_answer(asked, Complete({"a": [1, None]})) == Complete(FrozenDict({"a": [1, None]}))


def test_an_answer_to_a_question_is_as_long_as_a_request_at_most() -> None:
    asked = request(RequestKind.QUESTION)
    with pytest.raises(InvalidInput, match=f"{MAX_REQUEST_BYTES} bytes") as refused:
        check_answer(asked, Answer("x" * MAX_REQUEST_BYTES))
    assert refused.value.field == "values"
    assert check_answer(request(RequestKind.EXTERNAL), Complete("x" * MAX_REQUEST_BYTES))


def test_a_question_without_a_schema_takes_any_json_and_one_with_a_type_only_that() -> None:
    asked = request(RequestKind.QUESTION, answer_schema=FrozenDict(schema_of(bool)))
    assert check_answer(asked, Answer(True)) == Answer(True)
    with pytest.raises(InvalidInput, match="values: it must be a boolean"):
        check_answer(asked, Answer("yes"))
    assert check_answer(request(RequestKind.QUESTION), Answer([1, "2"])) == Answer((1, "2"))


def test_several_wrong_fields_are_named_together() -> None:
    with pytest.raises(InvalidInput) as refused:
        check_schema({"lines": [{"sku": 1, "count": "x"}], "note": 5}, schema_of(Order), "values")
    text = str(refused.value)
    assert "values.lines.0.count" in text
    assert "values.lines.0.sku" in text


def test_only_an_approval_is_remembered() -> None:
    assert check_remember(Approve(), "session") is Remember.SESSION
    assert check_remember(Deny(), "call") is Remember.CALL
    for answer, remember in ((Deny(), "session"), (Approve(), "for ever")):
        with pytest.raises(InvalidInput, match="remember"):
            check_remember(answer, remember)


@pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"$ref": "http://127.0.0.1:9/schema.json"}, {"$ref": "#/no"}])
def test_a_schema_that_cannot_be_used_is_said_and_nothing_is_fetched(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="schema of this request cannot be used"):
        check_schema({"a": 1}, schema, "values")
