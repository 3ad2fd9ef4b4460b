"""Durable AI-agent jobs on Celery and Redis.

The public names are loaded on first use: importing the state does not import Celery.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .tasks.client import AgentClient
    from .worker.agent import Agent
    from .worker.state import ExecutionBudget
    from .worker.tools import ToolContext, tool

__version__ = "0.1.0"

__all__ = ["Agent", "AgentClient", "ExecutionBudget", "ToolContext", "__version__", "tool"]

_HOME = {
    "Agent": ".worker.agent",
    "AgentClient": ".tasks.client",
    "ExecutionBudget": ".worker.state",
    "ToolContext": ".worker.tools",
    "tool": ".worker.tools",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module.

    Raises:
        AttributeError: There is no such name.
    """
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
