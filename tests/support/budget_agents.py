"""Agents whose steps, ends and waits can be held at a gate, and write down what happens: an outside ledger.

A gate is a file: what reaches it waits until the file is gone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from celery_agents.worker.agent import Agent
from celery_agents.worker.capability import Capability
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.state import AgentState, ExecutionBudget, InferenceResponse, InferenceUsage, ToolCall
from celery_agents.worker.tools import tool
from celery_agents.worker.tools.context import ToolContext

FOLDER: Final = "BUDGET_LEDGER"
STEPS: Final = 6


def note(line: str) -> None:
    """Append a line to the ledger, for good."""
    with (Path(os.environ[FOLDER]) / "ledger").open("a") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def pass_gate(name: str) -> None:
    """Wait as long as there is a gate of this name."""
    gate = Path(os.environ[FOLDER]) / name
    while gate.exists():
        time.sleep(0.02)


@dataclass(frozen=True)
class Gated(Capability):
    """Holds an execution at its end, which a limit or an answer has decided by then."""

    def hooks(self) -> Sequence[Hook]:
        return [Hook(HookPoint.ON_STOP, self._end)]

    def _end(self, context: HookContext) -> None:
        note(f"ending {context.session_id} {context.step}")
        pass_gate("end")


@tool(effect="keyed")
def pay(ctx: ToolContext) -> str:
    """Pay; the ledger has each key."""
    pass_gate("tool")
    note(f"paid {ctx.idempotency_key}")
    return "paid"


@tool(effect="keyed", approval="always")
def refund(ctx: ToolContext) -> str:
    """Refund, when somebody has approved it."""
    note(f"refunded {ctx.idempotency_key}")
    return "refunded"


def stepping(tool_name: str, steps: int) -> Any:
    """A driver that calls a tool until its last step; a step takes 100 tokens and 0.1 dollars."""

    def driver(state: AgentState) -> InferenceResponse:
        number = state.step_count + 1
        note(f"asked {number}")
        pass_gate(f"model {number}")
        is_last = number >= steps
        calls = () if is_last else (ToolCall(id=f"c{number}", name=tool_name),)
        text = "done" if is_last else ""
        return InferenceResponse(content=text, tool_calls=calls, usage=InferenceUsage(input=100), cost=0.1)

    return driver


working = Agent("working", driver=stepping("pay", STEPS), tools=[pay], capabilities=[Gated()])
capped = Agent("capped", driver=stepping("pay", STEPS), tools=[pay], budget=ExecutionBudget(max_steps=3, max_cost=10.0))
asking = Agent("asking", driver=stepping("refund", 2), tools=[refund])


@tool(effect="pure")
def think() -> str:
    """Think for a while."""
    time.sleep(0.3)
    return "thought"


slow = Agent("slow", driver=stepping("think", 40), tools=[think])


def lead_driver(state: AgentState) -> Any:
    if state.step_count:
        return InferenceResponse(content="gathered", usage=InferenceUsage(input=100))
    calls = tuple(ToolCall(id=f"c{n}", name="ask_slow", args={"prompt": f"part {n}"}) for n in range(2))
    return InferenceResponse(tool_calls=calls, usage=InferenceUsage(input=100))


lead = Agent("lead", driver=lead_driver, tools=[slow.as_tool()], max_children=2)
