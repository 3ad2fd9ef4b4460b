"""Agents that are followed while they work: one that asks the provider, and one whose tool tells how far it is."""

from __future__ import annotations

import os
import time

from celery_agents.testing import CallTool, script
from celery_agents.worker.agent import Agent
from celery_agents.worker.tools import ToolContext, tool

from .ledger import LEDGER_URL, post_effect
from .model_agents import MODEL, PROVIDER_URL


@tool(effect="keyed")
def count(ctx: ToolContext, to: int, seconds: float = 0.0) -> str:
    """Count, and say each number.

    Args:
        to: The last number.
        seconds: Between two numbers.
    """
    for number in range(1, to + 1):
        ctx.emit(f"{number} ")
        time.sleep(seconds)
    ctx.emit({"counted": to})
    if LEDGER_URL in os.environ:
        post_effect(os.environ[LEDGER_URL], ctx.idempotency_key, dedupe=True, pid=os.getpid(), step=ctx.step)
    return f"counted to {to}"


model = Agent("model", model=MODEL, base_url=os.environ.get(PROVIDER_URL), tools=[count])
counting = Agent("counting", driver=script([[CallTool("count", to=5, seconds=0.1)], "all counted"]), tools=[count])
