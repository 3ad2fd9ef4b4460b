"""Agents whose providers have limits: two models of one group, one with both, and one of a queue and tools of its own."""

from __future__ import annotations

import os

from celery_agents.worker.agent import Agent
from celery_agents.worker.tools import ToolContext, tool

from .ledger import LEDGER_URL, post_effect
from .model_agents import PROVIDER_URL, note

_ADDRESS = os.environ.get(PROVIDER_URL)
GROUP = "team-a"
MODELS = ("openai:gpt-5-mini", "openai:gpt-5-nano")


@tool(effect="unsafe")
def refund(ctx: ToolContext, order: str) -> str:
    """Refund an order.

    Args:
        order: Its number.
    """
    post_effect(os.environ[LEDGER_URL], ctx.idempotency_key, dedupe=True, pid=os.getpid(), step=ctx.step)
    return f"refunded {order}"


first, second = (
    Agent(name, model=model, base_url=_ADDRESS, provider_group=GROUP)
    for name, model in zip(("first", "second"), MODELS, strict=True)
)
backed = Agent("backed", model=list(MODELS), base_url=_ADDRESS, provider_group=GROUP)
desk = Agent("desk", model=MODELS[0], base_url=_ADDRESS, tools=[note, refund])
