"""Agents of which some calls need an approval, an answer or a result from outside; the message is the plan.

    from support.agents import call, plan
    client.submit("asking", plan([call("approved_unsafe", work="a"), call("question", work="b")]))

Every effect is written into the ledger, as those of `support.agents` are. A call whose result comes later notes its
completion token there.
"""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel

from celery_agents.worker.agent import Agent
from celery_agents.worker.tools import Ask, NeedsAnswer, NeedsApproval, ToolContext, tool

from .agents import _effect, _follow, keyed, pure, unsafe

TOKEN_SECRET = "a secret of the fault tests"


class Count(BaseModel):
    """The answer to a question."""

    count: int


@tool(effect="unsafe", approval=Ask(to="team"))
def approved_unsafe(ctx: ToolContext, work: str) -> str:
    """Have an effect that nobody deduplicates, once somebody approves."""
    return _effect(ctx, "approved_unsafe", {"work": work})


@tool(effect="keyed", approval=Ask(to="team"))
def approved_keyed(ctx: ToolContext, work: str) -> str:
    """Have one effect for each idempotency key, once somebody approves."""
    return _effect(ctx, "approved_keyed", {"work": work, "dedupe": True})


@tool(effect="keyed")
async def asks_keyed(ctx: ToolContext, work: str) -> str:
    """Ask for an approval, and then have one effect for each idempotency key."""
    if ctx.approval is None:
        raise NeedsApproval("May I?", to="team")
    return _effect(ctx, "asks_keyed", {"work": work, "dedupe": True})


@tool(effect="keyed")
def question(ctx: ToolContext, work: str) -> str:
    """Ask for a number, and then have one effect for each idempotency key."""
    answer = ctx.answer(Count)
    if answer is None:
        raise NeedsAnswer("How many?", Count, to="team")
    return _effect(ctx, "question", {"work": work, "dedupe": True, "count": answer.count})


@tool(effect="keyed", result="later")
def later_keyed(ctx: ToolContext, work: str) -> None:
    """Have a service do it once per key; the service brings the result."""
    _effect(ctx, "later_keyed", {"work": work, "dedupe": True, "token": ctx.completion_token})


@tool(effect="unsafe", result="later", expires=timedelta(seconds=20))
def later_unsafe(ctx: ToolContext, work: str) -> None:
    """Have a service do it; the service brings the result."""
    _effect(ctx, "later_unsafe", {"work": work, "token": ctx.completion_token})


ASKING_TOOLS = ("approved_unsafe", "approved_keyed", "asks_keyed", "question", "later_keyed", "later_unsafe")

asking = Agent(
    "asking",
    driver=_follow,
    tools=(pure, keyed, unsafe, approved_unsafe, approved_keyed, asks_keyed, question, later_keyed, later_unsafe),
)
