"""A service with one agent, in the common queue."""

from __future__ import annotations

from celery_agents import Agent

from .queue_agents import answer, look

alpha = Agent("alpha", driver=answer, tools=[look])
