"""A long task that asks a model of the provider, and the provider's answers to it; the limit of its context is small."""

from __future__ import annotations

import json
import os
import re
from typing import Any, Final

from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities import Summarization
from celery_agents.worker.tools import tool

from .model_agents import MODEL, PROVIDER_URL
from .provider import calls, tool_call

INSTRUCTED: Final = "You summarize"
"""The beginning of the instructions of a summary."""

CONTEXT_TOKENS: Final = 1_000
_NUMBER: Final = re.compile(r"gathered (\d+)")
_WANTED: Final = re.compile(r"gather (\d+) things")


@tool(effect="pure")
def gather(number: int) -> str:
    """Gather something.

    Args:
        number: Which.
    """
    return f"gathered {number}: " + "x" * 700


def answer(messages: list[dict[str, Any]], body: dict[str, Any]) -> Any:
    """Answer by the newest result: the turn of a request says nothing once its conversation is compacted."""
    if INSTRUCTED in str(messages[0].get("content")):
        return json.dumps({"summary": "All was gathered so far.", "stable_facts": [{"key": "so far", "value": "good"}]})
    results = [str(each.get("content")) for each in messages if each["role"] == "tool"]
    found = _NUMBER.search(results[-1]) if results else None
    number = int(found.group(1)) + 1 if found is not None else 0
    wanted = next(int(match.group(1)) for each in messages if (match := _WANTED.search(str(each.get("content")))))
    return "done" if number >= wanted else calls(tool_call("gather", {"number": number}, id=f"call_{number}"))


long_task = Agent(
    "long_task",
    model=MODEL,
    base_url=os.environ.get(PROVIDER_URL),
    tools=[gather],
    capabilities=[Summarization(CONTEXT_TOKENS, max_summary_tokens=100)],
)
