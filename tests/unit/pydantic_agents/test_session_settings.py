"""A session of a pydantic-ai agent may have a prompt, a model and settings of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from celery_agents import CeleryDurability, LLMConfig
from celery_agents.worker.drivers import TokenPrice
from celery_agents.worker.state import FrozenDict

from support.local_server import LocalServer, QuietHandler
from support.pydantic_found import found, submitted
from support.wire import Said, Wire


def agent_that_tells(asked: list[AgentInfo], **options: Any) -> Any:
    """An agent that calls a tool and answers; what its own model is asked goes to `asked`."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(info)
        if len(asked) % 2:
            return ModelResponse(parts=[ToolCallPart("look", {}, tool_call_id="c")])
        return ModelResponse(parts=[TextPart("own")])

    agent: PydanticAgent[None, Any] = PydanticAgent(
        FunctionModel(answer),
        name="tells",
        instructions="Be kind.",
        model_settings={"temperature": 0.5, "top_p": 0.9},
        capabilities=[CeleryDurability(effect="pure", **options)],
    )

    @agent.tool_plain
    def look() -> str:
        return "looked"

    return agent


def test_a_prompt_of_the_session_takes_the_place_of_the_agents_instructions() -> None:
    asked: list[AgentInfo] = []
    with submitted(agent_that_tells(asked)) as (bench, session):
        bench.change_prompt(session, "Be brief.")
        bench.run(session)
        assert [info.instructions for info in asked] == ["Be brief.", "Be brief."]
        bench.change_prompt(session, "")
        bench.send(session, "again")
        bench.run(session)
        assert [info.instructions for info in asked[2:]] == ["Be kind.", "Be kind."]


def test_settings_of_the_session_are_added_to_the_agents() -> None:
    asked: list[AgentInfo] = []
    with submitted(agent_that_tells(asked)) as (bench, session):
        bench.change_model(session, LLMConfig(settings=FrozenDict({"temperature": 0.1})))
        bench.run(session)
        assert [dict(info.model_settings or {}) for info in asked] == [{"temperature": 0.1, "top_p": 0.9}] * 2


@pytest.fixture
def other() -> Iterator[tuple[str, list[Any]]]:
    """The address of a server with another model, and what that is asked."""
    requests: list[Any] = []
    wire = Wire("openai", [Said(calls=[("c", "look", {})]), Said("other")])

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            requests.append(body)
            data = json.dumps(wire.answer_to(body)).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = LocalServer(Handler)
    yield f"{server.url}/v1", requests
    server.close()


def test_a_model_of_the_session_is_asked_with_the_agents_tools(other: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "not-a-real-key")
    url, requests = other
    asked: list[AgentInfo] = []
    price = TokenPrice(input=1_000_000, output=1_000_000)
    with submitted(agent_that_tells(asked, price=price)) as (bench, session):
        bench.change_model(session, LLMConfig(model="openai:gpt-5-mini", base_url=url))
        bench.run(session)
        record = bench.record(session)
        assert (record.status, record.final_response) == ("completed", "other")
        assert asked == []
        assert [body["model"] for body in requests] == ["gpt-5-mini", "gpt-5-mini"]
        assert [tool["function"]["name"] for tool in requests[0]["tools"]] == ["look"]
        assert record.cost is not None
        assert record.cost < 1, "its own price, not that of the agent's model"


def test_a_model_that_does_not_exist_fails_with_its_name_and_loses_nothing() -> None:
    asked: list[AgentInfo] = []
    with submitted(agent_that_tells(asked)) as (bench, session):
        bench.change_model(session, LLMConfig(model="nowhere:model"))
        bench.run(session)
        assert bench.record(session).status == "failed"
        assert "nowhere" in bench.record(session).errors[0]
        bench.change_model(session, LLMConfig())
        bench.retry(session)
        bench.run(session)
        assert bench.record(session).final_response == "own"


def test_a_cost_limit_looks_at_the_price_of_the_sessions_model() -> None:
    driver: Any = found(agent_that_tells([], price=TokenPrice(input=1, output=1))).driver
    assert driver.knows_price(None)
    assert driver.knows_price(LLMConfig(model="openai:gpt-5-mini"))
    assert not driver.knows_price(LLMConfig(model="openai:nobody-knows-it"))
