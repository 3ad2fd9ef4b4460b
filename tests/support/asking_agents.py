"""An agent whose message is the plan, as in `support.agents`, and whose tools ask before they have an effect.

client.submit("asking", plan([call("refund", work="a"), call("keyed", work="b")], [call("render", work="c")]))
"""

from __future__ import annotations

import os
from datetime import timedelta

from pydantic import BaseModel

from celery_agents import Agent, Approvals, Ask, AskUser, NeedsAnswer, Rule, ToolContext, tool
from celery_agents.worker.drivers import FunctionDriver

from .agents import _effect, _follow, keyed, pure, unsafe
from .ledger import LEDGER_URL, post_effect


class Size(BaseModel):
    size: str


@tool(effect="keyed", approval="always")
def refund(ctx: ToolContext, work: str, gate: str | None = None) -> str:
    """Have one effect for each idempotency key, after a person's approval."""
    return _effect(ctx, "refund", {"work": work, "gate": gate, "dedupe": True})


@tool(effect="keyed", approval=Ask(seen=True))
def careful(ctx: ToolContext, work: str) -> str:
    """Have one effect for each idempotency key, after the approval of a person who has seen all messages."""
    return _effect(ctx, "careful", {"work": work, "dedupe": True})


@tool(effect="keyed", approval=Ask(while_waiting="withdraw"))
def yielding(ctx: ToolContext, work: str) -> str:
    """Have one effect for each idempotency key, after an approval of which a message may take the place."""
    return _effect(ctx, "yielding", {"work": work, "dedupe": True})


@tool(effect="unsafe")
def dangerous(ctx: ToolContext, work: str) -> str:
    """Have an effect that nobody deduplicates, by a rule's approval that a clock gives."""
    return _effect(ctx, "dangerous", {"work": work})


@tool(effect="unsafe")
def measured(ctx: ToolContext, work: str) -> str:
    """Ask for a size before the effect, and have it."""
    size = ctx.answer(Size)
    if size is None:
        raise NeedsAnswer("Which size?", schema=Size)
    return _effect(ctx, "measured", {"work": f"{work} {size.size}"})


@tool(effect="keyed", result="later")
def render(ctx: ToolContext, work: str) -> str:
    """Hand work to a service, with the token that completes the call."""
    key = f"start:{ctx.idempotency_key}"
    post_effect(os.environ[LEDGER_URL], key, kind="start", tool="render", token=ctx.completion_token, work=work)
    return "handed over"


asking = Agent(
    "asking",
    driver=FunctionDriver(_follow),
    tools=(pure, keyed, unsafe, refund, careful, yielding, dangerous, measured, render),
    capabilities=(
        Approvals([Rule("dangerous", then=Ask(to="clock", expires=timedelta(seconds=3), on_expiry="approve"))]),
        AskUser(while_waiting="withdraw"),
    ),
)
