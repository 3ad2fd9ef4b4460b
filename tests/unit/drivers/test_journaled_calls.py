"""The calls of a journaled answer are read without the driver that wrote it, in each form that our drivers write."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from celery_agents import CeleryDurability
from celery_agents.worker.drivers import InferenceRequest
from celery_agents.worker.drivers.journaled_calls import read_calls
from celery_agents.worker.drivers.pydantic_ai.answers import Answer
from celery_agents.worker.state import InferenceResponse, ToolCall

from support.pydantic_found import found, submitted

CALLS = (ToolCall(id="a", name="refund", args={"cents": 5}), ToolCall(id="b", name="look", args={}))


def test_an_answer_of_a_function_or_a_script() -> None:
    assert read_calls(InferenceResponse(content="x", tool_calls=CALLS).to_json()) == CALLS


def test_an_answer_of_pydantic_ai() -> None:
    parts = [TextPart("x"), ToolCallPart("refund", {"cents": 5}, "a"), ToolCallPart("look", None, "b")]
    raw = Answer(ModelResponse(parts), model="openai:gpt", cost=None, shape=None).to_raw()
    assert read_calls(raw) == CALLS


def test_text_that_is_no_object_stays_text() -> None:
    raw = Answer(ModelResponse([ToolCallPart("look", "not json", "a")]), model="m", cost=None, shape=None).to_raw()
    assert read_calls(raw) == (ToolCall(id="a", name="look", args="not json"),)


def test_an_answer_of_an_agent_of_pydantic_ai() -> None:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        calls = [ToolCallPart("look", {"text": text}, tool_call_id="x") for text in "AB"]
        return ModelResponse(parts=[TextPart("I look."), *calls])

    agent: Any = PydanticAgent(FunctionModel(answer), name="twins", capabilities=[CeleryDurability(effect="keyed")])

    @agent.tool_plain
    def look(text: str) -> str:
        return text

    driver: Any = found(agent).driver
    with submitted(agent) as (bench, session):
        request = InferenceRequest(state=bench.state(session), session_id="s", execution_id="e", step=1)
        raw = asyncio.run(driver.infer(request))
    calls = read_calls(raw)
    assert calls == driver.parse(raw).tool_calls
    assert [(call.name, call.args) for call in calls] == [("look", {"text": "A"}), ("look", {"text": "B"})]


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b'{"messages": []}', b'{"a": 1}\n[]', b"\xff\xfe", b"7"])
def test_what_is_not_known_has_no_calls(raw: bytes) -> None:
    assert read_calls(raw) == ()
