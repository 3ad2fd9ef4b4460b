"""Structured output."""

import json
import re
import time
from dataclasses import replace
from datetime import date
from typing import Any, Generic, Literal, TypeVar

import pytest
from pydantic import BaseModel, ConfigDict, Field, JsonValue, RootModel, field_validator
from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import RequestUsage

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import PydanticAIDriver
from celery_agents.worker.drivers.pydantic_ai.acceptable import AcceptableRequest, make_acceptable
from celery_agents.worker.drivers.pydantic_ai.answers import Answer
from celery_agents.worker.drivers.pydantic_ai.output import OutputShape, OutputType, shape_of_format
from celery_agents.worker.drivers.pydantic_ai.provider_rules import rules_of
from celery_agents.worker.errors import ConfigurationError, UnusableAnswer
from celery_agents.worker.state import AgentStep, InferenceResponse, ResponseFormat, ResponseFormatType
from celery_agents.worker.state.values.frozen import thaw

from support.strict_schemas import anthropic_refusal, openai_refusal


class City(BaseModel):
    name: str
    people: int = 0

    @field_validator("name")
    @classmethod
    def not_blank(cls, name: str) -> str:
        if not name.strip():
            raise ValueError("must not be blank")
        return name


CITY = OutputType(City).shape
DRIVER = PydanticAIDriver("openai:gpt-5-mini", output_type=City)


def read(*parts: Any, shape: OutputShape | None = CITY, finish_reason: Any = "stop") -> InferenceResponse:
    response = ModelResponse(parts=list(parts), finish_reason=finish_reason)
    return DRIVER.parse(Answer(response, "openai:gpt-5-mini", None, shape).to_raw())


def test_an_output_in_the_text():
    answer = read(TextPart('{"name": "Brno", "people": 400000}'))
    assert answer.output == {"name": "Brno", "people": 400000}
    assert answer.content == '{"name": "Brno", "people": 400000}'


@pytest.mark.parametrize("around", ["{}", "Here is the city:\n\n{}\n\nShall I look for another one?"])
def test_an_output_in_a_fence_of_markdown(around: str):
    assert read(TextPart(around.format('```json\n{"name": "Brno"}\n```'))).output == {"name": "Brno"}


def test_a_fence_within_an_output_is_a_part_of_it():
    written = '{"name": "```sh\\nls\\n``` and Brno"}'
    assert read(TextPart(written)).output == {"name": "```sh\nls\n``` and Brno"}


def test_an_output_by_the_output_tool_becomes_the_text_of_the_message():
    answer = read(ThinkingPart("hm", signature="s"), ToolCallPart("final_result", '{"name": "Brno"}', "1"))
    assert answer.output == {"name": "Brno"}
    assert answer.tool_calls == ()
    assert answer.finish_reason == "stop"
    assert AgentStep.from_inference(answer).output_messages[0].content == '{"name":"Brno"}'
    # The call it was made with is not in the conversation, and so neither is what belonged to it.
    assert answer.provider is None


def test_thinking_beside_an_output_in_the_text_goes_back():
    assert read(ThinkingPart("hm", signature="s"), TextPart('{"name": "Brno"}')).provider is not None


def test_calls_come_before_an_output():
    answer = read(ToolCallPart("search", "{}", "1"), ToolCallPart("final_result", '{"name": "x"}', "2"))
    assert [call.name for call in answer.tool_calls] == ["search"]
    assert answer.output is None


def test_the_first_of_several_outputs_counts():
    one, two = ToolCallPart("final_result", '{"name": "a"}', "1"), ToolCallPart("final_result", '{"name": "b"}', "2")
    assert read(one, two).output == {"name": "a"}
    answer = read(one, two, ToolCallPart("search", "{}", "3"))
    assert ([call.name for call in answer.tool_calls], answer.output) == (["search"], None)


@pytest.mark.parametrize("said", ["tool_call", None])
def test_an_output_in_the_text_whatever_reason_its_server_gives(said: Any):
    assert read(TextPart('{"name": "Brno"}'), finish_reason=said).output == {"name": "Brno"}


@pytest.mark.parametrize("word", ["model_length", "error"])
def test_an_output_that_is_cut_is_left_to_the_finish_reason_guard_in_every_word_for_it(word: str):
    response = ModelResponse(parts=[TextPart('{"name": "Br')], provider_details={"finish_reason": word})
    answer = DRIVER.parse(Answer(response, "openai:gpt-5-mini", None, CITY).to_raw())
    assert (answer.output, answer.finish_reason.is_cut_short()) == (None, True)


def test_a_tool_with_the_name_of_the_output_tool_is_refused() -> None:
    def final_result(name: str) -> str:
        """Take something else."""
        return name

    with pytest.raises(ConfigurationError, match="tool final_result: its model gives the output_type"):
        Agent("a", model="openai:gpt-5-mini", output_type=City, tools=[final_result])
    assert Agent("a", model="openai:gpt-5-mini", tools=[final_result])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Brno", "is not JSON"),
        ('{"name": ', "is not JSON"),
        ('{"people": 1}', r"does not fit its schema at \$"),
        ('{"name": 5}', r"does not fit its schema at \$\.name"),
        ('{"name": "x", "people": "many"}', r"at \$\.people"),
        ('{"name": "  "}', "name: Value error, must not be blank"),
        ("[]", r"at \$"),
    ],
)
def test_an_output_that_does_not_fit_is_unusable_and_may_be_asked_for_again(text: str, said: str):
    with pytest.raises(UnusableAnswer, match=said) as caught:
        read(TextPart(text))
    assert caught.value.transient


def test_a_text_cut_off_by_length_is_left_to_the_finish_reason_guard():
    answer = read(TextPart('{"name": "Br'), finish_reason="length")
    assert (answer.output, answer.finish_reason) == (None, "length")


@pytest.mark.parametrize(
    ("kind", "text", "output"), [(list[int], "[1, 2]", (1, 2)), (int, "5", 5), (City | None, "null", None)]
)
def test_what_is_no_object_is_asked_for_inside_one(kind: Any, text: str, output: Any):
    shape = OutputType(kind).shape
    assert shape.wrapped
    answer = read(TextPart(f'{{"response": {text}}}'), shape=shape)
    assert answer.output == output
    assert answer.content == text.replace(" ", "")


def test_a_sessions_response_format():
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}
    shape = shape_of_format(ResponseFormat(type=ResponseFormatType.JSON_SCHEMA, json_schema=schema, name="number"))
    assert read(TextPart('{"n": 3}'), shape=shape).output == {"n": 3}
    with pytest.raises(UnusableAnswer, match=r"\$\.n"):
        read(TextPart('{"n": 0}'), shape=shape)
    assert shape_of_format(ResponseFormat()) is None


def test_a_list_that_a_session_asks_for_is_asked_for_inside_an_object():
    numbers = {"type": "array", "items": {"$ref": "#/$defs/N"}, "$defs": {"N": {"type": "integer"}}}
    shape = shape_of_format(ResponseFormat(type=ResponseFormatType.JSON_SCHEMA, json_schema=numbers))
    assert shape is not None
    asked = shape.add_to(ModelRequestParameters(), OPENAI)
    assert (asked.output_mode, shape.schema["type"], shape.strict) == ("native", "object", True)
    answer = read(TextPart('{"response": [1, 2]}'), shape=shape)
    assert (answer.output, answer.content) == ((1, 2), "[1,2]")


def test_any_object():
    shape = shape_of_format(ResponseFormat(type=ResponseFormatType.JSON_OBJECT))
    assert read(TextPart('{"a": [1]}'), shape=shape).output == {"a": (1,)}
    with pytest.raises(UnusableAnswer, match="not a JSON object"):
        read(TextPart("[1]"), shape=shape)


def test_a_schema_that_is_announced_and_missing():
    with pytest.raises(ConfigurationError, match="there is no json_schema"):
        shape_of_format(ResponseFormat(type=ResponseFormatType.JSON_SCHEMA))


def test_a_type_without_a_schema_is_refused_at_once():
    with pytest.raises(ConfigurationError, match="output_type"):
        PydanticAIDriver("openai:gpt-5-mini", output_type=object())


def test_text_as_output_type_is_no_structure():
    assert read(TextPart("x"), shape=None).output is None
    assert (
        PydanticAIDriver("openai:gpt-5-mini", output_type=str)
        .parse(Answer(ModelResponse(parts=[TextPart("x")]), "m", None, None).to_raw())
        .content
        == "x"
    )


class WithMeans(TestModel):
    """A model whose provider knows schemas."""

    def __init__(self, knows_schemas: bool) -> None:
        super().__init__(profile={"supports_json_schema_output": knows_schemas, "supports_tools": True})


def test_the_providers_own_means_come_before_a_tool():
    native = CITY.add_to(ModelRequestParameters(), WithMeans(True))
    assert (native.output_mode, native.output_tools) == ("native", [])
    assert native.output_object is not None
    by_tool = CITY.add_to(ModelRequestParameters(), WithMeans(False))
    assert by_tool.output_mode == "auto"
    assert [each.name for each in by_tool.output_tools] == ["final_result"]
    in_words = replace(CITY, any_object=True).add_to(ModelRequestParameters(), WithMeans(True))
    assert in_words.output_mode == "prompted"


# --- types that providers cannot guarantee, and types that know more than their schema ---------------------------

T = TypeVar("T")
LETTERS = r"^\p{L}+$"


class Page(BaseModel, Generic[T]):
    items: list[T]


class Counts(BaseModel):
    counts: dict[str, int]


class Anything(BaseModel):
    value: Any


class Node(BaseModel):
    value: int
    below: list["Node"] = []


class Tree(RootModel[list["Tree"]]):
    pass


class Day(BaseModel):
    model_config = ConfigDict(strict=True)
    day: date
    span: tuple[int, int]


class Word(BaseModel):
    word: str = Field(pattern=LETTERS)


class Careless(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def look_up(cls, name: str) -> str:
        return {"Brno": "Brno"}[name]


OPENAI = OpenAIChatModel("gpt-5-mini", provider=OpenAIProvider(api_key="not-a-key"))
CLAUDE = AnthropicModel("claude-sonnet-4-5", provider=AnthropicProvider(api_key="not-a-key"))
THINKING: Any = {"anthropic_thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 9000}
ODD = [Counts, Anything, Node, Tree, Day, Word, JsonValue, Literal[1, "a"], dict[str, int], list[Any]]


@pytest.mark.parametrize("kind", [City, Page[int], list[int], set[int], *ODD])
@pytest.mark.parametrize(("model", "settings"), [(OPENAI, None), (CLAUDE, None), (CLAUDE, THINKING)])
def test_no_type_of_an_output_makes_a_provider_refuse_the_request(kind: Any, model: Any, settings: Any) -> None:
    asked = OutputType(kind).shape.add_to(ModelRequestParameters(), model, settings)
    made = make_acceptable(AcceptableRequest([], settings, asked), rules_of(model)).parameters
    sent = model.prepare_request(settings, made)[1]
    schemas = [(each.parameters_json_schema, bool(each.strict)) for each in sent.output_tools]
    if sent.output_mode == "native":
        schemas = [(sent.output_object.json_schema, bool(sent.output_object.strict))]
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", sent.output_object.name)
        assert kind not in ODD
    assert schemas or settings is THINKING
    for schema, is_strict in schemas:
        refused = openai_refusal(schema, strict=is_strict) if model is OPENAI else anthropic_refusal(schema)
        assert refused is None, schema


@pytest.mark.parametrize(
    ("kind", "text", "output"),
    [
        (Day, '{"day": "2026-01-02", "span": [1, 2]}', {"day": "2026-01-02", "span": (1, 2)}),
        (Word, '{"word": "d\u011bt"}', {"word": "d\u011bt"}),
        (Tree, '{"response": [[], []]}', ((), ())),
        (Node, '{"value": 1, "below": [{"value": 2}]}', {"value": 1, "below": ({"value": 2},)}),
    ],
)
def test_an_output_that_fits_its_type_is_taken(kind: Any, text: str, output: Any) -> None:
    driver = PydanticAIDriver("openai:gpt-5-mini", output_type=kind)
    response = ModelResponse(parts=[TextPart(text)], finish_reason="stop")
    assert driver.parse(Answer(response, "m", None, OutputType(kind).shape).to_raw()).output == output


@pytest.mark.parametrize(("kind", "text"), [(Word, '{"word": "1"}'), (Careless, '{"name": "x"}')])
def test_an_output_that_the_type_itself_refuses_is_charged(kind: Any, text: str) -> None:
    driver = PydanticAIDriver("openai:gpt-5-mini", output_type=kind)
    response = ModelResponse(parts=[TextPart(text)], finish_reason="stop", usage=RequestUsage(input_tokens=7))
    with pytest.raises(UnusableAnswer) as caught:
        driver.parse(Answer(response, "m", 0.5, OutputType(kind).shape).to_raw())
    assert (caught.value.usage.input, caught.value.cost, caught.value.text) == (7, 0.5, text)


def test_a_schema_of_a_session_is_refused_where_it_is_none_and_fetches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    wrong = ResponseFormat(type=ResponseFormatType.JSON_SCHEMA, json_schema={"type": "strnig"})
    with pytest.raises(ConfigurationError, match=r"response_format\.json_schema is no JSON Schema: 'strnig'"):
        shape_of_format(wrong)
    monkeypatch.setattr("urllib.request.urlopen", asked.append)
    elsewhere = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}}
    shape = shape_of_format(ResponseFormat(type=ResponseFormatType.JSON_SCHEMA, json_schema=elsewhere))
    with pytest.raises(UnusableAnswer, match="schema of the output cannot be applied"):
        read(TextPart('{"a": 1}'), shape=shape)
    assert asked == []


@pytest.mark.parametrize(
    ("schema", "fits", "does_not"),
    [
        ({"type": "array", "items": {"$ref": "#"}}, [[], [[]]], [1]),
        ({"type": "array", "prefixItems": [{"type": "string"}], "items": {"$ref": "#/prefixItems/0"}}, ["a", "b"], ["a", 1]),
        ({"$id": "http://x/y", "type": "array", "items": {"$ref": "#/$defs/N"}, "$defs": {"N": {"type": "null"}}}, [None], [1]),
        ({"type": "array", "items": {"$ref": "#n"}, "$id": "http://x/y", "$defs": {"N": {"$anchor": "n", "type": "null"}}}, [None], [1]),
        ({"type": "array", "items": {"$ref": "#/$defs/N"}, "$defs": {"N": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}}, [[None]], [1]),
        ({"enum": ["a", "b"]}, "a", "c"),
        ({"const": 1}, 1, 2),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None, 1),
        ({"$ref": "#/$defs/N", "$defs": {"N": {"type": "string"}}}, "a", 1),
        ({"type": "string", "pattern": "^(a+)+$"}, "aa", "a" * 40 + "!"),
        ({"type": "string", "pattern": r"^\p{Letter}+$"}, "é", "1"),
    ],
)  # fmt: skip
def test_an_answer_that_a_session_asks_for_is_asked_for_where_a_model_can_give_it(
    schema: dict[str, Any], fits: Any, does_not: Any
) -> None:
    shape = shape_of_format(ResponseFormat(type=ResponseFormatType.JSON_SCHEMA, json_schema=schema))
    assert shape is not None
    assert shape.wrapped
    assert thaw(shape.read(json.dumps({"response": fits}))) == fits
    with pytest.raises(UnusableAnswer, match=r"does not fit its schema at \$\.response"):
        shape.read(json.dumps({"response": does_not}))


def test_a_schema_that_cannot_be_applied_is_not_paid_for_again() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}
    shape = shape_of_format(ResponseFormat(type=ResponseFormatType.JSON_SCHEMA, json_schema=schema))
    assert shape is not None
    with pytest.raises(UnusableAnswer, match="cannot be applied") as caught:
        shape.read('{"a": 1}')
    assert caught.value.permanent


SLOW = "^(a+)+$"
HOSTILE = "a" * 40 + "!"


def bomb(kind: str) -> dict[str, Any]:
    defs: dict[str, Any] = {f"d{n}": {kind: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    return {"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": {**defs, "d40": {"type": "null"}}}


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("schema", "answer", "problem"),
    [
        (bomb("allOf"), {"x": None}, "SchemaTooCostly"),
        (bomb("oneOf"), {"x": None}, "SchemaTooCostly"),
        (bomb("anyOf"), {"x": 1}, "SchemaTooCostly"),
        ({**bomb("allOf"), "properties": {}, "unevaluatedProperties": {"$ref": "#/$defs/d0"}}, {"x": None}, "Costly"),
        ({"type": "object", "patternProperties": {SLOW: {"type": "null"}}}, {"aa": 1, HOSTILE: 1}, "at $.aa"),
        ({"type": "object", "patternProperties": {SLOW: {}}, "additionalProperties": False}, {HOSTILE: 1}, "at $."),
        ({"type": "object", "properties": {"x": {"uniqueItems": True}}}, {"x": [{"n": n % 4999} for n in range(5000)]}, "x"),
    ],
)  # fmt: skip
def test_no_schema_of_a_session_costs_more_than_a_moment(schema: Any, answer: Any, problem: str) -> None:
    began = time.process_time()
    shape = shape_of_format(ResponseFormat(type=ResponseFormatType.JSON_SCHEMA, json_schema=schema))
    assert shape is not None
    shape.add_to(ModelRequestParameters(), TestModel())
    with pytest.raises(UnusableAnswer, match=re.escape(problem)):
        shape.read(json.dumps(answer))
    assert time.process_time() - began < 5


def test_a_schema_whose_patterns_the_library_would_run_is_refused_before_anything_is_paid() -> None:
    schema = {"type": "object", "patternProperties": {SLOW: {}}, "unevaluatedProperties": False}
    with pytest.raises(ConfigurationError, match="unevaluatedProperties is not applied beside patternProperties"):
        shape_of_format(ResponseFormat(type=ResponseFormatType.JSON_SCHEMA, json_schema=schema))


def test_a_large_answer_is_read_whole() -> None:
    item = {"anyOf": [{"type": "null"}, {"type": "string"}, {"$ref": "#/$defs/N"}], "$defs": {}}
    schema = {"type": "object", "properties": {"x": {"items": item}}, "$defs": {"N": {"type": "integer"}}}
    shape = shape_of_format(ResponseFormat(type=ResponseFormatType.JSON_SCHEMA, json_schema=schema))
    assert shape is not None
    shape.read(json.dumps({"x": [7] * 20_000}))
    with pytest.raises(UnusableAnswer, match=r"\$\.x\[20000\]"):
        shape.read(json.dumps({"x": [*[7] * 20_000, 1.5]}))


def test_a_part_of_another_dialect_is_read_by_the_same_rules() -> None:
    older = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "string", "pattern": SLOW}
    shape = shape_of_format(
        ResponseFormat(type=ResponseFormatType.JSON_SCHEMA, json_schema={"type": "object", "properties": {"x": older}})
    )
    assert shape is not None
    with pytest.raises(UnusableAnswer, match=r"at \$\.x"):
        shape.read(json.dumps({"x": HOSTILE}))
