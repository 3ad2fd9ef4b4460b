"""Agents that try to fill a worker's memory, and one that does ordinary work beside them."""

from __future__ import annotations

import os

from celery_agents import Agent, tool
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.state import AgentState, StatePart
from celery_agents.worker.state.reducers import append_list

PROVIDER_URL = "TEST_HUGE_PROVIDER_URL"
_MEGABYTE = 1_000_000


@tool(effect="pure")
def dump() -> str:
    """Return a hundred megabytes."""
    return "x" * (100 * _MEGABYTE)


@tool(effect="keyed", max_result_chars=1_000_000_000)
def dump_rows() -> list[str]:
    """Return a hundred megabytes in rows, with a limit of its own that allows them."""
    row = "x" * 1_000
    return [row] * 100_000


@tool(effect="pure")
def nothing(number: int = 0) -> str:
    """Do nothing."""
    return "nothing"


def _many_calls(state: AgentState) -> str | list[CallTool]:
    return "done" if state.step_count else [CallTool("nothing", number=number) for number in range(10_000)]


def _dumps(state: AgentState) -> str | list[CallTool]:
    return "done" if state.step_count else [CallTool("dump"), CallTool("dump_rows")]


class Album(StatePart):
    """What a relative brings to its family."""

    part_name = "album"
    pages: tuple[str, ...] = ()


def _collect(context: HookContext) -> HookContext:
    state = context.state.with_metadata("found", ["y" * 1_000] * 900)
    return context.changed(state=state.with_part(Album(pages=("z" * 1_000,) * 8_000)))


def _family(state: AgentState) -> str | list[CallTool]:
    return "done" if state.step_count else [CallTool("relative", prompt=str(number)) for number in range(64)]


relative = Agent("relative", driver=lambda state: "x" * (3 * _MEGABYTE), hooks=[Hook(HookPoint.BEFORE_STEP, _collect)])
family = Agent(
    "family",
    driver=_family,
    tools=[relative.as_tool("relative", merge={"found": append_list, Album: lambda mine, theirs: theirs})],
    max_children=64,
)
huge_answers = Agent("huge_answers", model="openai-chat:gpt-4o-mini", base_url=os.environ.get(PROVIDER_URL))
huge_text = Agent("huge_text", driver=lambda state: "x" * (150 * _MEGABYTE))
many_calls = Agent("many_calls", driver=_many_calls, tools=[nothing])
dumping = Agent("dumping", driver=_dumps, tools=[dump, dump_rows])
