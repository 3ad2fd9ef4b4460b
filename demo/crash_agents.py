"""The research agent whose driver calls and notes are written to a ledger, for `celery-agents demo --crash`."""

from __future__ import annotations

from typing import Final

from ..worker.agent import Agent
from ..worker.drivers import CallTool, FunctionDriver
from ..worker.state import AgentState
from ..worker.tools import ToolContext, tool
from .agent import BUDGET, NAME, SYSTEM_PROMPT
from .driver import final_answer, findings, next_calls, open_questions
from .ledger import DRIVER_CALL, EFFECT, Ledger
from .tools import list_files, read_file, search_files

_HOLD_SECONDS: Final = 20.0
"""How long the ledger keeps the first caller waiting: long enough to be killed in."""


@tool(effect="keyed")
def file_note(ctx: ToolContext, title: str) -> str:
    """File a note about the research.

    Args:
        title: What the note is about.
    """
    timeout = min(60.0, ctx.remaining_seconds())
    entry = Ledger.from_environment().write(
        EFFECT, ctx.idempotency_key, title=title, step=ctx.step, hold=_HOLD_SECONDS, timeout_seconds=timeout
    )
    return "the note was filed before" if entry["repeated"] else "the note is filed"


def recorded_research(state: AgentState) -> str | list[CallTool]:
    """The research, with a note filed beside the reading, and each call written to the ledger."""
    step = state.step_count + 1
    Ledger.from_environment().write(DRIVER_CALL, f"step {step}", step=step)
    questions, found = open_questions(state), findings(state)
    calls = next_calls(questions, found)
    if found.calls and calls:
        calls.append(CallTool("file_note", title=questions[0]))
    return calls or final_answer(questions, found)


researcher = Agent(
    NAME,
    driver=FunctionDriver(recorded_research),
    system_prompt=SYSTEM_PROMPT,
    tools=(list_files, search_files, read_file, file_note),
    budget=BUDGET,
    description="The research agent, with a ledger.",
)
