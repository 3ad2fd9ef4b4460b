"""Durable AI-agent jobs on Celery and Redis.

The public names are loaded on first use: importing the state does not import Celery.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .tasks.app import install
    from .tasks.client.async_client import AsyncAgentClient
    from .tasks.client.client import AgentClient
    from .worker.agent import Agent
    from .worker.capability import Capability
    from .worker.guards import FinishReasonGuard
    from .worker.hooks import Hook, HookPoint
    from .worker.state import (
        AgentState,
        ExecutionBudget,
        InferenceResponse,
        ListPart,
        PartItem,
        PartScope,
        StatePart,
        ToolCall,
    )
    from .worker.store import Result
    from .worker.tools import LookupResult, StopExecution, ToolContext, tool

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AgentClient",
    "AgentState",
    "AsyncAgentClient",
    "Capability",
    "ExecutionBudget",
    "FinishReasonGuard",
    "Hook",
    "HookPoint",
    "InferenceResponse",
    "ListPart",
    "LookupResult",
    "PartItem",
    "PartScope",
    "Result",
    "StatePart",
    "StopExecution",
    "ToolCall",
    "ToolContext",
    "__version__",
    "install",
    "tool",
]

_HOME = {
    "Agent": ".worker.agent",
    "AgentClient": ".tasks.client.client",
    "AgentState": ".worker.state",
    "AsyncAgentClient": ".tasks.client.async_client",
    "Capability": ".worker.capability",
    "ExecutionBudget": ".worker.state",
    "FinishReasonGuard": ".worker.guards",
    "Hook": ".worker.hooks",
    "HookPoint": ".worker.hooks",
    "InferenceResponse": ".worker.state",
    "ListPart": ".worker.state",
    "LookupResult": ".worker.tools",
    "PartItem": ".worker.state",
    "PartScope": ".worker.state",
    "StatePart": ".worker.state",
    "Result": ".worker.store",
    "StopExecution": ".worker.tools",
    "ToolCall": ".worker.state",
    "ToolContext": ".worker.tools",
    "install": ".tasks.app",
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
