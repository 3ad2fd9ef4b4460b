"""How an answer is journaled and read."""

import json
from typing import Any

import pytest
from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.usage import RequestUsage

from celery_agents.worker.drivers import PydanticAIDriver
from celery_agents.worker.drivers.pydantic_ai.answers import Answer
from celery_agents.worker.errors import UnusableAnswer
from celery_agents.worker.state import FinishReason, InferenceResponse, InferenceUsage, ToolCall

DRIVER = PydanticAIDriver("openai:gpt-5-mini")


def read(*parts: Any, cost: float | None = None, **more: Any) -> InferenceResponse:
    return DRIVER.parse(Answer(ModelResponse(parts=list(parts), **more), "openai:gpt-5-mini", cost, None).to_raw())


def test_everything_we_have_a_name_for_is_read():
    answer = read(
        ThinkingPart("first"),
        ThinkingPart("second"),
        TextPart("Let me see."),
        ToolCallPart("search", '{"query": "x"}', "call_1"),
        usage=RequestUsage(
            input_tokens=100,
            cache_read_tokens=40,
            cache_write_tokens=10,
            output_tokens=30,
            output_reasoning_tokens=20,
        ),
        model_name="gpt-5-mini-2025-08-07",
        provider_response_id="resp_1",
        finish_reason="tool_call",
        cost=0.125,
    )
    assert answer.content == "Let me see."
    assert answer.tool_calls == (ToolCall(id="call_1", name="search", args={"query": "x"}),)
    assert answer.usage == InferenceUsage(input=50, cache_read=40, cache_write=10, output=10, reasoning=20, requests=1)
    assert answer.usage.total == 130
    assert answer.thinking == "first\n\nsecond"
    assert (answer.model, answer.request_id, answer.cost) == ("gpt-5-mini-2025-08-07", "resp_1", 0.125)
    assert answer.finish_reason is FinishReason.TOOL_CALLS


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("stop", FinishReason.STOP),
        ("length", FinishReason.LENGTH),
        ("content_filter", FinishReason.CONTENT_FILTER),
        ("tool_call", FinishReason.TOOL_CALLS),
        ("error", FinishReason.ERROR),
        (None, FinishReason.OTHER),
    ],
)
def test_finish_reasons(said: Any, reason: FinishReason):
    assert read(TextPart("x"), finish_reason=said).finish_reason is reason


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("model_context_window_exceeded", FinishReason.LENGTH), ("max_tokens", FinishReason.LENGTH),
        ("model_length", FinishReason.LENGTH), ("error", FinishReason.ERROR), ("abort", FinishReason.ERROR),
        ("insufficient_system_resource", FinishReason.ERROR), ("brand_new", FinishReason.OTHER),
    ],
)  # fmt: skip
def test_words_of_other_servers_for_an_answer_that_is_not_whole(said: str, reason: FinishReason) -> None:
    assert read(TextPart("x"), provider_details={"finish_reason": said}).finish_reason is reason


def test_calls_without_a_finish_reason_are_tool_calls():
    assert read(ToolCallPart("a", "{}", "1")).finish_reason is FinishReason.TOOL_CALLS


@pytest.mark.parametrize(
    ("args", "kept"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (None, {}),
        ('{"a": ', '{"a": '),
        ("[1]", "[1]"),
        ('{"a": NaN}', '{"a": NaN}'),
    ],
)
def test_arguments_that_are_no_object_are_kept_as_they_were_written(args: Any, kept: Any):
    assert read(ToolCallPart("a", args, "1")).tool_calls[0].args == kept


def test_calls_without_an_id_get_their_place():
    calls = read(ToolCallPart("a", "{}", ""), ToolCallPart("b", "{}", "")).tool_calls
    assert [call.id for call in calls] == ["call_0", "call_1"]


def test_an_empty_answer_is_an_answer():
    assert read(finish_reason="stop").content == ""


def test_the_same_bytes_give_the_same_response_on_any_worker():
    raw = Answer(ModelResponse(parts=[ThinkingPart("t"), TextPart("x")]), "openai:gpt-5-mini", 0.1, None).to_raw()
    assert DRIVER.parse(raw) == PydanticAIDriver("anthropic:claude-haiku-4-5").parse(raw)


@pytest.mark.parametrize("state", ["suspended", "incomplete"])
def test_an_answer_that_is_cut_off_is_unusable(state: Any):
    usage = RequestUsage(input_tokens=7)
    with pytest.raises(UnusableAnswer, match=f"is {state}, not complete") as caught:
        read(TextPart("x"), state=state, usage=usage, cost=0.5, model_name="gpt-5-mini-2026")
    error = caught.value
    assert (error.usage.input, error.cost, error.model) == (7, 0.5, "gpt-5-mini-2026")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"x",
        b"{}\n[]",
        b'{"format":"other"}\n[]',
        b'{"format":"pydantic-ai/1","model":"m","cost":null,"shape":null}\n[]',
        b'{"format":"pydantic-ai/1","model":"m","cost":null,"shape":null}\n[{"kind":"response"}]',
        b'{"format":"pydantic-ai/1","model":"m","cost":null,"shape":5}\n[]',
        b"[]\n[]",
        b"\xff\n\xff",
    ],
)
def test_bytes_that_are_no_answer_are_unusable_for_good(raw: bytes):
    with pytest.raises(UnusableAnswer, match="not one of this driver") as caught:
        DRIVER.parse(raw)
    assert caught.value.permanent
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "parts",
    [
        [ToolCallPart("a", {"n": 10**2000}, "1"), ThinkingPart("t", provider_details={"n": 10**2000})],
        [ThinkingPart("t", provider_details={"deep": json.loads("[" * 150 + "]" * 150)})],
    ],
)
def test_values_that_cannot_be_stored_make_an_answer_unusable(parts: list[Any]):
    with pytest.raises(UnusableAnswer, match="cannot be stored") as caught:
        read(*parts)
    assert caught.value.transient


def test_a_count_that_no_field_can_hold_is_the_largest_and_costs_no_second_answer():
    large = RequestUsage(input_tokens=2**65, cache_read_tokens=2**63, cache_write_tokens=2**63, output_tokens=10**30)
    assert read(TextPart("x"), usage=large).usage.output == 2**63 - 1
    assert read(TextPart("x"), usage=large).usage.sent == 2**63 - 1


def test_negative_counts_make_an_answer_unusable():
    with pytest.raises(UnusableAnswer, match="cannot be stored"):
        read(TextPart("x"), usage=RequestUsage(input_tokens=5, output_tokens=-1))


@pytest.mark.parametrize("name", ["format", "model", "cost", "shape"])
def test_an_answer_that_lacks_what_the_asking_worker_knew_is_refused(name: str):
    response = ModelResponse(parts=[TextPart("x")])
    head, _, body = Answer(response, "openai:gpt-5-mini", 0.5, None).to_raw().partition(b"\n")
    known = {key: value for key, value in json.loads(head).items() if key != name}
    with pytest.raises(UnusableAnswer, match="not one of this driver"):
        DRIVER.parse(json.dumps(known).encode() + b"\n" + body)
