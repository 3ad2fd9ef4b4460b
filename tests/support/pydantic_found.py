"""A pydantic-ai agent of a test as the durable agent that a worker finds in a module."""

from __future__ import annotations

import sys
import types
from typing import Any

from celery_agents.worker.agent import Agent, AgentRegistry

_MODULE = "support.pydantic_found_here"


def found(agent: Any) -> Agent:
    """The durable agent of an agent with `CeleryDurability`."""
    module = types.ModuleType(_MODULE)
    module.__dict__["agent"] = agent
    sys.modules[_MODULE] = module
    try:
        (ours,) = AgentRegistry.from_modules([_MODULE])
    finally:
        del sys.modules[_MODULE]
    return ours
