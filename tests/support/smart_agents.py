"""An agent with every capability of `state.smart`, whose script follows from the step; each model call is in the ledger.

The keys of model calls are `driver:<execution>:<step>:<purpose>`; the purpose of a step's own call is empty.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final

from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities import (
    AgentLimits,
    Guardrail,
    Guardrails,
    MemoryFacts,
    ModelRule,
    Planning,
    ReasoningConfig,
    Reflection,
    ReflectionConfig,
    RegexRule,
    Summarization,
    ToolCache,
)
from celery_agents.worker.drivers import CallTool, InferenceRequest, ScriptedDriver
from celery_agents.worker.state import AgentState, InferenceResponse, InferenceUsage
from celery_agents.worker.tools import ToolContext, tool

from .ledger import LEDGER_URL, post_effect

STEPS: Final = 14
USAGE: Final = InferenceUsage(input=10, output=5, requests=1)
CONTEXT_TOKENS: Final = 900


@tool(effect="unsafe")
def gather(ctx: ToolContext, number: int) -> str:
    """Gather something, which nobody deduplicates."""
    place = {"session": ctx.session_id, "execution": ctx.execution_id, "step": ctx.step}
    post_effect(os.environ[LEDGER_URL], ctx.idempotency_key, kind="effect", tool="gather", **place)
    return f"gathered {number}: " + "x" * 300


@tool(effect="pure")
def look(number: int) -> list[int]:
    """Look at a number."""
    return [number, number * number]


def planned_calls(step: int) -> list[CallTool]:
    """The calls of a step, counted from 0."""
    made = [CallTool("gather", number=step), CallTool("gather", number=100 + step), CallTool("look", number=step % 3)]
    if step == 0:
        items = [{"id": n, "title": f"part {n}", "status": "not-started"} for n in (1, 2, 3)]
        made.append(CallTool("manage_todo_list", operation="write", todo_list=items))
    elif step % 3 == 0:
        change = {"id": 1 + step // 3 % 3, "status": "completed", "evidence": f"step {step}"}
        made.append(CallTool("manage_todo_list", operation="update", todo_list=[change], expected_version=step // 3))
    if step % 4 == 1:
        made.append(CallTool("remember_fact", key=f"k{step % 8}", value=f"value {step}"))
    return made


def plan_calls() -> int:
    """The calls of `manage_todo_list` that the script makes."""
    return sum(call.name == "manage_todo_list" for step in range(STEPS) for call in planned_calls(step))


def _answer(state: AgentState) -> Any:
    return "done" if state.step_count >= STEPS else planned_calls(state.step_count)


def _note(state: AgentState) -> InferenceResponse:
    return InferenceResponse(content=f"note-{state.step_count} thought-{state.step_count}", usage=USAGE)


def _summary(state: AgentState) -> InferenceResponse:
    facts = [{"key": f"seen{state.step_count}", "value": "yes"}]
    return InferenceResponse(
        content=json.dumps({"summary": f"upto {state.step_count}", "stable_facts": facts}), usage=USAGE
    )


class Recorded(ScriptedDriver):
    """A script whose calls are paid for at the ledger."""

    def infer(self, request: InferenceRequest) -> bytes:
        key = f"driver:{request.execution_id}:{request.step}:{request.purpose}"
        pairs = [[call.id for call in message.tool_calls] or message.tool_call_id for message in request.messages]
        post_effect(os.environ[LEDGER_URL], key, kind="driver", purpose=request.purpose, pairs=pairs)
        return super().infer(request)


VERDICT: Final = "Guardrails.judge.1.response.0"
"""The key of the one verdict of a model: answers with calls say nothing that could be judged."""

_ALLOWED: Final = InferenceResponse(content='{"allow": true}', usage=USAGE)
CAPABILITIES: Final[list[Any]] = [
    Guardrails(
        [
            Guardrail("judge", [RegexRule("^gathered", then="warn"), ModelRule("Is it allowed?")], phases=["response"]),
            Guardrail("seen", [RegexRule("^gathered", then="warn")], phases=["request"]),
        ]
    ),
    Planning(),
    Reflection(ReasoningConfig(reflection=ReflectionConfig(cadence="initial_then_after_tool", keep_last=2))),
    Summarization(CONTEXT_TOKENS, max_summary_tokens=100),
    MemoryFacts(),
    ToolCache({"look"}),
    AgentLimits(max_tool_calls=200, max_cost_usd=50.0, max_total_output_tokens=100_000),
]

smart = Agent(
    "smart",
    driver=Recorded(
        [_answer],
        repeat_last=True,
        auxiliary={"Reflection.note": _note, "Summarization": _summary, VERDICT: _ALLOWED},
    ),
    tools=[gather, look],
    capabilities=CAPABILITIES,
)
