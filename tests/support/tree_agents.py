"""Agents whose calls are worked on by further agents; the message is the plan, and so is each prompt.

    from support.agents import call, plan
    client.submit("node", plan([delegate(plan([call("keyed", work="a")]))]))

Every effect and every model call is written into the ledger, as those of `support.agents` are.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from celery_agents.worker.agent import Agent
from celery_agents.worker.tools import AgentTool, ToolContext, tool

from .agents import _follow, call, keyed, pure, unsafe
from .waiting_agents import approved_unsafe


def delegate(prompt: str, name: str = "delegate") -> dict[str, Any]:
    """A call in a plan that another agent works on, by its own plan."""
    return call(name, prompt=prompt)


@tool(effect="keyed")
def survey(ctx: ToolContext, prompts: list[str]) -> str:
    """Start a child for each prompt, and join what they answer."""
    ends = ctx.spawn("node", prompts)
    return " + ".join(end.response for end in ends)


_EFFECTS = (pure, keyed, unsafe, approved_unsafe, survey)
_DELEGATING = (
    AgentTool("node", name="delegate"),
    AgentTool("node", name="race", join="first"),
    AgentTool("node", name="fail_fast", on_failure="fail_fast"),
    AgentTool("node", name="hurry", expires=timedelta(seconds=3)),
    AgentTool("elsewhere", name="delegate_elsewhere"),
    AgentTool("nowhere", name="delegate_nowhere", expires=timedelta(seconds=3)),
)

node = Agent("node", driver=_follow, tools=(*_EFFECTS, *_DELEGATING))
wide = Agent("wide", driver=_follow, tools=(*_EFFECTS, *_DELEGATING), max_children=64)
elsewhere = Agent("elsewhere", driver=_follow, tools=_EFFECTS, queue="other")
