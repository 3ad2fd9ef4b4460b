"""A pydantic-ai agent of a test as the durable agent that a worker finds in a module."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery_agents.worker.agent import Agent, AgentRegistry
from celery_agents.worker.pydantic_agents.conversation import read_conversation
from celery_agents.worker.state import DEFAULT

from .engine import Bench

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


@contextmanager
def submitted(agent: Any, message: str = "go") -> Iterator[tuple[Bench, str]]:
    """One worker's engine with the durable agent of an agent, and the id of a session that waits for its first step."""
    ours = found(agent)
    bench = Bench(ours)
    try:
        yield bench, bench.submit(message, agent=ours)
    finally:
        bench.close()


def conversation_of(bench: Bench, session: str) -> Any:
    """The conversation of a session, as the next step of its execution asks it."""
    messages = bench.state(session).store.section(DEFAULT).messages
    return read_conversation(messages, str(bench.execution(session).execution_id))
