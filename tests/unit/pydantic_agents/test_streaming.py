"""A durable agent of pydantic-ai emits its answer while it arrives, and the answer is the same as without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.capabilities import ProcessEventStream
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

from celery_agents import CeleryDurability
from celery_agents.worker.drivers import Delta, InferenceRequest
from celery_agents.worker.pydantic_agents.driver import PydanticAgentDriver

from support import pydantic_streams
from support.pydantic_found import submitted
from support.states import running


def whole(messages: Any, info: Any) -> ModelResponse:
    return ModelResponse(parts=[TextPart("one two three")])


async def in_pieces(messages: Any, info: Any) -> AsyncIterator[str]:
    for piece in ("one ", "two ", "three"):
        yield piece


def ask(model: FunctionModel, emitted: list[Delta] | None) -> Any:
    driver = PydanticAgentDriver(PydanticAgent(model, name="a"), CeleryDurability())
    request = InferenceRequest(
        running("count"), session_id="s", execution_id="e", step=1, emit=None if emitted is None else emitted.append
    )
    return driver.parse(asyncio.run(driver.infer(request)))


def test_pieces_are_emitted_and_the_answer_is_the_same() -> None:
    emitted: list[Delta] = []
    model = FunctionModel(whole, stream_function=in_pieces)
    assert ask(model, emitted).content == ask(model, None).content == "one two three"
    assert [delta.text for delta in emitted] == ["one ", "two ", "three"]


@pytest.mark.parametrize("emitted", [None, []], ids=["unfollowed", "followed"])
def test_a_model_that_cannot_stream_is_asked_without(emitted: list[Delta] | None) -> None:
    assert ask(FunctionModel(whole), emitted).content == "one two three"
    assert not emitted


def kinds_of_events(name: str) -> tuple[list[str], list[str]]:
    """The kinds of events that the handler of an agent has got: in a run of its own, and in steps."""
    agent = getattr(pydantic_streams, name)
    pydantic_streams.EVENTS.clear()
    agent.run_sync("What is the weather?")
    own = [event.event_kind for event in pydantic_streams.EVENTS]
    pydantic_streams.EVENTS.clear()
    with submitted(agent, "What is the weather?") as (bench, session):
        bench.run(session)
        assert bench.execution(session).status == "completed"
    return own, [event.event_kind for event in pydantic_streams.EVENTS]


@pytest.mark.parametrize("name", ["told", "shaped"])
def test_an_event_stream_handler_gets_the_events_of_answers_and_of_calls(name: str) -> None:
    own, ours = kinds_of_events(name)
    assert "function_tool_result" in own
    assert sorted(ours) == sorted(own)


@pytest.mark.parametrize("kind", ["observer", "processor"])
def test_a_handler_that_passes_no_event_on_loses_no_call(kind: str) -> None:
    async def observe(ctx: Any, events: Any) -> None:
        return

    async def process(ctx: Any, events: Any) -> AsyncIterator[Any]:
        async for event in events:
            if event.event_kind == "no such kind":
                yield event

    calls: list[int] = []
    agent = PydanticAgent(
        pydantic_streams.in_pieces([("count", {"x": 1})], "done"),
        name="deaf",
        capabilities=[
            CeleryDurability(effect="pure"),
            ProcessEventStream(observe if kind == "observer" else process),
        ],
    )

    @agent.tool_plain
    def count(x: int) -> str:
        calls.append(x)
        return "counted"

    with submitted(agent) as (bench, session):
        bench.run(session)
        assert bench.record(session).final_response == "done"
    assert calls == [1]
