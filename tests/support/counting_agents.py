"""An agent with a capability that counts its steps: in a part of the session, and item by item in a list."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from celery_agents.worker.agent import Agent
from celery_agents.worker.capability import Capability
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.state import AgentState, ListPart, PartItem, PartScope, StatePart
from celery_agents.worker.tools import tool

STEPS: Final = 30


class Counted(StatePart):
    part_name = "counted"
    scope = PartScope.SESSION
    steps: int = 0


class Entry(PartItem):
    step: int


class Entries(ListPart[Entry]):
    part_name = "entries"


@dataclass(frozen=True)
class CountSteps(Capability):
    def parts(self) -> Sequence[Any]:
        return [Counted, Entries]

    def hooks(self) -> Sequence[Hook]:
        return [Hook(HookPoint.AFTER_STEP, self._count)]

    def _count(self, context: HookContext) -> HookContext:
        counted, entries = context.state.part(Counted), context.state.part(Entries)
        state = context.state.with_part(counted.replace(steps=counted.steps + 1))
        return context.changed(state=state.with_part(entries.append(Entry(step=context.step))))


@tool(effect="pure")
def wait() -> None:
    """Wait a moment."""
    time.sleep(0.1)


def _answer(state: AgentState) -> str | CallTool:
    return CallTool("wait") if state.step_count < STEPS - 1 else f"counted {state.part(Counted).steps}"


counting = Agent("counting", driver=_answer, tools=[wait], capabilities=[CountSteps()])
