"""Agents of pydantic-ai whose answers arrive in pieces: an event stream handler takes them, or somebody follows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.capabilities import ProcessEventStream
from pydantic_ai.messages import AgentStreamEvent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from .pydantic_examples import CityLocation, celery

EVENTS: list[AgentStreamEvent] = []
"""What the handler has got, in this process."""


def in_pieces(*turns: Any) -> FunctionModel:
    """A model that gives these answers in turn, in pieces: a text, or a list of (tool, arguments)."""

    def turn_of(messages: list[ModelMessage], info: AgentInfo) -> Any:
        turn = turns[sum(message.kind == "response" for message in messages)]
        if isinstance(turn, str):
            return turn
        return [(info.output_tools[0].name if name == "output" else name, args) for name, args in turn]

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn, number = turn_of(messages, info), len(messages)
        if isinstance(turn, str):
            return ModelResponse(parts=[TextPart(turn)])
        return ModelResponse(
            parts=[ToolCallPart(name, args, tool_call_id=f"c{number}-{i}") for i, (name, args) in enumerate(turn)]
        )

    async def pieces(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        turn, number = turn_of(messages, info), len(messages)
        if isinstance(turn, str):
            for word in turn.split(" "):
                yield word if turn.startswith(word) else f" {word}"
            return
        for i, (name, args) in enumerate(turn):
            text = json.dumps(args)
            yield {i: DeltaToolCall(name=name, json_args=text[:3], tool_call_id=f"c{number}-{i}")}
            yield {i: DeltaToolCall(json_args=text[3:])}

    return FunctionModel(answer, stream_function=pieces)


async def take(ctx: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
    async for event in events:
        EVENTS.append(event)


def handled() -> list[Any]:
    return [*celery(), ProcessEventStream(take)]


FORECAST = [("weather", {"city": "Paris"}), ("weather", {"city": "Bern"})]

told = Agent(
    in_pieces(FORECAST, [("weather", {"city": "Bern"})], "It is sunny in Paris and in Bern."),
    name="told",
    capabilities=handled(),
)
shaped = Agent(
    in_pieces(FORECAST, [("output", {"city": "Bern"})], [("output", {"city": "Bern", "country": "Switzerland"})]),
    output_type=CityLocation,
    name="shaped",
    capabilities=handled(),
)
at_once = Agent(
    in_pieces(
        [*FORECAST, ("output", {"city": "Bern", "country": "France"})],  # a call that is to be made again comes first
        [("weather", {"city": "Bern"}), ("output", {"city": "Bern", "country": "Switzerland"})],
    ),
    output_type=CityLocation,
    name="at_once",
    capabilities=handled(),
)
followed = Agent(
    in_pieces(FORECAST, [("weather", {"city": "Bern"})], "It is sunny in Paris and in Bern."),
    name="followed",
    capabilities=celery(),
)


async def weather(ctx: RunContext[Any], city: str) -> str:
    """The weather of a city; of one, only when it is asked for the second time."""
    if city == "Bern" and not ctx.retry:
        raise ModelRetry("ask again")
    return f"{city}: sunny"


for each in (told, shaped, at_once, followed):
    each.tool(weather, retries=3, metadata={"celery": {"effect": "keyed"}})  # its calls are journaled

STREAMED = ("told", "shaped", "at_once", "followed")
