"""A request is made acceptable to its provider; what is acceptable is sent as it is, and nothing stored changes."""

from __future__ import annotations

import asyncio
import copy
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI
from pydantic_ai.exceptions import FallbackExceptionGroup
from pydantic_ai.messages import (
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    NativeToolSearchReturnPart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolAvailabilityDeltaPart,
    ToolCallPart,
    ToolReturnPart,
    ToolSearchReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings, ToolOrOutput
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets._tool_search import parse_discovered_tools  # pyright: ignore[reportPrivateImportUsage]

from celery_agents.worker.drivers.pydantic_ai.acceptable import (
    NO_OUTPUT,
    NO_TEXT,
    AcceptableRequest,
    make_acceptable,
)
from celery_agents.worker.drivers.pydantic_ai.provider_rules import RULES, STRICTEST, ProviderRules, rules_of
from celery_agents.worker.drivers.pydantic_ai.sent_names import restore_names

OPENAI, ANTHROPIC, GOOGLE = RULES["OpenAIChatModel"], RULES["AnthropicModel"], RULES["GoogleModel"]
EVERY = [*RULES.values(), STRICTEST]


def call(call_id: str, name: str = "note", args: Any = "{}") -> ToolCallPart:
    return ToolCallPart(name, args, call_id)


def result(call_id: str, content: Any = "done", name: str = "note") -> ToolReturnPart:
    return ToolReturnPart(name, content, call_id)


def tool(name: str, **properties: Any) -> ToolDefinition:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return ToolDefinition(name=name, parameters_json_schema=schema)


def sent(messages: list[ModelMessage], rules: ProviderRules = ANTHROPIC, *tools: ToolDefinition) -> AcceptableRequest:
    before = copy.deepcopy(messages)
    request = make_acceptable(
        AcceptableRequest(messages, None, ModelRequestParameters(function_tools=list(tools))), rules
    )
    assert messages == before, "what is stored has changed"
    return request


def turn(*calls: ToolCallPart, results: list[ToolReturnPart]) -> list[ModelMessage]:
    return [
        ModelRequest(parts=[UserPromptPart("go")]),
        ModelResponse(parts=list(calls)),
        ModelRequest(parts=list(results)),
    ]


def calls_and_results(messages: list[ModelMessage]) -> tuple[list[str], list[tuple[str, Any]]]:
    parts: list[Any] = [part for message in messages for part in message.parts]
    calls = [part.tool_call_id for part in parts if part.part_kind == "tool-call"]
    return calls, [(part.tool_call_id, part.content) for part in parts if part.part_kind == "tool-return"]


@pytest.mark.parametrize("rules", EVERY)
def test_an_acceptable_history_is_the_same_objects(rules: ProviderRules) -> None:
    image = ImageUrl("https://example.com/a.png")
    messages = [
        ModelRequest(parts=[UserPromptPart(["look ü 😀", image])]),
        ModelResponse(parts=[ThinkingPart("hm", signature="s"), TextPart("ok"), call("c1", args='{"n":1.5e99}')]),
        ModelRequest(parts=[result("c1"), UserPromptPart("and?")]),
    ]
    request = sent(messages, rules, tool("note", text={"type": "string"}))
    assert all(a is b for a, b in zip(request.messages, messages, strict=True))


@pytest.mark.parametrize("rules", EVERY)
def test_calls_of_one_id_get_ids_of_their_own_and_results_follow_by_position(rules: ProviderRules) -> None:
    first = turn(call("x"), call("x"), call("y"), results=[result("x", "A"), result("x", "B"), result("y", "C")])
    second = turn(call("x"), results=[result("x", "D")])
    calls, results = calls_and_results(sent([*first, *second], rules).messages)
    assert len(set(calls)) == 4
    assert results == [(calls[0], "A"), (calls[1], "B"), (calls[2], "C"), (calls[3], "D")]


def test_ids_depend_on_what_came_before_alone_and_stay_unique() -> None:
    messages: list[ModelMessage] = []
    for made in ("x", "x_2", "x", "x_3", "x", "x_2"):
        messages += turn(call(made), results=[result(made)])
    whole = calls_and_results(sent(messages).messages)[0]
    assert len(set(whole)) == 6
    for length in range(0, len(messages), 3):
        assert calls_and_results(sent(messages[:length]).messages)[0] == whole[: length // 3]


def test_a_thousand_equal_ids_cost_no_search() -> None:
    messages = [message for _ in range(1000) for message in turn(call("call_0"), results=[result("call_0")])]
    assert len(set(calls_and_results(sent(messages).messages)[0])) == 1000


@pytest.mark.parametrize("call_id", ["functions.note:0", "a b", "ü", "", "i" * 300])
@pytest.mark.parametrize("rules", EVERY)
def test_ids_fit_and_pair(rules: ProviderRules, call_id: str) -> None:
    messages = turn(call(call_id), call(call_id), results=[result(call_id, 1), result(call_id, 2)])
    calls, results = calls_and_results(sent(messages, rules).messages)
    assert all(rules.call_id.fits(each) for each in calls)
    assert results == [(calls[0], 1), (calls[1], 2)]


def test_models_that_look_for_their_own_ids_find_them() -> None:
    messages = turn(call("functions.note:0"), results=[result("functions.note:0")])
    assert sent(messages, OPENAI).messages[1] is messages[1]


def test_a_result_without_its_call_is_left_out() -> None:
    messages = [*turn(call("x"), results=[result("x", "A"), result("x", "again"), result("never")])]
    later: list[ModelMessage] = [
        ModelResponse(parts=[TextPart("ok")]),
        ModelRequest(parts=[result("x", "late"), UserPromptPart("next")]),
    ]
    request = sent([*messages, *later])
    assert calls_and_results(request.messages) == (["x"], [("x", "A")])
    assert request.messages[-1].parts == [UserPromptPart("next", timestamp=later[1].parts[1].timestamp)]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "name", ["browser.tabs.open", "$note", "note<|channel|>json", "note ", "n" * 200, "", "1", "ü"]
)
@pytest.mark.parametrize("rules", EVERY)
def test_a_name_that_the_model_made_up_fits(rules: ProviderRules, name: str) -> None:
    request = sent(turn(call("c", name), results=[result("c", name=name)]), rules, tool("note"))
    made: Any = request.messages[1].parts[0]
    assert rules.tool_name.fits(made.tool_name)
    assert request.messages[2].parts[0].tool_name == made.tool_name  # type: ignore[union-attr]


def test_a_name_that_is_taken_at_one_provider_stays_there() -> None:
    messages = turn(call("c", "a.b"), results=[result("c", name="a.b")])
    assert sent(messages, GOOGLE).messages[1] is messages[1]
    assert sent(messages, OPENAI).messages[1].parts[0].tool_name == "a_b"  # type: ignore[union-attr]


def test_renamed_tools_and_arguments_are_restored_in_the_answer() -> None:
    text = {"type": "string"}
    tools = tool("crm.pay", **{"user id": text, "user_id": text, "plain": text}), tool("crm_pay"), tool("note")
    history = turn(call("c", "crm.pay", '{"user id":"u"}'), results=[result("c", name="crm.pay")])
    request = sent(history, ANTHROPIC, *tools)
    names = [each.name for each in request.parameters.function_tools]
    assert len(set(names)) == 3
    assert all(ANTHROPIC.tool_name.fits(name) for name in names)
    schema = request.parameters.function_tools[0].parameters_json_schema
    keys = list(schema["properties"])
    assert len(set(keys)) == 3
    assert schema["required"] == keys
    shown: Any = request.messages[1].parts[0]
    assert (shown.tool_name, json.loads(shown.args)) == (names[0], {keys[0]: "u"})
    answer = ModelResponse(
        parts=[call("d", names[0], {keys[0]: 1, keys[1]: 2}), call("e", names[1]), call("f", "other")]
    )
    restored: list[Any] = list(restore_names(answer, request.parameters).parts)
    assert [each.tool_name for each in restored] == ["crm.pay", "crm_pay", "other"]
    assert restored[0].args == {"user id": 1, "user_id": 2}


def test_names_do_not_depend_on_the_order_of_tools() -> None:
    one = sent([], ANTHROPIC, tool("a.b"), tool("a_b")).parameters.function_tools
    other = sent([], ANTHROPIC, tool("a_b"), tool("a.b")).parameters.function_tools
    assert {each.name for each in one} == {each.name for each in other}


@pytest.mark.parametrize("choice", [["crm.pay"], ToolOrOutput(function_tools=["crm.pay"])])
def test_a_choice_of_tools_follows_their_names(choice: Any) -> None:
    parameters = ModelRequestParameters(function_tools=[tool("crm.pay")])
    request = make_acceptable(AcceptableRequest([], ModelSettings(tool_choice=choice), parameters), OPENAI)
    chosen: Any = (request.settings or {})["tool_choice"]  # type: ignore[typeddict-item]
    assert getattr(chosen, "function_tools", chosen) == ["crm_pay"]


@pytest.mark.parametrize("args", ['{"a": NaN, "b": [1, -Infinity]}', '{"a": 1e999}', {"a": float("inf"), "b": [1.5]}])
def test_numbers_are_finite(args: Any) -> None:
    made: Any = sent(turn(call("c", args=args), results=[result("c")])).messages[1].parts[0]
    text = made.args_as_json_str()

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert json.loads(text, parse_constant=refuse)["a"] in ("NaN", "Infinity")


@pytest.mark.parametrize("args", ['{"a": 1', "[1]", "null", '"text"', "", '{"a": "\\ud800"}'])
def test_arguments_are_sent_as_an_object(args: str) -> None:
    made: Any = sent(turn(call("c", args=args), results=[result("c")])).messages[1].parts[0]
    assert isinstance(json.loads(made.args_as_json_str()), dict)


@pytest.mark.parametrize("blank", ["", " ", "\n\t "])
def test_no_text_is_blank(blank: str) -> None:
    messages: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart(blank), UserPromptPart([blank, "words"]), UserPromptPart([blank])]),
        ModelResponse(parts=[TextPart(blank), call("c")]),
        ModelRequest(parts=[result("c", blank)]),
    ]
    request = sent(messages).messages
    assert [part.content for part in request[0].parts] == [NO_TEXT, ["words"], NO_TEXT]  # type: ignore[union-attr]
    assert [part.part_kind for part in request[1].parts] == ["tool-call"]
    assert request[2].parts[0].content == NO_OUTPUT  # type: ignore[union-attr]


def test_a_blank_text_stays_where_a_provider_knows_it_by_its_id() -> None:
    response = ModelResponse(parts=[ThinkingPart("", id="rs_1"), TextPart("", id="msg_1")])
    assert sent([response], RULES["OpenAIResponsesModel"]).messages == [response]


def test_texts_are_whole_unicode() -> None:
    half, pair = "half \ud83d", "pair \ud83d\ude00"
    messages: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart(half), UserPromptPart([pair])]),
        ModelResponse(parts=[ThinkingPart(half, signature="s"), TextPart(pair), call("c", args='{"a": "\ud83d"}')]),
        ModelRequest(parts=[result("c", half)]),
    ]
    request = sent(messages).messages
    parts: list[Any] = [part for message in request for part in message.parts]
    assert [part.content for part in parts if hasattr(part, "content")] == [
        "half �", ["pair 😀"], "half �", "pair 😀", "half �",
    ]  # fmt: skip
    assert (parts[2].signature, parts[4].args) == (None, '{"a": "�"}')


def test_a_model_that_asks_no_provider_gets_what_is_there() -> None:
    given = AcceptableRequest(turn(call("a b"), results=[result("a b", "")]), None, ModelRequestParameters())
    assert make_acceptable(given, None) is given


def test_a_thought_of_openais_responses_is_no_field_of_a_chat_completion() -> None:
    thought = ThinkingPart("hm", id="rs_1", signature="s", provider_name="openai")
    history: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart("hi")]), ModelResponse(parts=[thought])]
    assert sent(history, OPENAI).messages[1].parts == [replace(thought, id=None)]
    assert sent(history, RULES["OpenAIResponsesModel"]).messages[1] is history[1]
    field = ThinkingPart("hm", id="reasoning_content", provider_name="openai")
    assert sent([ModelResponse(parts=[field])], OPENAI).messages[0].parts == [field]


def test_the_users_turn_is_the_first_and_answers_alternate_where_a_provider_wants_that() -> None:
    first, more = ModelResponse(parts=[TextPart("Hello.")]), ModelResponse(parts=[TextPart("May I help?")])
    question = ModelRequest(parts=[UserPromptPart("Yes.")])
    system = ModelRequest(parts=[SystemPromptPart("Be brief.")])
    bedrock = RULES["BedrockConverseModel"]
    for before in ([], [system]):
        begun, answer, last = sent([*before, first, more, question], bedrock).messages[len(before) :]
        assert begun.parts[0].content == NO_TEXT  # type: ignore[union-attr]
        assert answer.parts == [*first.parts, *more.parts]
        assert last is question
    assert sent([first, more, question], OPENAI).messages == [first, more, question]
    usual = [question, first, question]
    assert all(a is b for a, b in zip(sent(usual, bedrock).messages, usual, strict=True))


def test_an_answer_of_openais_responses_goes_to_both_interfaces_of_a_fallback_as_text() -> None:
    sent_to: dict[str, Any] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        sent_to[request.url.path] = json.loads(request.content)
        return httpx.Response(503, json={"error": {"message": "away"}})

    http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    provider = OpenAIProvider(openai_client=AsyncOpenAI(api_key="none", max_retries=0, http_client=http))
    model = FallbackModel(OpenAIResponsesModel("gpt-5", provider=provider), OpenAIChatModel("gpt-5", provider=provider))
    of_openai: dict[str, Any] = {"provider_name": "openai"}
    answered = ModelResponse(
        parts=[
            ThinkingPart("hm", id="rs_1", signature="s", **of_openai),
            ThinkingPart("", id="rs_2", signature="s", **of_openai),
            TextPart("One moment.", id="msg_1", **of_openai),
            ToolCallPart("look", {}, "call_1", id="fc_1", **of_openai),
        ],
        **of_openai,
    )
    history: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart("hi")]), answered]
    history.append(ModelRequest(parts=[result("call_1", "seen")]))
    request = make_acceptable(AcceptableRequest(history, None, ModelRequestParameters()), rules_of(model))
    with pytest.raises(FallbackExceptionGroup):
        asyncio.run(model.request(request.messages, None, request.parameters))
    # A call with its id needs the thought before it, and a thought's id is a field of chat completions.
    assert not {key for each in sent_to["/v1/responses"]["input"] for key in each} & {"id", "encrypted_content"}
    asked = sent_to["/v1/chat/completions"]["messages"][1]
    assert set(asked) == {"role", "content", "tool_calls"}
    assert asked["content"] == "<think>\nhm\n</think>\n\nOne moment."


def test_a_tool_that_was_found_by_a_search_is_found_under_the_name_that_is_sent() -> None:
    found: Any = {"discovered_tools": [{"name": "crm.find"}, {"name": "note"}]}
    searched = ToolSearchReturnPart(content=found, tool_call_id="c")
    native = NativeToolSearchReturnPart(content=found, tool_call_id="n")
    history = [
        *turn(call("c", "search_tools"), results=[searched]),
        ModelResponse(parts=[native]),
        ModelRequest(parts=[ToolAvailabilityDeltaPart(tools_added=["crm.find"])]),
    ]
    request = sent(history, OPENAI, tool("crm.find"), tool("note"))
    assert parse_discovered_tools(history) == {"crm.find", "note"}
    assert parse_discovered_tools(request.messages) == {"crm_find", "note"}
    answer: Any = request.messages[3]
    assert restore_names(answer, request.parameters).parts[0].content == found  # type: ignore[union-attr]


def test_a_tool_that_came_later_is_introduced_under_the_name_that_is_sent() -> None:
    parameters = ModelRequestParameters(function_tools=[tool("crm.find")], introduced_tool_names={"crm.find"})
    request = make_acceptable(AcceptableRequest(turn(results=[]), None, parameters), OPENAI)
    assert request.parameters.introduced_tool_names == {"crm_find"}
