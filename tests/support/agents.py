"""Agents of which the message is the plan: what to call in which step, and what to answer.

    from support.agents import call, plan
    client.submit("planned", plan([call("keyed", work="a"), call("pure", work="b")], [call("unsafe", work="c")]))

Every driver call and every effect is written into the ledger before it goes on: `new_worker(env=ledger.env)`. Driver
calls have the key `driver:<execution>:<step>`, effects the call's idempotency key.
"""

from __future__ import annotations

import json
import os
import urllib.parse
from typing import Any

import anyio.to_thread

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.state import AgentState, Role
from celery_agents.worker.tools import LookupResult, ToolContext, tool

from .http_service import call as http
from .ledger import LEDGER_URL, post_effect


def plan(*steps: list[dict[str, Any]], answer: str = "done", **driver: Any) -> str:
    """A message that makes the agents below call the tools of each step in turn, and then answer.

    Args:
        steps: The calls of each step.
        answer: The final answer.
        driver: Fields of the ledger for each driver call: `gate`, `before`, `after`.
    """
    return json.dumps({"steps": steps, "answer": answer, "driver": driver})


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """A call in a plan. Every tool takes `work`, a name for the effect, and `gate`, `before`, `after` of the ledger."""
    return {"tool": name, "arguments": arguments}


def driver_key(execution_id: str, step: int) -> str:
    """The key of a driver call in the ledger."""
    return f"driver:{execution_id}:{step}"


def _follow(state: AgentState) -> str | list[CallTool]:
    assert state.execution is not None
    key = driver_key(state.execution.execution_id, state.execution.step_count + 1)
    post_effect(os.environ[LEDGER_URL], key, kind="driver", **plan_of(state)["driver"])
    return planned_answer(state)


def planned_answer(state: AgentState) -> str | list[CallTool]:
    """What the plan says for the next step."""
    assert state.execution is not None
    planned, number = plan_of(state), state.execution.step_count
    if number >= len(planned["steps"]):
        return planned["answer"]
    return [CallTool(each["tool"], **each["arguments"]) for each in planned["steps"][number]]


def plan_of(state: AgentState) -> dict[str, Any]:
    """The newest plan; other messages of the user are remarks."""
    said = [message.content for message in state.messages if message.role is Role.USER]
    return next(json.loads(text) for text in reversed(said) if text.startswith('{"steps"'))


def _effect(ctx: ToolContext, tool_name: str, fields: dict[str, Any]) -> str:
    place = {"session": ctx.session_id, "execution": ctx.execution_id, "step": ctx.step, "index": ctx.index}
    wanted = {name: value for name, value in fields.items() if value is not None}
    post_effect(os.environ[LEDGER_URL], ctx.idempotency_key, kind="effect", tool=tool_name, **place, **wanted)
    return f"{fields['work']} done"


@tool(effect="pure")
def pure(work: str) -> str:
    """Have no effect."""
    return f"{work} done"


@tool(effect="keyed")
def keyed(ctx: ToolContext, work: str, gate: str | None = None, before: float = 0, after: float = 0) -> str:
    """Have one effect for each idempotency key, however often it is delivered."""
    return _effect(ctx, "keyed", {"work": work, "gate": gate, "before": before, "after": after, "dedupe": True})


def _look_up(key: str, ctx: ToolContext) -> LookupResult:
    found = http(f"{os.environ[LEDGER_URL]}/lookup?key={urllib.parse.quote(key)}")
    return (
        LookupResult.happened(f"{found['entry']['work']} done") if found["happened"] else LookupResult.did_not_happen()
    )


@tool(effect="keyed")
async def keyed_async(work: str, ctx: ToolContext, gate: str | None = None, before: float = 0, after: float = 0) -> str:
    """As `keyed`, and can be cancelled while it waits."""
    fields = {"work": work, "gate": gate, "before": before, "after": after, "dedupe": True}
    return await anyio.to_thread.run_sync(_effect, ctx, "keyed_async", fields, abandon_on_cancel=True)


@tool(effect="lookup", lookup=_look_up, timeout=5)
def looked_up(ctx: ToolContext, work: str, gate: str | None = None, before: float = 0, after: float = 0) -> str:
    """Have an effect that can be looked up, and that a second delivery would have again."""
    return _effect(ctx, "looked_up", {"work": work, "gate": gate, "before": before, "after": after})


@tool(effect="unsafe")
def unsafe(ctx: ToolContext, work: str, gate: str | None = None, before: float = 0, after: float = 0) -> str:
    """Have an effect that nobody deduplicates."""
    return _effect(ctx, "unsafe", {"work": work, "gate": gate, "before": before, "after": after})


@tool(effect="pure")
def failing(text: str) -> str:
    """Raise."""
    raise ValueError(text)


planned = Agent("planned", driver=_follow, tools=(pure, keyed, keyed_async, looked_up, unsafe, failing))
