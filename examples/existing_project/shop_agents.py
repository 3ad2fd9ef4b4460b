"""Agents of the shop."""

from __future__ import annotations

from celery_agents import Agent, AgentState


def greet(state: AgentState) -> str:
    """Answer without a model."""
    return f"Hello, you said: {state.messages[-1].content}"


greeter = Agent("greeter", driver=greet)
