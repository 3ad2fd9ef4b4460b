"""Agents of large sessions: a thousand steps, a tree of two hundred, text that is written for seconds, questions.

What a message says decides what happens: "count 1000", "spread 14 13", "write 1000", "ask", "fail"; anything else is answered at once.
"""

from __future__ import annotations

import asyncio
from typing import Final

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import Delta, FunctionDriver, InferenceRequest
from celery_agents.worker.state import AgentState, ExecutionBudget, InferenceResponse, InferenceUsage, Role, ToolCall
from celery_agents.worker.tools import AgentTool, NeedsApproval, ToolContext, tool

TOKENS_A_SECOND: Final = 100


@tool(effect="pure")
def look_up(number: int) -> str:
    """Look a number up."""
    if number % 50 == 0:
        raise ValueError(f"number {number} is not in the catalogue")
    return f"number {number} is in the catalogue"


@tool(effect="keyed")
def pay(ctx: ToolContext, order: str, cents: int) -> str:
    """Pay money back."""
    if ctx.approval is None:
        raise NeedsApproval(f"Pay {cents} cents of order {order} back?", to="managers")
    return "paid"


class Writer(FunctionDriver):
    """Writes the answers to "write …" piece by piece, a hundred a second."""

    def __init__(self) -> None:
        super().__init__(decide)
        self.is_async = True

    async def infer(self, request: InferenceRequest) -> bytes:
        """Answer once."""
        said = _said(request.state)
        if not said.startswith("write") or request.emit is None:
            return decide(request.state).to_json()
        words = [f"word{number} " for number in range(int(said.split()[1]))]
        began = asyncio.get_running_loop().time()
        for number, word in enumerate(words, 1):
            request.emit(Delta(word))
            await asyncio.sleep(max(0.0, began + number / TOKENS_A_SECOND - asyncio.get_running_loop().time()))
        return InferenceResponse(content="".join(words)).to_json()


def _said(state: AgentState) -> str:
    return next(each.content for each in reversed(state.messages) if each.role is Role.USER)


def decide(state: AgentState) -> InferenceResponse:
    """Decide by what the user has said last."""
    assert state.execution is not None
    said, done = _said(state), state.execution.step_count
    word, *numbers = said.split()
    calls: list[ToolCall] = []
    if word == "count" and done < int(numbers[0]) - 1:
        calls = [ToolCall(id=f"c{done}-{n}", name="look_up", args={"number": 2 * done + n}) for n in range(2)]
    elif word == "spread" and done == 0:
        wide, *rest = numbers
        prompt = f"spread {' '.join(rest)}" if rest else "Is the lid cracked?"
        calls = [ToolCall(id=f"s{n}", name="branch", args={"prompt": prompt}) for n in range(int(wide))]
    elif word == "ask" and done == 0:
        calls = [ToolCall(id="a", name="pay", args={"order": numbers[0], "cents": 3900})]
    elif word == "fail":
        raise ValueError("the model of the shop is gone: ask for another one")
    usage = InferenceUsage(input=400, output=40)
    return InferenceResponse(content=f"Step {done + 1} of it.", tool_calls=tuple(calls), usage=usage, cost=0.0004)


large = Agent(
    "large",
    driver=Writer(),
    tools=[look_up, pay, AgentTool("large", name="branch")],
    budget=ExecutionBudget(max_steps=1100),
    max_children=64,
)
