"""A durable run against `agent.run`: its metadata, the errors that hooks recover from, and messages that go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import AgentRunResult, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from celery_agents import CeleryDurability
from celery_agents.worker.state import DEFAULT, AgentState, thaw

from support.engine import Bench
from support.pydantic_examples import comparable
from support.pydantic_found import conversation_of, found, submitted

SENT: list[Any] = []


class Recovering(AbstractCapability[Any]):
    """Gives each run that fails a result of its own."""

    async def on_run_error(self, ctx: RunContext[Any], *, error: BaseException) -> AgentRunResult[Any]:
        return AgentRunResult(output=f"recovered from {type(error).__name__}")


def failing(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    raise RuntimeError("the model is broken")


def silent(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse([])


@pytest.mark.parametrize("answer", [failing, silent])
def test_a_hook_that_recovers_from_an_error_gives_the_output(answer: Callable[..., ModelResponse]) -> None:
    agent = PydanticAgent(
        FunctionModel(answer), name="soft", retries=0, capabilities=[Recovering(), CeleryDurability()]
    )
    expected = agent.run_sync("go")
    with submitted(agent) as (bench, session):
        bench.run(session)
        assert bench.record(session).final_response == expected.output
        bench.send(session, "and now?")
        bench.run(session)
        assert bench.record(session).final_response == expected.output
        history = conversation_of(bench, session).history
    said = [part.content for message in history for part in message.parts if part.part_kind == "user-prompt"]
    assert said == ["go", "and now?"]


def test_a_tool_that_raises_has_no_result_where_a_hook_would_end_the_run_with_one() -> None:
    agent = PydanticAgent(TestModel(), name="soft", capabilities=[Recovering(), CeleryDurability(effect="pure")])

    @agent.tool_plain
    def boom() -> str:
        raise RuntimeError("boom")

    with submitted(agent) as (bench, session):
        bench.run(session)
        record = bench.record(session)
    assert record.status == "failed"
    assert "RuntimeError: boom" in str(record.errors)


def follow_up(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call the tool, and give outputs then."""
    SENT.append(comparable(messages))
    number = sum(message.kind == "response" for message in messages)
    name, args = ("look", {}) if number == 0 else (info.output_tools[0].name, {"response": number})
    return ModelResponse([ToolCallPart(name, args, f"call{number}")])


def test_an_output_that_a_queued_message_puts_off_reaches_the_model_once() -> None:
    agent = PydanticAgent(
        FunctionModel(follow_up), name="asked", output_type=int, capabilities=[CeleryDurability(effect="pure")]
    )

    @agent.tool
    def look(ctx: RunContext[None]) -> str:
        ctx.enqueue("and then?", priority="when_idle")
        return "seen"

    SENT.clear()
    expected = agent.run_sync("go")
    sent = list(SENT)
    SENT.clear()
    with submitted(agent) as (bench, session):
        bench.run(session)
        assert bench.record(session).output == expected.output
        assert comparable(conversation_of(bench, session).history) == comparable(expected.all_messages())
    assert sent == SENT


def test_functions_of_the_agent_find_the_metadata_of_the_session_beside_those_of_the_agent() -> None:
    seen: list[Any] = []
    agent = PydanticAgent(
        TestModel(), name="known", metadata={"team": "shop"}, capabilities=[CeleryDurability(effect="pure")]
    )

    @agent.instructions
    def instruct(ctx: RunContext[None]) -> str:
        seen.append({name: value for name, value in (ctx.metadata or {}).items() if name != "celery"})
        return "Be brief."

    @agent.tool
    def look(ctx: RunContext[None]) -> str:
        assert ctx.metadata is not None
        assert ctx.metadata["celery"]["idempotency_key"]
        seen.append({name: value for name, value in ctx.metadata.items() if name != "celery"})
        return "seen"

    ours = found(agent)
    bench = Bench(ours)
    try:
        session = bench.submit(agent=ours, state=AgentState.fresh(now=bench.clock.now, metadata={"customer": "Ada"}))
        bench.run(session)
        answer = bench.state(session).store.section(DEFAULT).messages[-1]
    finally:
        bench.close()
    expected = {"team": "shop", "customer": "Ada"}
    assert seen
    assert all(each == expected for each in seen)
    assert answer.provider is not None
    assert thaw(answer.provider["pydantic_ai_agent"])["metadata"] == expected
