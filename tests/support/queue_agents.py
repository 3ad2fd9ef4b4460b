"""Agents in two queues; each tells in which process it has run."""

from __future__ import annotations

import os

from celery_agents import Agent, AgentState, tool
from celery_agents.testing import CallTool


@tool(effect="pure")
def look() -> int:
    """Tell the process."""
    return os.getpid()


def answer(state: AgentState) -> object:
    """Call a tool first, then name the process."""
    return [CallTool("look")] if state.messages[-1].role == "user" else str(os.getpid())


painter = Agent("painter", driver=answer, tools=[look], queue="gpu")
clerk = Agent("clerk", driver=answer, tools=[look])
