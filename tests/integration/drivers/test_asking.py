"""The pydantic-ai driver against a provider in another process: what it sends, and what becomes of the answer."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from celery_agents.worker.drivers import InferenceRequest, PydanticAIDriver, TokenPrice
from celery_agents.worker.errors import DriverError
from celery_agents.worker.flow.values import ProviderFacts
from celery_agents.worker.state import (
    AgentState,
    AgentStep,
    FinishReason,
    FrozenDict,
    InferenceResponse,
    LLMConfig,
    Message,
    ResponseFormat,
    ResponseFormatType,
    ToolExecution,
    ToolOutcome,
    join,
    message_json,
    split,
    step_json,
    utcnow,
)
from celery_agents.worker.tools import ToolSet, tool

from support.provider import Provider, calls, tool_call

KEY = "sk-integration-0123456789abcdef"


class Place(BaseModel):
    """Where."""

    city: str
    street: str | None = None


@tool(effect="pure")
def weather(place: Place, days: int = 3, unit: Literal["C", "F"] = "C") -> str:
    """The weather forecast.

    Args:
        place: Where.
        days: How many days ahead.
    """
    return "sun"


TOOLS = ToolSet([weather])


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def driver_for(provider: Provider, model: str = "openai:gpt-4o-mini", **options: Any) -> PydanticAIDriver:
    return PydanticAIDriver(model, base_url=provider.base_url, **options)


def asked(state: AgentState, step: int = 1, **more: Any) -> InferenceRequest:
    return InferenceRequest(state, "s", "e", step, tools=TOOLS.specs(), **{"timeout": 10.0, **more})


def answer(driver: PydanticAIDriver, request: InferenceRequest) -> InferenceResponse:
    async def once() -> bytes:
        try:
            return await driver.infer(request)
        finally:
            await driver.aclose()

    return driver.parse(asyncio.run(once()))


def greeting(**more: Any) -> AgentState:
    return AgentState.fresh(system_prompt="Be brief.", **more).with_messages([Message.user("hi")])


def test_one_infer_is_one_request_with_prompt_messages_settings_and_the_tools_schemas(provider: Provider):
    provider.plan("hello")
    driver = driver_for(provider, settings={"temperature": 0.25, "max_tokens": 99, "seed": 7})
    response = answer(driver, asked(greeting()))
    (entry,) = provider.ledger()
    body = entry["request"]
    assert entry["key"] == KEY
    assert body["model"] == "gpt-4o-mini"
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert (body["temperature"], body["seed"]) == (0.25, 7)
    assert 99 in (body.get("max_tokens"), body.get("max_completion_tokens"))
    (sent,) = body["tools"]
    assert sent["function"]["name"] == "weather"
    assert sent["function"]["description"] == "The weather forecast."
    parameters = sent["function"]["parameters"]
    assert parameters["required"] == ["place"]
    assert parameters["properties"]["days"] == {
        "type": "integer",
        "default": 3,
        "description": "How many days ahead.",
    }
    assert parameters["properties"]["unit"] == {"type": "string", "enum": ["C", "F"], "default": "C"}
    assert parameters["$defs"]["Place"]["properties"]["city"] == {"type": "string"}
    assert response.content == "hello"


def test_usage_price_finish_reason_thinking_and_calls_survive(provider: Provider):
    usage = {
        "prompt_tokens": 1000,
        "completion_tokens": 200,
        "total_tokens": 1200,
        "prompt_tokens_details": {"cached_tokens": 400},
        "completion_tokens_details": {"reasoning_tokens": 150},
    }
    provider.plan(
        calls(
            tool_call("weather", {"place": {"city": "Brno"}}, id="call_a"),
            tool_call("weather", '{"place": ', id="call_b"),
            content="Let me see.",
            reasoning="The user greets.",
            usage=usage,
            model="gpt-4o-mini-2024-07-18",
        )
    )
    response = answer(driver_for(provider), asked(greeting()))
    assert response.content == "Let me see."
    assert response.thinking == "The user greets."
    assert [(call.id, call.args) for call in response.tool_calls] == [
        ("call_a", {"place": {"city": "Brno"}}),
        ("call_b", '{"place": '),
    ]
    used = response.usage
    assert (used.input, used.cache_read, used.output, used.reasoning, used.requests) == (600, 400, 50, 150, 1)
    assert response.finish_reason is FinishReason.TOOL_CALLS
    assert response.model == "gpt-4o-mini-2024-07-18"
    assert response.request_id == "chatcmpl-1"
    assert response.cost == pytest.approx((600 * 0.15 + 400 * 0.075 + 200 * 0.60) / 1_000_000)


@pytest.mark.parametrize(("said", "reason"), [("length", "length"), ("content_filter", "content_filter")])
def test_the_finish_reason_is_the_providers(provider: Provider, said: str, reason: str):
    provider.plan({"content": "x", "finish_reason": said})
    assert answer(driver_for(provider), asked(greeting())).finish_reason == reason


def test_a_model_without_a_public_price_has_no_cost_or_the_given_one(provider: Provider):
    provider.plan({"content": "x", "usage": {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}})
    assert answer(driver_for(provider, "my-model"), asked(greeting())).cost is None
    priced = driver_for(provider, "my-model", price=TokenPrice(input=10, output=20))
    assert answer(priced, asked(greeting())).cost == pytest.approx(0.002)


def test_an_agents_own_model_address_and_settings_win(provider: Provider):
    provider.plan("x")
    config = LLMConfig(model="openai:gpt-4o", base_url=provider.base_url, settings=FrozenDict({"temperature": 0.75}))
    driver = PydanticAIDriver(
        "openai:gpt-4o-mini", base_url="http://127.0.0.1:9/v1", settings={"temperature": 0.1, "seed": 3}
    )
    answer(driver, asked(greeting(), settings=config))
    body = provider.ledger()[0]["request"]
    assert (body["model"], body["temperature"], body["seed"]) == ("gpt-4o", 0.75, 3)


def test_settings_that_the_engine_decides_cannot_come_back_through_the_session(provider: Provider):
    provider.plan("x", faults=[{"fault": "status", "code": 500}])
    config = LLMConfig(settings=FrozenDict({"max_retries": 5, "timeout": 0.0001, "request_timeout": 0.0001}))
    with pytest.raises(Exception, match="HTTP 500"):
        answer(driver_for(provider), asked(greeting(), settings=config))
    assert len(provider.ledger()) == 1


Store = Callable[[AgentState], AgentState]


def kept(state: AgentState) -> AgentState:
    return state


def stored_and_read_elsewhere(state: AgentState) -> AgentState:
    parts = split(state)
    sections = {name: [message_json(each) for each in found.messages] for name, found in parts.sections.items()}
    return join(parts.head, sections, [step_json(each) for each in parts.steps])


def converse(provider: Provider, store: Store, steps: int) -> list[Any]:
    """A conversation; every step has a driver of its own, and the state goes through `store` after each."""
    plan = [
        calls(
            *(tool_call("weather", {"place": {"city": f"B-{n}-{i}"}}, id=f"c{n}_{i}") for i in range(n % 3 + 1)),
            content=f"Step {n} – žluťoučký 🐎" if n % 2 else None,
            **({"reasoning": f"Thought {n}"} if n % 4 < 2 else {}),
        )
        for n in range(steps - 1)
    ]
    provider.plan(*plan, "done")
    state = greeting().with_execution().with_execution_started()
    for number in range(1, steps + 1):
        response = answer(driver_for(provider), asked(state, number))
        step = AgentStep.from_inference(response, executed(response), number=number, inputs=state.store.extents)
        state = store(state.with_current_step(step).with_current_step_completed())
    return [entry["request"] for entry in provider.ledger()]


def executed(response: InferenceResponse) -> list[ToolExecution]:
    now = utcnow()
    outcomes = (
        {"outcome": ToolOutcome.OK, "value": {"sky": ["blue", 1]}},
        {"outcome": ToolOutcome.OK, "value": "sun"},
        {"outcome": ToolOutcome.UNKNOWN},
    )
    return [
        ToolExecution(tool_call=call, started_at=now, completed_at=now, index=i, **outcomes[i % 3])  # type: ignore[arg-type]
        for i, call in enumerate(response.tool_calls)
    ]


def test_every_turn_sends_what_a_single_process_would_send(provider: Provider, provider_process: Any):
    steps = 12
    elsewhere = Provider(provider_process, f"{provider.url.rpartition('/')[2]}-elsewhere")
    here = converse(provider, kept, steps)
    there = converse(elsewhere, stored_and_read_elsewhere, steps)
    assert json.dumps(here) == json.dumps(there)
    assert len(here) == steps
    # And each turn is the one before with something added: a provider's cache of the prompt stays good.
    for before, after in pairwise(here):
        assert after["messages"][: len(before["messages"])] == before["messages"]
    thoughts = [message.get("reasoning_content") for message in here[-1]["messages"] if "reasoning_content" in message]
    assert [thought for thought in thoughts if thought] == [f"Thought {n}" for n in range(steps - 1) if n % 4 < 2]


def test_structured_output_through_the_sessions_response_format(provider: Provider):
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    wanted = ResponseFormat(type=ResponseFormatType.JSON_SCHEMA, json_schema=FrozenDict(schema), name="trip")
    provider.plan('{"city": "Brno", "days": 2}')
    response = answer(driver_for(provider), asked(greeting(response_format=wanted)))
    sent = provider.ledger()[0]["request"]["response_format"]
    assert sent["type"] == "json_schema"
    assert sent["json_schema"]["name"] == "trip"
    assert sent["json_schema"]["schema"]["required"] == ["city", "days"]
    assert response.output == {"city": "Brno", "days": 2}


def test_structured_output_by_a_type_waits_until_the_tools_are_done(provider: Provider):
    provider.plan(calls(tool_call("weather", {"place": {"city": "Brno"}})), '{"city": "Brno"}')
    driver = driver_for(provider, output_type=Place)
    state = greeting()
    first = answer(driver, asked(state))
    assert first.output is None
    step = AgentStep.from_inference(first, executed(first))
    second = answer(driver, asked(state.with_execution().with_execution_started().with_current_step(step), 2))
    assert second.output == {"city": "Brno"}


def test_one_driver_serves_several_event_loops(provider: Provider):
    provider.plan("x")
    driver = driver_for(provider)
    raws = [asyncio.run(_awaited(driver.infer(asked(greeting())))) for _ in range(3)]
    assert {driver.parse(raw).content for raw in raws} == {"x"}


def test_many_requests_at_once_share_one_client(provider: Provider):
    provider.plan("x", latency=0.05)

    async def many() -> list[bytes]:
        driver = driver_for(provider)
        found = await asyncio.gather(*(driver.infer(asked(greeting())) for _ in range(30)))
        await driver.aclose()
        return found

    assert len(asyncio.run(many())) == 30
    assert len(provider.ledger()) == 30


def test_a_cancelled_request_lets_go_of_its_connection_at_once(provider: Provider):
    provider.plan("x", faults=[{"fault": "hang"}])

    async def cancelled() -> None:
        driver = driver_for(provider)
        task = asyncio.ensure_future(_awaited(driver.infer(asked(greeting(), timeout=60.0))))
        while not provider.ledger():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 1.0)
        await driver.aclose()

    asyncio.run(cancelled())


async def _awaited(raw: Awaitable[bytes]) -> bytes:
    return await raw


def observed(provider: Provider, **limits: Any) -> list[ProviderFacts]:
    """What is observed of one request."""
    told: list[ProviderFacts] = []
    provider.plan("ok", limits=limits)
    driver = driver_for(provider, "openai:gpt-4o-mini")
    answer(driver, replace(asked(greeting()), observe=told.append))
    return told


def test_headers_and_used_tokens_are_observed(provider: Provider):
    headers, used = observed(provider, requests=10, seconds=60, headers="openai")
    assert (dict(headers.limits), dict(headers.remaining), headers.kind) == ({"requests": 10}, {"requests": 9}, "ok")
    assert used.used["tokens"] == used.used["input_tokens"] + used.used["output_tokens"] > 0


def test_a_refusal_is_observed_with_its_headers(provider: Provider):
    provider.plan("ok", limits={"requests": 1, "seconds": 60, "headers": "anthropic", "retry_after": "ms"})
    told: list[ProviderFacts] = []
    driver = driver_for(provider, "openai:gpt-4o-mini")
    answer(driver, asked(greeting()))
    with pytest.raises(DriverError) as refusal:
        answer(driver, replace(asked(greeting()), observe=told.append))
    (facts,) = told
    assert (facts.kind, dict(facts.remaining)) == ("rate_limit", {"requests": 0})
    assert facts.retry_after == pytest.approx(60, abs=2)
    assert refusal.value.retry_after == facts.retry_after
