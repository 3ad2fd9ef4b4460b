"""Schemas of tools, as requests send them: no tool fails the requests of a session, and what fits stays as it is."""

from __future__ import annotations

import math
import random
from typing import Any, Literal

import pytest
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition

from celery_agents.worker.drivers.pydantic_ai.acceptable import AcceptableRequest, make_acceptable
from celery_agents.worker.drivers.pydantic_ai.provider_rules import RULES
from celery_agents.worker.errors import CeleryAgentsError
from celery_agents.worker.state import thaw
from celery_agents.worker.tools import ToolSet, tool
from celery_agents.worker.tools.effect import Effect

from support.odd_tools import OddTool, draw_parameters
from support.strict_schemas import anthropic_refusal, openai_refusal

TEXT = {"type": "string"}


def sent(schema: Any, description: str = "Pay.") -> ToolDefinition:
    given = ToolDefinition(name="pay", description=description, parameters_json_schema=schema)
    parameters = ModelRequestParameters(function_tools=[given])
    made = make_acceptable(AcceptableRequest([], None, parameters), RULES["AnthropicModel"])
    return made.parameters.function_tools[0]


def refusals(each: ToolDefinition) -> list[str | None]:
    """Why OpenAI and Anthropic refuse a tool as pydantic-ai writes it for them."""
    model = OpenAIChatModel("gpt-5-mini", provider=OpenAIProvider(api_key="not-a-key"))
    made = model.customize_request_parameters(ModelRequestParameters(function_tools=[each])).function_tools[0]
    strict = openai_refusal(made.parameters_json_schema, strict=bool(made.strict))
    return [strict, anthropic_refusal(each.parameters_json_schema)]


def test_a_schema_that_providers_take_stays_the_same_object() -> None:
    fits = {"type": "object", "properties": {"a": TEXT}, "required": ["a"], "additionalProperties": False}
    parameters = ModelRequestParameters(function_tools=[ToolDefinition(name="pay", parameters_json_schema=fits)])
    request = AcceptableRequest([], None, parameters)
    assert make_acceptable(request, RULES["OpenAIChatModel"]).parameters is parameters


def pair(at: tuple[int, float]) -> None: ...


def anything(value: Any) -> None: ...


def mixed(mode: Literal[1, "a", None], many: list[Any]) -> None: ...


@pytest.mark.parametrize("function", [pair, anything, mixed])
def test_a_tool_of_ordinary_types_is_taken(function: Any) -> None:
    assert refusals(sent(thaw(tool(function).parameters))) == [None, None]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"}, "string", {"type": "object", "properties": {"a": {"type": "file"}}},
        {"type": "object", "required": True},
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_mended_is_told_to_the_model_and_takes_any_arguments(schema: Any) -> None:
    made = sent(schema)
    assert made.parameters_json_schema == {"type": "object", "properties": {}}
    assert made.description is not None
    assert made.description.startswith("Pay.")
    assert "must also fit this JSON Schema" in made.description


def test_a_schema_that_is_no_json_takes_any_arguments() -> None:
    for value in (10**5000, {1}, object()):
        made = sent({"type": "object", "properties": {"a": {"maximum": value}}})
        assert made.parameters_json_schema == {"type": "object", "properties": {}}
        assert made.description == "Pay."


def test_numbers_and_halves_of_characters_that_json_cannot_hold_are_left_out() -> None:
    made = sent({"type": "object", "properties": {"a": {"type": "number", "default": math.nan, "title": "\ud83d"}}},
                "half \ud83d")  # fmt: skip
    assert made.parameters_json_schema["properties"] == {"a": {"type": "number", "title": "\ufffd"}}
    assert made.description == "half \ufffd"


def test_rules_about_further_properties_of_what_is_no_object_are_not_sent_as_strict() -> None:
    text = {"type": "string", "additionalProperties": {"type": "string", "default": "a"}}
    made = sent({"type": "object", "properties": {"a": text}, "required": ["a"], "additionalProperties": False})
    assert refusals(made) == [None, None]


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 20))])
def test_no_drawn_schema_is_refused(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(50):
        schema = draw_parameters(draw)
        made = sent(schema)
        assert refusals(made) == [None, None], schema
        again = sent(made.parameters_json_schema, made.description or "")
        assert again.parameters_json_schema == made.parameters_json_schema


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"type": "object", "default": math.nan}, "tool pay: parameters.default: JSON has no NaN"),
        ("string", "tool pay: parameters 'string' must be a JSON Schema, a mapping"),
    ],
)
def test_parameters_that_cannot_be_stored_are_refused_with_the_name_of_their_tool(parameters: Any, named: str) -> None:
    with pytest.raises(CeleryAgentsError, match=named):
        ToolSet([OddTool("pay", "Pay.", parameters, print)])


def test_an_effect_that_is_a_text_is_refused_by_name() -> None:
    odd = OddTool("pay", "Pay.", {"type": "object"}, print, effect="keyed")  # type: ignore[arg-type]
    with pytest.raises(CeleryAgentsError, match=r"tool pay: effect 'keyed' must be Effect\.KEYED"):
        ToolSet([odd])
    assert ToolSet([OddTool("pay", "Pay.", {"type": "object"}, print, effect=Effect.KEYED)])
