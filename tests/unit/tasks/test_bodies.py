"""Bodies and queries of HTTP requests: each number holds at its limits and is refused beyond."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import ValidationError

from celery_agents.tasks.http import bodies
from celery_agents.tasks.http.verb_endpoints import READERS
from celery_agents.worker.state import ExecutionBudget, LLMConfig

TEN_YEARS = 10 * 366 * 86_400
WHOLE = {"role": "user", "content": ""}
ANSWERED: dict[str, Any] = {"approve": True}


@pytest.mark.parametrize(
    ("body", "field", "least", "most"),
    [
        (bodies.Budget, "max_steps", 0, 2**53),
        (bodies.Budget, "max_tokens", 0, 2**53),
        (bodies.Budget, "max_seconds", 0, TEN_YEARS),
        (bodies.Budget, "max_cost", 0, 2**53),
        (bodies.Stop, "timeout_seconds", 0, 60),
        (bodies.NewLink, "ttl_seconds", 1, 366 * 86_400),
        (bodies.WaitQuery, "wait", 0, 60),
        (bodies.SessionsQuery, "limit", 1, 1000),
        (bodies.RequestsQuery, "limit", 1, 1000),
        (bodies.MessagesQuery, "limit", 1, 1000),
        (bodies.MessagesQuery, "offset", 0, 2**53),
    ],
)
def test_numbers_have_limits(body: Any, field: str, least: int, most: int) -> None:
    for number in (least, most):
        assert getattr(body(**{field: number}), field) == number
    for number in (least - 1, most + (most % 2**53 == 0) + 1):
        with pytest.raises(ValidationError, match=field):
            body(**{field: number})


def test_tokens_of_sessions_last_an_hour_at_most_and_allow_something() -> None:
    assert bodies.NewSessionToken(scopes=["read"]).ttl_seconds == 3600
    for right in (
        {"ttl_seconds": 1},
        {"ttl_seconds": 3600},
        {"answer_to": "x" * 200},
        {"subject": "x" * 200},
        {"answer_to": "x"},
        {"subject": "x"},
    ):
        bodies.NewSessionToken.model_validate({"scopes": ["read"], **right})
    for wrong in (
        {"scopes": []}, {"ttl_seconds": 0.5}, {"ttl_seconds": 3601}, {"answer_to": ""}, {"answer_to": "x" * 201},
        {"subject": ""}, {"subject": "x" * 201}, {"scopes": ["admin"]},
    ):  # fmt: skip
        with pytest.raises(ValidationError, match=next(iter(wrong))):
            bodies.NewSessionToken.model_validate({"scopes": ["read"], **wrong})


def test_a_call_answers_1_to_64_requests() -> None:
    for number in (1, 64):
        bodies.Answers(answers={str(each): ANSWERED for each in range(number)})
    for number in (0, 65):
        with pytest.raises(ValidationError, match="answers"):
            bodies.Answers(answers={str(each): ANSWERED for each in range(number)})


def test_texts_have_limits() -> None:
    bodies.SessionsQuery(cursor="x" * 1000)
    bodies.Model(model="m")
    with pytest.raises(ValidationError, match="cursor"):
        bodies.SessionsQuery(cursor="x" * 1001)
    with pytest.raises(ValidationError, match="model"):
        bodies.Model(model="")
    with pytest.raises(ValidationError, match="content"):
        bodies.TranscriptMessage(role="user", content="x" * 10_000_001)


@pytest.mark.parametrize(
    ("moment", "fits"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), True),
        (datetime(1969, 12, 31, 23, 59, tzinfo=UTC), False),
        (datetime(9000, 12, 31, tzinfo=UTC), True),
        (datetime(9001, 1, 1, tzinfo=UTC), False),
        (datetime(1970, 1, 1, tzinfo=timezone(timedelta(hours=1))), False),
        (datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-2))), False),
    ],
)
def test_a_moment_is_of_the_years_1970_to_9000(moment: datetime, fits: bool) -> None:
    if fits:
        assert bodies.Budget(deadline=moment).value() == ExecutionBudget(deadline=moment)
        return
    with pytest.raises(ValidationError, match="give a time of the years 1970 to 9000"):
        bodies.Budget(deadline=moment)


@pytest.mark.parametrize(
    "value", [5, 0.5, True, [], "5", "0.5", "1795918466", "1795918466000", "2026-12-01", "soon", ""]
)
def test_a_moment_is_a_date_with_a_time_and_no_number(value: object) -> None:
    time, meant = "2026-12-01T10:00:00+05:30", datetime(2026, 12, 1, 4, 30, tzinfo=UTC)
    for read, give in (
        (bodies.Budget.model_validate, lambda given: {"deadline": given}),
        (
            lambda body: bodies.Budget.model_validate_json(body, strict=True),
            lambda given: json.dumps({"deadline": given}),
        ),
    ):
        assert read(give(time)).deadline == meant
        with pytest.raises(ValidationError, match="give a time with its zone, such as 2026-01-31T12:00:00Z"):
            read(give(value))


def test_a_completion_is_a_value_or_an_error() -> None:
    assert bodies.Completion(value=0).error is bodies.Completion(error="").value is None
    with pytest.raises(ValidationError, match="give a value or an error, not both"):
        bodies.Completion(value=0, error="it was not found")


def test_what_is_left_out_has_its_default() -> None:
    assert (bodies.Stop().timeout_seconds, bodies.Stop().clear_queue) == (30, False)
    assert bodies.GivenSnapshot(snapshot={}).merge_context is True
    assert (bodies.SessionsQuery().limit, bodies.RequestsQuery().limit, bodies.MessagesQuery().limit) == (50, 50, 100)
    assert (bodies.MessagesQuery().offset, bodies.WaitQuery().wait) == (0, 0)
    assert (bodies.StateQuery().whole, bodies.EventsQuery().live) == (True, False)
    assert bodies.Budget().value() == ExecutionBudget()
    assert bodies.Model(model="m").value() == LLMConfig.from_dict({"model": "m", "base_url": None, "settings": {}})
    assert bodies.TranscriptMessage(role="user", content="hi").value().content == "hi"


@pytest.mark.parametrize("field", ["rpm", "tpm", "input_tpm", "output_tpm"])
def test_a_limit_of_a_model_has_numbers_from_0(field: str) -> None:
    for number in (0, 2**53):
        limit = READERS["ProviderLimit"](bodies.ModelLimit(model="openai:a", **{field: number}))
        assert getattr(limit, field) == number
    for number in (-0.1, 2**53 + 2):
        with pytest.raises(ValidationError, match=field):
            bodies.ModelLimit(model="openai:a", **{field: number})


@pytest.mark.parametrize("field", ["model", "group"])
def test_names_of_a_limit_have_at_most_200_characters(field: str) -> None:
    given: dict[str, Any] = {"model": "openai:a", "rpm": 1}
    assert getattr(bodies.ModelLimit(**{**given, field: "x" * 200}), field) == "x" * 200
    with pytest.raises(ValidationError, match=field):
        bodies.ModelLimit(**{**given, field: "x" * 201})
