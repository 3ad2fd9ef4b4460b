"""The agent `model` of `support.model_agents` in its next version: it has another tool, and one less."""

from __future__ import annotations

import os

from celery_agents.worker.agent import Agent
from celery_agents.worker.tools import tool

from .model_agents import MODEL, PROVIDER_URL, note


@tool(effect="pure")
def weigh(parcel: str) -> str:
    """Weigh a parcel.

    Args:
        parcel: Its number.
    """
    return f"{parcel}: 2 kg"


model = Agent(
    "model",
    model=MODEL,
    base_url=os.environ.get(PROVIDER_URL),
    system_prompt="Be brief.",
    tools=[note, weigh],
)
