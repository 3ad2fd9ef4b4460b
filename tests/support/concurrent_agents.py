"""Agents under concurrency limits; what runs is written down in an outside ledger when it begins and when it ends.

`crm` limits steps, `bank` calls. A step and a call take a moment, so that too many at a time would be seen.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any, Final

from celery_agents.worker.agent import Agent
from celery_agents.worker.state import AgentState, InferenceResponse, InferenceUsage, ToolCall
from celery_agents.worker.tools import ToolContext, tool

from .ledger import LEDGER_URL, post_effect

SECONDS: Final = float(os.environ.get("CONCURRENT_SECONDS", "0.1"))


def note(kind: str, key: str, limit: str) -> None:
    """Write down that something begins or ends; its key is the same both times."""
    post_effect(os.environ[LEDGER_URL], f"{kind} {key}", dedupe=False, kind=kind, limit=limit, pid=os.getpid())


def most_at_once(entries: Iterable[dict[str, Any]], limit: str = "crm") -> int:
    """The most that has run at a time, by the ledger; what a process had begun has ended when it was killed."""
    running: dict[str, int] = {}
    most = 0
    for entry in entries:
        key = entry["key"].partition(" ")[2]
        if entry["kind"] == "killed":
            running = {each: pid for each, pid in running.items() if pid != entry["pid"]}
        elif entry["limit"] == limit and entry["kind"] == "begin":
            running[key] = entry["pid"]
            most = max(most, len(running))
        else:
            running.pop(key, None)
    return most


def think(state: AgentState) -> InferenceResponse:
    """As many steps as the first message says, each of which takes a moment."""
    wanted, done = int(state.messages[0].content), state.execution.step_count if state.execution else 0
    key = f"{os.getpid()}-{time.monotonic_ns()}"
    note("begin", key, "crm")
    time.sleep(SECONDS)
    note("end", key, "crm")
    calls = () if done + 1 >= wanted else (ToolCall(id=f"c{done}", name="nothing", args={}),)
    return InferenceResponse(content=f"{done + 1}", tool_calls=calls, usage=InferenceUsage(input=1, output=1))


@tool(effect="pure")
def nothing() -> str:
    """Do nothing."""
    return "nothing"


@tool(effect="keyed", concurrency="bank")
def pay(ctx: ToolContext, order: str) -> str:
    """Pay an order.

    Args:
        order: Its number.
    """
    key = f"{ctx.idempotency_key}-{os.getpid()}"
    note("begin", key, "bank")
    time.sleep(SECONDS)
    note("end", key, "bank")
    return f"paid {order}"


@tool(effect="pure")
def look(order: str) -> str:
    """Look at an order.

    Args:
        order: Its number.
    """
    return f"seen {order}"


def pay_all(state: AgentState) -> InferenceResponse:
    """Pay as many orders at once as the first message says, and look at one."""
    if state.execution is not None and state.execution.step_count:
        return InferenceResponse(content="done", usage=InferenceUsage(input=1, output=1))
    wanted = int(state.messages[0].content)
    calls = [ToolCall(id=f"p{number}", name="pay", args={"order": str(number)}) for number in range(wanted)]
    calls.append(ToolCall(id="look", name="look", args={"order": "1"}))
    return InferenceResponse(content="", tool_calls=tuple(calls), usage=InferenceUsage(input=1, output=1))


crm = Agent("crm", driver=think, tools=[nothing], concurrency="crm")
cashier = Agent("cashier", driver=pay_all, tools=[pay, look])


def ask_another(state: AgentState) -> InferenceResponse:
    """Ask an agent under the same limit, and give its answer."""
    if state.execution is not None and state.execution.step_count:
        return InferenceResponse(content="asked", usage=InferenceUsage(input=1, output=1))
    call = ToolCall(id="ask", name="ask_crm", args={"prompt": "1"})
    return InferenceResponse(content="", tool_calls=(call,), usage=InferenceUsage(input=1, output=1))


parent = Agent("parent", driver=ask_another, tools=[crm.as_tool()], concurrency=["crm"])
