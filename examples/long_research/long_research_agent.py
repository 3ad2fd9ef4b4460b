"""A long research task: a plan, notes, a conversation that is compacted, facts, and a limit of dollars.

    celery-agents up --agents long_research_agent
    celery-agents submit long_research "What do the sources say about the tides?" --session tides
    python watch_research.py tides                           (in another terminal: the plan and the notes, as they grow)

The agent reads 56 sources, one a step. Kill its worker at any time: the next one goes on with the same plan and notes,
and no answer of the model is paid for twice. `RESEARCH_MAX_USD` is the limit of dollars; the execution ends there with
the plan and the notes that it has.
"""

from __future__ import annotations

import json
import os
import urllib.request

from celery_agents import (
    Agent,
    AgentLimits,
    AgentState,
    CallTool,
    InferenceRequest,
    InferenceResponse,
    MemoryFacts,
    Planning,
    Reflection,
    Summarization,
    ToolContext,
    tool,
)
from celery_agents.testing import ScriptedDriver
from celery_agents.worker.capabilities import ReasoningConfig, ReflectionConfig
from celery_agents.worker.state import InferenceUsage

SOURCES = 56
PARTS = ("find the sources", "read them", "compare what they say", "write the answer")
CONTEXT_TOKENS = 1_500
MAX_USD = float(os.environ.get("RESEARCH_MAX_USD", "3.00"))
PRICE_USD = 1 / 64


@tool(effect="pure", timeout=20)
def read_source(ctx: ToolContext, number: int) -> str:
    """Read a source.

    Args:
        number: From 1.
    """
    post("LIBRARY_URL", {"key": f"source {number} {ctx.idempotency_key}", "kind": "source"}, ctx.remaining_seconds())
    height = 3 + number % 5
    return f"Source {number}: the tide at station {number} is {height} metres. " + "It was measured every hour. " * 12


def post(setting: str, body: dict[str, object], seconds: float) -> None:
    """Post JSON to the service whose address is in this environment variable; without one nothing is sent."""
    url = os.environ.get(setting)
    if url:
        data = json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=seconds).close()


# What a model would decide; in the place of `driver=` give `model="openai:gpt-5-mini"`.


def next_move(state: AgentState) -> InferenceResponse | list[CallTool] | str:
    """The work of a step: one source, and the plan where a part of it is done."""
    done = state.step_count
    if done == 0:
        items = [{"id": n, "title": title, "status": "not-started"} for n, title in enumerate(PARTS, 1)]
        return [CallTool("manage_todo_list", operation="write", todo_list=items)]
    calls = [CallTool("read_source", number=done)] if done <= SOURCES else []
    if done in FINISHED:
        change = {"id": FINISHED[done], "status": "completed", "evidence": f"{done} steps"}
        calls.append(CallTool("manage_todo_list", operation="update", todo_list=[change]))
    if done % 20 == 0:
        calls.append(CallTool("remember_fact", key=f"tide at station {done}", value=f"{3 + done % 5} metres"))
    if calls:
        return calls
    facts = ", ".join(f"{each.key}: {each.value}" for each in state.smart.memory_facts)
    return f"I read {SOURCES} sources and made {len(state.smart.reflections)} notes. {facts}."


FINISHED = {1: 1, SOURCES: 2, SOURCES + 1: 3, SOURCES + 2: 4}
"""The part of the plan that is done with a step."""


def note(state: AgentState) -> str:
    """A note about the step before."""
    return f"After step {state.step_count}: nothing contradicts the other sources."


def summary(state: AgentState) -> str:
    """The beginning of the conversation in short."""
    facts = [{"key": "stations read", "value": str(state.step_count)}]
    return json.dumps({"summary": "All stations report three to seven metres.", "stable_facts": facts})


class BilledModel(ScriptedDriver):
    """A script in place of a model: each answer has a price, and is asked for at `MODEL_URL`."""

    def infer(self, request: InferenceRequest) -> bytes:
        """Pay, and answer."""
        purpose = request.purpose or "step"
        chars = sum(len(message.content) for message in request.messages)
        place = f"{request.execution_id}:{request.step}:{purpose}"
        post("MODEL_URL", {"key": place, "kind": purpose, "chars": chars}, request.timeout)
        answer = self.parse(super().infer(request))
        usage = InferenceUsage(input=chars // 4, output=20, requests=1)
        return answer.model_copy(update={"usage": usage, "cost": PRICE_USD}).to_json()


long_research = Agent(
    "long_research",
    driver=BilledModel([next_move], repeat_last=True, auxiliary={"Reflection.note": note, "Summarization": summary}),
    tools=[read_source],
    capabilities=[
        Planning(),
        Reflection(ReasoningConfig(reflection=ReflectionConfig(cadence="after_tool", keep_last=2))),
        Summarization(CONTEXT_TOKENS, max_summary_tokens=120),
        MemoryFacts(),
        AgentLimits(max_tool_calls=100, max_cost_usd=MAX_USD),
    ],
)
