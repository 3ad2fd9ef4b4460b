"""The support agent, as workers import it (`CELERY_AGENTS_AGENTS=celery_agents.demo.agents`).

Outside the demo there is no ledger, and the refund is only written into the conversation.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, Final

from ..worker.agent import Agent
from ..worker.drivers import CallTool, FunctionDriver, InferenceRequest, PydanticAIDriver
from ..worker.state import AgentState, ExecutionBudget, Role, ToolExecution, thaw
from ..worker.tools import ToolContext, tool
from .ledger import Side
from .shop import SYSTEM_PROMPT, ToolRequest, decide_next, look_up_order, note_paid_answer, pay_refund

NAME: Final = "support"
MODEL_VARIABLE: Final = "CELERY_AGENTS_DEMO_MODEL"
BASE_URL_VARIABLE: Final = "CELERY_AGENTS_DEMO_BASE_URL"
"""Environment variables that tell the demo's workers which model to ask."""


@tool(effect="pure")
def find_order(number: str) -> dict[str, Any]:
    """Look an order up.

    Args:
        number: Number of the order.
    """
    return look_up_order(number)


@tool(effect="keyed")
def refund(ctx: ToolContext, number: str, cents: int) -> str:
    """Refund an order.

    Args:
        number: Number of the order.
        cents: Amount in cents.
    """
    timeout = min(60.0, ctx.remaining_seconds())
    return pay_refund(Side.AGENTS, ctx.idempotency_key, number, cents, timeout_seconds=timeout)


class CountedModelDriver(PydanticAIDriver):
    """A model whose answers are counted in the ledger when they have been obtained."""

    async def infer(self, request: InferenceRequest) -> bytes:
        """Ask once, and note that the answer has to be paid for."""
        raw = await super().infer(request)
        response = self.parse(raw)
        asked = ", ".join(call.name for call in response.tool_calls)
        await asyncio.to_thread(note_paid_answer, Side.AGENTS, tool=asked, text=response.content)
        return raw


def answer_as_support(state: AgentState) -> str | CallTool:
    """Answer in the place of a model, and note the answer as if it had to be paid for."""
    message = next(each.content for each in reversed(state.messages) if each.role is Role.USER)
    decision = decide_next(message, [_read_result(each) for step in state.steps for each in step.tool_executions])
    if isinstance(decision, ToolRequest):
        note_paid_answer(Side.AGENTS, tool=decision.tool)
        return CallTool(decision.tool, **decision.arguments)
    note_paid_answer(Side.AGENTS, text=decision)
    return decision


def _read_result(execution: ToolExecution) -> Any:
    return execution.error_message() if execution.has_error() else thaw(execution.value)


def support_agent(model: str | None = None, base_url: str | None = None) -> Agent:
    """Build the agent. Its tools are the same with a model and without.

    Args:
        model: Model id of pydantic-ai, such as `openai:gpt-5-mini`; None: a deterministic function.
        base_url: A server that speaks the provider's protocol; None: the provider's own.
    """
    driver = FunctionDriver(answer_as_support) if model is None else CountedModelDriver(model, base_url=base_url)
    return Agent(
        NAME,
        driver=driver,
        system_prompt=SYSTEM_PROMPT,
        tools=(find_order, refund),
        budget=ExecutionBudget(max_steps=10, max_seconds=300.0, max_tokens=100_000),
        description="Refunds orders that arrived broken.",
    )


support = support_agent(
    model=os.environ.get(MODEL_VARIABLE) or None, base_url=os.environ.get(BASE_URL_VARIABLE) or None
)
