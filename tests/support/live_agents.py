"""Agents that are followed while they work: one that asks the provider, and one whose tool tells how far it is."""

from __future__ import annotations

import asyncio
import os
import time
import uuid

from celery_agents.testing import CallTool, script
from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import Delta, FunctionDriver, InferenceRequest
from celery_agents.worker.state import AgentState, InferenceResponse, ToolCall
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


class Writing(FunctionDriver):
    """Writes slowly, another text each time it is asked: two steps with a tool, and an answer."""

    def __init__(self, pieces: int, seconds: float) -> None:
        """
        Args:
            pieces: Of each answer.
            seconds: Between two of them.
        """
        super().__init__(self._never)
        self._pieces, self._seconds = pieces, seconds
        self.is_async = True

    async def infer(self, request: InferenceRequest) -> bytes:
        mark = uuid.uuid4().hex[:8]
        pieces = [f"{mark}.{request.step}.{number} " for number in range(self._pieces)]
        for piece in pieces:
            if request.emit is not None:
                request.emit(Delta(piece))
            await asyncio.sleep(self._seconds)
        calls = (ToolCall(id=f"c{request.step}", name="count", args={"to": 3}),) if request.step < 3 else ()
        return InferenceResponse(content="".join(pieces), tool_calls=calls).to_json()

    @staticmethod
    def _never(state: AgentState) -> str:
        raise AssertionError("the driver answers by itself")


model = Agent("model", model=MODEL, base_url=os.environ.get(PROVIDER_URL), tools=[count])
writing = Agent("writing", driver=Writing(pieces=25, seconds=0.06), tools=[count])
counting = Agent("counting", driver=script([[CallTool("count", to=5, seconds=0.1)], "all counted"]), tools=[count])
