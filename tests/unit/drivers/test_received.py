"""An answer that was paid for can be stored, whatever is in it; a stream that broke off is no answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pydantic_ai.models
import pytest
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import RequestUsage

from celery_agents.worker.drivers.pydantic_ai.provider_rules import RULES, STRICTEST, rules_of
from celery_agents.worker.drivers.pydantic_ai.received import check_is_whole, make_storable
from celery_agents.worker.errors import DriverError

HALF = "half \ud83d"


def answer(*parts: Any, **more: Any) -> ModelResponse:
    return ModelResponse(parts=list(parts), usage=RequestUsage(input_tokens=3, output_tokens=5), **more)


def stored(response: ModelResponse) -> list[Any]:
    (read,) = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json([make_storable(response)]))
    assert read.usage == response.usage  # type: ignore[union-attr]
    return list(read.parts)


def test_a_whole_answer_is_the_same_object() -> None:
    response = answer(TextPart("ü 😀"), ToolCallPart("t", {"a": [1.5, {"b": "😀"}]}, "c"))
    assert make_storable(response) is response


def test_a_block_that_is_newer_than_pydantic_ai_is_left_out() -> None:
    (text,) = stored(answer(TextPart(None), TextPart("x")))  # type: ignore[arg-type]
    assert text.content == "x"


def test_halves_of_characters_in_texts_are_replaced_and_pairs_are_joined() -> None:
    text, thought = stored(answer(TextPart("\ud83d\ude00 " + HALF), ThinkingPart(HALF, signature="of other words")))
    assert text.content == "😀 half �"
    assert (thought.content, thought.signature) == ("half �", None)


def test_a_thought_beside_a_broken_text_keeps_its_signature() -> None:
    assert stored(answer(TextPart(HALF), ThinkingPart("hm", signature="s")))[1].signature == "s"


@pytest.mark.parametrize("args", [{"a": HALF}, json.dumps({"a": HALF}, ensure_ascii=False), {"a": {HALF: [HALF]}}])
def test_half_a_character_in_arguments_is_what_the_model_wrote(args: Any) -> None:
    (call,) = stored(answer(ToolCallPart("t", args, "c")))
    assert json.loads(call.args) == (args if isinstance(args, dict) else json.loads(args))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_json_has_not_is_what_the_model_wrote(number: str) -> None:
    (call,) = stored(answer(ToolCallPart("t", {"a": [1, float(number)]}, "c")))
    assert call.args == f'{{"a": [1, {number}]}}'


def test_details_and_names_are_whole_too() -> None:
    (call,) = stored(answer(ToolCallPart(HALF, "{}", HALF), provider_details={HALF: [HALF]}))
    assert (call.tool_name, call.tool_call_id) == ("half �", "half �")


@pytest.mark.parametrize(
    ("rules", "response", "is_whole"),
    [
        ("OpenAIChatModel", answer(finish_reason="stop"), False),  # pydantic-ai's own word
        ("OpenAIChatModel", answer(finish_reason="stop", provider_details={"finish_reason": "stop"}), True),
        ("OpenAIChatModel", answer(provider_details={"finish_reason": "brand_new"}), True),
        ("OpenAIChatModel", answer(finish_reason="content_filter", provider_details={"refusal": "no"}), True),
        ("OpenAIResponsesModel", answer(state="incomplete"), False),
        ("AnthropicModel", answer(TextPart("half of")), False),
        ("AnthropicModel", answer(state="suspended"), True),
        ("GoogleModel", answer(finish_reason="content_filter"), True),
    ],
)
def test_a_stream_is_whole_when_its_provider_says_so(rules: str, response: ModelResponse, is_whole: bool) -> None:
    if is_whole:
        check_is_whole(response, RULES[rules], "m", streamed=True)
        return
    with pytest.raises(DriverError) as raised:
        check_is_whole(response, RULES[rules], "m", streamed=True)
    assert (raised.value.kind, raised.value.transient) == ("interrupted", True)


def test_no_reason_is_asked_of_models_of_unknown_interfaces() -> None:
    check_is_whole(answer(TextPart("all of it")), STRICTEST, "m", streamed=True)
    check_is_whole(answer(TextPart("all of it")), None, "m", streamed=True)


def test_rules_are_those_of_the_interface() -> None:
    openai = OpenAIChatModel("m", provider=OpenAIProvider(api_key="x"))

    class Ours(OpenAIChatModel):
        pass

    assert rules_of(openai) is RULES["OpenAIChatModel"]
    assert rules_of(Ours("m", provider=OpenAIProvider(api_key="x"))) is RULES["OpenAIChatModel"]
    assert rules_of(WrapperModel(openai)) is RULES["OpenAIChatModel"]
    assert rules_of(FallbackModel(openai, TestModel())) is STRICTEST
    claude = AnthropicModel("m", provider=AnthropicProvider(api_key="x"))
    several = WrapperModel(FallbackModel(openai, claude, TestModel()))
    for provider, interface in (("openai", "OpenAIChatModel"), ("anthropic", "AnthropicModel")):
        assert rules_of(several, replace(answer(), provider_name=provider)) is RULES[interface]
    assert rules_of(several, answer()) is STRICTEST
    assert rules_of(several, replace(answer(), provider_name="test")) is None
    assert rules_of(TestModel()) is None
    assert rules_of(FunctionModel(lambda messages, info: answer())) is None


def test_every_row_names_a_model_of_pydantic_ai() -> None:
    folder = Path(pydantic_ai.models.__file__).parent
    sources = "".join(source.read_text() for source in folder.rglob("*.py"))
    assert [name for name in RULES if f"class {name}(" not in sources] == []


def test_a_whole_answer_needs_a_reason_only_where_every_one_has() -> None:
    check_is_whole(answer(TextPart("all of it")), RULES["OpenAIChatModel"], "m", streamed=False)
    with pytest.raises(DriverError):
        check_is_whole(answer(TextPart("half of")), RULES["AnthropicModel"], "m", streamed=False)
