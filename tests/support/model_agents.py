"""Agents that ask a model of the provider; its address and its key come from the environment, as in a service.

Every effect of `note` is in the ledger under the call's idempotency key, with the process that had it.
"""

from __future__ import annotations

import os

from pydantic import BaseModel

from celery_agents.worker.agent import Agent
from celery_agents.worker.tools import ToolContext, tool

from .ledger import LEDGER_URL, post_effect

PROVIDER_URL = "TEST_PROVIDER_URL"
KEY_NAME = "OPENAI_API_KEY"
MODEL = "openai:gpt-4o-mini"


class Place(BaseModel):
    """Where."""

    city: str
    people: int


@tool(effect="keyed")
def note(ctx: ToolContext, text: str) -> str:
    """Note something.

    Args:
        text: What.
    """
    if LEDGER_URL in os.environ:
        post_effect(os.environ[LEDGER_URL], ctx.idempotency_key, dedupe=True, pid=os.getpid(), step=ctx.step)
    return f"noted {text}"


@tool(effect="pure")
def leak() -> str:
    """Raise with the provider's key in the text."""
    key = os.environ[KEY_NAME]
    raise RuntimeError(f"401 from https://user:{key}@host/v1?api_key={key} with Authorization: Bearer {key}")


model = Agent(
    "model",
    model=MODEL,
    base_url=os.environ.get(PROVIDER_URL),
    system_prompt="Be brief.",
    tools=[note, leak],
)
structured = Agent("structured", model=MODEL, base_url=os.environ.get(PROVIDER_URL), tools=[note], output_type=Place)
