"""A durable agent of pydantic-ai emits its answer while it arrives, and the answer is the same as without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

from celery_agents import CeleryDurability
from celery_agents.worker.drivers import Delta, InferenceRequest
from celery_agents.worker.pydantic_agents.driver import PydanticAgentDriver

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
