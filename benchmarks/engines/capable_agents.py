"""Agents with every capability of a run, or of a long task; their driver notes what process and Redis have spent."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import redis

from celery_agents import (
    Agent,
    AgentLimits,
    AgentState,
    LoopDetection,
    MemoryFacts,
    Planning,
    Reasoning,
    Reflection,
    Reflexion,
    Summarization,
    Termination,
    ToolCall,
    tool,
)
from celery_agents.testing import ScriptedDriver
from celery_agents.worker.capabilities import (
    ConfidenceMet,
    MaxIterations,
    ReasoningConfig,
    ReflectionConfig,
    TerminalTools,
    TextMention,
    TimeLimit,
    ToolCache,
    ToolCalled,
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


_NOTES = ReflectionConfig(cadence="after_tool", every_n_turns=10)
_SUMMARY = '{"summary": "The numbers and their squares."}'
smart = Agent(
    "smart",
    driver=ScriptedDriver(
        [answer],
        repeat_last=True,
        auxiliary={
            "Reflection.note": lambda state: f"note {state.step_count} of {state.step_count + 1}",
            "Summarization": _SUMMARY,
        },
    ),
    tools=[look_up, finish],
    capabilities=[
        Planning(),
        Reflection(ReasoningConfig(reflection=_NOTES)),
        Summarization(600),
        MemoryFacts(),
        ToolCache({"finish"}),
        AgentLimits(max_tool_calls=_LAST, max_total_output_tokens=10**9),
    ],
)
