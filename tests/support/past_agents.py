"""An agent whose steps change everything, and write down what they saw into a file: an outside ledger."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from celery_agents.worker.agent import Agent
from celery_agents.worker.capability import Capability
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.state import AgentState, Message, PartScope, StatePart
from celery_agents.worker.tools import tool

STEPS: Final = 24
LEDGER: Final = "PAST_LEDGER"


class Plan(StatePart):
    part_name = "plan"
    scope = PartScope.SESSION
    step: int | None = None


@dataclass(frozen=True)
class ChangeEverything(Capability):
    def parts(self) -> Sequence[Any]:
        return [Plan]

    def hooks(self) -> Sequence[Hook]:
        return [Hook(HookPoint.AFTER_STEP, self._change)]

    def _change(self, context: HookContext) -> HookContext:
        state, step = context.state, context.step
        state = state.with_metadata("step", None if step % 3 == 0 else [step, {"even": step % 2 == 0}])
        if step % 4 == 0:
            state = state.with_part(Plan(step=step)).with_system_prompt(f"prompt of step {step}")
        if step % 7 == 0:
            state = state.with_messages([Message.user(f"summary of step {step}")], "summary")
        return context.changed(state=state)


@tool(effect="pure")
def look() -> str:
    """Look for a moment."""
    time.sleep(0.05)
    return "nothing"


def seen(state: AgentState) -> dict[str, Any]:
    """The part of a state that is written into the ledger."""
    return {
        "steps": state.step_count,
        "metadata": state.to_dict()["context"]["metadata"],
        "plan": state.part(Plan).step,
        "sections": {name: len(section.messages) for name, section in state.store.sections.items()},
        "messages": [message.to_dict() for message in state.messages],
        "records": [each.to_dict() for each in state.execution.step_executions] if state.execution else [],
    }


def _answer(state: AgentState) -> str | CallTool:
    entry = {"prompt": state.system_prompt, **seen(state)}
    with open(os.environ[LEDGER], "a") as ledger:
        ledger.write(json.dumps(entry) + "\n")
    return CallTool("look") if state.step_count < STEPS - 1 else "done"


changing = Agent(
    "changing",
    driver=_answer,
    tools=[look],
    capabilities=[ChangeEverything()],
    system_prompt="the first prompt",
)
