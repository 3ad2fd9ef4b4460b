"""Bodies and queries of HTTP requests: what is at a bound is taken, and what is beyond it is refused."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, NamedTuple

import pytest
from pydantic import ValidationError

from celery_agents.tasks.http import bodies
from celery_agents.tasks.http.endpoints import Body
from celery_agents.tasks.http.verb_endpoints import READERS
from celery_agents.worker.state import ExecutionBudget, LLMConfig

BOUNDS = {
    ("minimum", 0): """Answers.seen Budget.max_cost Budget.max_seconds Budget.max_steps Budget.max_tokens Cap.usd
        Concurrency.total MessagesQuery.offset ModelLimit.input_tpm ModelLimit.output_tpm ModelLimit.rpm ModelLimit.tpm
        ModelSchedule.jitter_seconds ModelSchedule.missed NewErasure.timeout_seconds NewJob.delay_seconds
        Stop.timeout_seconds TokenAnswer.seen WaitQuery.wait""",
    ("minimum", 1): """MessagesQuery.limit NewAct.limit NewLink.ttl_seconds NewSessionToken.ttl_seconds
        RequestsQuery.limit SessionsQuery.limit timeline.first_step timeline.limit""",
    ("exclusiveMinimum", 0): "Debouncing.at_most_seconds Debouncing.quiet_seconds NewJob.expires_in_seconds",
    ("maximum", 60): "Stop.timeout_seconds WaitQuery.wait",
    ("maximum", 100): "ModelSchedule.missed",
    ("maximum", 1_000): "MessagesQuery.limit RequestsQuery.limit SessionsQuery.limit timeline.limit",
    ("maximum", 3_600): "NewSessionToken.ttl_seconds",
    ("maximum", 10_000): "NewAct.limit",
    ("maximum", 366 * 86_400): "NewLink.ttl_seconds",
    ("maximum", 10 * 366 * 86_400): """Budget.max_seconds Debouncing.at_most_seconds Debouncing.quiet_seconds
        ModelSchedule.jitter_seconds NewErasure.timeout_seconds NewJob.delay_seconds NewJob.expires_in_seconds""",
    ("maximum", 2**31): "timeline.first_step",
    ("maximum", 2**53): """Budget.max_cost Budget.max_steps Budget.max_tokens MessagesQuery.offset ModelLimit.input_tpm
        ModelLimit.output_tpm ModelLimit.rpm ModelLimit.tpm""",
    ("minLength", 1): """Debouncing.key Model.model NewPause.reason NewSessionToken.answer_to NewSessionToken.subject
        Suspend.reason""",
    ("maxLength", 64): "Cap.agent ModelSchedule.agent ModelSchedule.name remove.name",
    ("maxLength", 100): "Cap.zone ModelSchedule.zone",
    ("maxLength", 200): """Answers.by Cap.label Cap.name ChangeBudget.by Completion.by Concurrency.name Debouncing.key
        MessageMode.by ModelLimit.group ModelLimit.model ModelSchedule.cron ModelSchedule.session NewAct.by NewCap.by
        NewConcurrencyLimit.by NewErasure.by NewJob.by NewLimit.by NewMessage.by NewPause.agent NewPause.by
        NewPause.model NewPause.provider NewPause.queue NewPause.tool NewSchedule.by NewSessionToken.answer_to
        NewSessionToken.subject NewShares.by ReleaseQueue.by Resume.by Retry.by Rewind.by Shares.label Stop.by
        Suspend.by TokenAnswer.by remove.group remove.model remove.name remove.name snapshot.tag trace.thread
        unpause.agent unpause.by unpause.model unpause.provider unpause.queue unpause.tool withdraw_message.by""",
    ("maxLength", 500): "NewPause.reason",
    ("maxLength", 1_000): "NewAct.reason RequestsQuery.cursor SessionsQuery.cursor Suspend.reason waiting.agent",
    ("maxLength", 10_000_000): """ModelSchedule.message NewFork.system_prompt NewJob.message NewMessage.message
        SystemPrompt.prompt TranscriptMessage.content""",
    ("minItems", 1): "NewSessionToken.scopes",
    ("minProperties", 1): "Answers.answers",
    ("maxProperties", 4): "Concurrency.per",
    ("maxProperties", 64): "Answers.answers",
    ("maxProperties", 1_000): "Cap.values Shares.weights",
}
"""The fields of bodies and queries that have a bound, by the bound as the OpenAPI document writes it."""

KEYWORDS = re.compile("(exclusive)?(min|max)(imum|Length|Items|Properties)", re.IGNORECASE)


class Bound(NamedTuple):
    """A bound of a field, and the schema that has it."""

    model: type[Body]
    field: str
    keyword: str
    schema: dict[str, Any]

    @property
    def number(self) -> float:
        return self.schema[self.keyword]

    def __str__(self) -> str:
        return f"{self.model.__name__}.{self.field}-{self.keyword}"


FOUND = [
    Bound(model, field, keyword, schema)
    for model in Body.__subclasses__()
    for field, described in model.model_json_schema().get("properties", {}).items()
    for schema in (described, *described.get("anyOf", ()))
    for keyword in schema
    if KEYWORDS.fullmatch(keyword)
]


def test_which_fields_have_which_bounds() -> None:
    expected = [(name, *bound) for bound, names in BOUNDS.items() for name in names.split()]
    assert sorted((f"{at.model.__name__}.{at.field}", at.keyword, at.number) for at in FOUND) == sorted(expected)


@pytest.mark.parametrize("bound", FOUND, ids=str)
def test_a_field_takes_its_bound_and_nothing_beyond(bound: Bound) -> None:
    taken, refused = values_at(bound)
    assert not is_refused(bound, taken)
    assert is_refused(bound, refused)


def values_at(bound: Bound) -> tuple[Any, Any]:
    """The last value that is taken, and the first beyond it."""
    number, kind = bound.number, bound.schema["type"]
    outwards = 1 if bound.keyword.startswith("max") else -1
    if kind == "number":
        beyond = math.nextafter(number, outwards * math.inf)
        return (math.nextafter(number, math.inf), number) if bound.keyword == "exclusiveMinimum" else (number, beyond)
    if kind == "integer":
        return number, number + outwards
    return sized(bound.schema, int(number)), sized(bound.schema, int(number) + outwards)


def sized(schema: dict[str, Any], size: int) -> Any:
    """A text, a list or an object of this size."""
    if schema["type"] == "string":
        return "x" * size
    if schema["type"] == "array":
        return schema["items"]["enum"][:1] * size
    entry = {"object": {}, "integer": 1, "number": 0.5}[schema["additionalProperties"]["type"]]
    return {str(number): entry for number in range(size)}


def is_refused(bound: Bound, value: Any) -> bool:
    """Whether a request with this value is refused by an error about the field; others may be missing."""
    try:
        bound.model.model_validate_json(json.dumps({bound.field: value}), strict=True)
    except ValidationError as error:
        return any(each["loc"][:1] == (bound.field,) for each in error.errors(include_input=False))
    return False


def test_tokens_of_sessions_last_an_hour_and_allow_what_a_session_may_be_allowed() -> None:
    assert bodies.NewSessionToken(scopes=["read"]).ttl_seconds == 3600
    with pytest.raises(ValidationError, match="scopes"):
        bodies.NewSessionToken.model_validate({"scopes": ["admin"]})


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
