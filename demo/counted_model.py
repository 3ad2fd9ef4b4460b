"""pydantic-ai's own loop, with a count of the answers that have to be paid for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .ledger import Side
from .shop import note_paid_answer

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.settings import ModelSettings


def run_counted(model: Model, prompt: str, tools: Sequence[Callable[..., Any]], message: str) -> str:
    """Run pydantic-ai's agent to its end and return its answer.

    Args:
        prompt: System prompt.
        tools: Functions that the model may call.
    """
    from pydantic_ai import Agent
    from pydantic_ai.models.wrapper import WrapperModel

    class CountedModel(WrapperModel):
        """A model whose answers are counted in the ledger."""

        async def request(
            self,
            messages: list[ModelMessage],
            model_settings: ModelSettings | None,
            model_request_parameters: ModelRequestParameters,
        ) -> ModelResponse:
            response = await super().request(messages, model_settings, model_request_parameters)
            asked = ", ".join(call.tool_name for call in response.tool_calls)
            note_paid_answer(Side.PLAIN, tool=asked, text=response.text or "")
            return response

    agent = Agent(CountedModel(model), system_prompt=prompt, tools=tools)
    return agent.run_sync(message).output
