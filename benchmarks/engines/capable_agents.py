"""An agent with every capability of a run; its driver notes what its process and Redis have spent so far."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import redis

from celery_agents import (
    Agent,
    AgentState,
    ConfidenceMet,
    LoopDetection,
    MaxIterations,
    Reasoning,
    Reflexion,
    TerminalTools,
    Termination,
    TextMention,
    TimeLimit,
    ToolCall,
    ToolCalled,
    tool,
)

_LAST = 100_000


@tool(effect="keyed", idempotent=True)
def look_up(number: int) -> str:
    """Look a number up."""
    return f"number {number} is {number * number}"


@tool(effect="keyed")
def finish(summary: str) -> str:
    """Hand the summary in."""
    return summary


def answer(state: AgentState) -> str | ToolCall:
    metadata, done = state.metadata, state.step_count
    if done in metadata["marks"]:
        _note(str(metadata["notes"]), done)
    if done >= max(metadata["marks"]):
        return "done"
    return ToolCall(id=f"call{done}", name="look_up", args={"number": done})


def _note(path: str, step: int) -> None:
    with redis.Redis.from_url(os.environ["CELERY_AGENTS_REDIS_URL"]) as database:
        stats = database.info("stats")
    spent = {
        "step": step,
        "cpu": time.process_time(),
        "bytes": stats["total_net_input_bytes"] + stats["total_net_output_bytes"],
    }
    with Path(path).open("a", encoding="utf-8") as notes:
        notes.write(json.dumps(spent) + "\n")


_ENDS = MaxIterations(_LAST) | TimeLimit(36_000) | (ToolCalled("finish") & TextMention("never")) | ConfidenceMet(1.0)

plain = Agent("plain", driver=answer, tools=[look_up, finish])
capable = Agent(
    "capable",
    driver=answer,
    tools=[look_up, finish],
    capabilities=[
        Reasoning(),
        Reflexion(ends_execution=False),
        LoopDetection(),
        TerminalTools({"finish"}),
        Termination(_ENDS),
    ],
)
