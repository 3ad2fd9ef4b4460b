"""Structured output."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel, field_validator
from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.test import TestModel

from celery_agents.worker.drivers import PydanticAIDriver
from celery_agents.worker.drivers.pydantic_ai.answers import Answer
from celery_agents.worker.drivers.pydantic_ai.output import OutputShape, OutputType, shape_of_format
from celery_agents.worker.errors import ConfigurationError, UnusableAnswer
from celery_agents.worker.state import AgentStep, InferenceResponse, ResponseFormat, ResponseFormatType


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


def test_an_output_in_a_fence_of_markdown():
    assert read(TextPart('```json\n{"name": "Brno"}\n```')).output == {"name": "Brno"}


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
