"""A model may make up the name that stands for a rejected output; it is a tool that does not exist."""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from celery_agents import CeleryDurability
from celery_agents.worker.pydantic_agents.conversation import ANSWER_AGAIN

from support.pydantic_found import submitted


def answer(messages: Any, info: Any) -> ModelResponse:
    seen = [part for part in messages[-1].parts if part.part_kind == "tool-return"]
    if any("Unknown tool" in str(part.content) for part in seen):
        return ModelResponse(parts=[TextPart("so there is none")])
    return ModelResponse(parts=[ToolCallPart(ANSWER_AGAIN, "{}", "c")])


def test_the_model_reads_that_there_is_no_such_tool() -> None:
    agent = PydanticAgent(FunctionModel(answer), name="a", capabilities=[CeleryDurability()])
    with submitted(agent) as (bench, session):
        bench.run(session)
        assert bench.record(session).final_response == "so there is none"
