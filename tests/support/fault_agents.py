"""The agent of `support.agents` under more names, and agents that misbehave."""

from __future__ import annotations

import os
import signal
import sys
import time

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.state import AgentState
from celery_agents.worker.tools import tool

from .agents import _follow, failing, keyed, keyed_async, looked_up, planned, pure, unsafe

_TOOLS = (pure, keyed, keyed_async, looked_up, unsafe, failing)

second = Agent("second", driver=_follow, tools=_TOOLS)
third = Agent("third", driver=_follow, tools=_TOOLS)


@tool(effect="pure")
def kill_process() -> str:
    """Take the whole process along."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


@tool(effect="pure")
def leave() -> str:
    """Call sys.exit."""
    sys.exit(3)


@tool(effect="pure")
def endless() -> str:
    """Never return."""
    while True:
        time.sleep(0.05)


@tool(effect="pure")
def recurse() -> str:
    """Recurse without an end."""
    return recurse.function()


@tool(effect="pure")
def huge() -> str:
    """Return 50 MB."""
    return "x" * 50_000_000


def _sleepy(state: AgentState) -> str:
    """A model that takes a second."""
    del state
    time.sleep(1.0)
    return "slept"


def _endless(state: AgentState) -> str:
    """A model that never answers, and whose call nobody can cancel."""
    del state
    while True:
        time.sleep(0.05)


def _busy(state: AgentState) -> str | CallTool:
    """Three steps of work that leave nothing outside."""
    return CallTool("pure", work=f"{state.step_count}") if state.step_count < 3 else "done"


sleepy = Agent("sleepy", driver=_sleepy)
unanswered = Agent("unanswered", driver=_endless, step_timeout=2)
busy = Agent("busy", driver=_busy, tools=(pure,))
poisonous = Agent(
    "poisonous",
    driver=_follow,
    tools=(kill_process, leave, endless, recurse, huge, pure),
    tool_timeout=3,
    step_timeout=8,
)

__all__ = ["busy", "planned", "poisonous", "second", "sleepy", "third", "unanswered"]
