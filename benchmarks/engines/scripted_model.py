"""The scripted model and tool as pydantic-ai takes them, for every engine that runs its agents."""

from __future__ import annotations

import asyncio
from typing import Any

from yardstick.work import answer_text, tool_arguments


def scripted_model() -> Any:
    """A model whose prompt says how many steps it takes and how many seconds an answer takes: `50 0.05`."""
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    async def model(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        first: Any = messages[0].parts[0]
        steps, latency = (float(part) for part in first.content.split())
        number = len(messages) // 2 + 1
        if latency:
            await asyncio.sleep(latency)
        text = TextPart(answer_text(number))
        if number >= steps:
            return ModelResponse(parts=[text])
        return ModelResponse(parts=[text, ToolCallPart("look_up", tool_arguments(number), f"call_{number}")])

    return FunctionModel(model)
