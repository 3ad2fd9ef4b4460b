"""Agents of which the newest message is the plan: a word for each step, and then the answer.

    keyed, unsafe, looked_up    a call of this tool, whose effect is written into the outside ledger
    keyed_3                     three keyed calls
    ask                         an approval
    ask_keyed                   an approval and a keyed call
    child                       two children of `limited`; `parent` alone has them

A word that begins with `#` is the name of a message. Steps of `limited` and `parent` are under the limit `crm`, keyed calls under
`bank`; what of both runs is noted when it begins and when it ends. `free` is under no limit of its steps.
"""

from __future__ import annotations

import os
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from celery_agents.worker.agent import Agent
from celery_agents.worker.state import AgentState, InferenceResponse, InferenceUsage, Role, ToolCall
from celery_agents.worker.tools import LookupResult, ToolContext, tool

from .concurrent_agents import note
from .http_service import call as http
from .ledger import LEDGER_URL, post_effect

PRICE: Final = 0.01
WORDS: Final = ("keyed", "keyed_3", "unsafe", "looked_up", "ask", "ask_keyed")
_SECONDS: Final = 0.05
_CALLS: Final = {
    "keyed": ("keyed",),
    "keyed_3": ("keyed", "keyed", "keyed"),
    "unsafe": ("unsafe",),
    "looked_up": ("looked_up",),
    "ask": ("approved",),
    "ask_keyed": ("approved", "keyed"),
    "child": ("ask_limited", "ask_limited"),
}


@contextmanager
def _noted(limit: str) -> Iterator[None]:
    """Note that something under a limit begins, takes a moment and ends."""
    key = f"{os.getpid()}-{time.monotonic_ns()}"
    note("begin", key, limit)
    time.sleep(_SECONDS)
    yield
    note("end", key, limit)


def _effect(ctx: ToolContext, name: str, *, dedupe: bool = False) -> str:
    place = {"session": ctx.session_id, "execution": ctx.execution_id, "step": ctx.step, "index": ctx.index}
    post_effect(
        os.environ[LEDGER_URL], ctx.idempotency_key, kind="effect", tool=name, dedupe=dedupe, pid=os.getpid(), **place
    )  # fmt: skip
    return "done"


@tool(effect="keyed", concurrency="bank")
def keyed(ctx: ToolContext) -> str:
    """Have one effect for each idempotency key, under a limit."""
    with _noted("bank"):
        return _effect(ctx, "keyed", dedupe=True)


@tool(effect="unsafe")
def unsafe(ctx: ToolContext) -> str:
    """Have an effect that nothing deduplicates."""
    return _effect(ctx, "unsafe")


def _look_up(key: str) -> LookupResult:
    found = http(f"{os.environ[LEDGER_URL]}/lookup?key={urllib.parse.quote(key)}")
    return LookupResult.happened("done") if found["happened"] else LookupResult.did_not_happen()


@tool(effect="lookup", lookup=_look_up, timeout=2)
def looked_up(ctx: ToolContext) -> str:
    """Have an effect that can be looked up."""
    return _effect(ctx, "looked_up")


@tool(effect="pure", approval="always")
def approved() -> str:
    """Wait for an approval."""
    return "done"


def _answer(state: AgentState) -> InferenceResponse:
    """The calls of the next word of the newest message of the user."""
    said = next(message.content for message in reversed(state.messages) if message.role is Role.USER)
    words = [word for word in said.split() if not word.startswith("#")]
    number = state.execution.step_count if state.execution else 0
    names = _CALLS[words[number]] if number < len(words) else ()
    calls = [
        ToolCall(id=f"c{number}.{i}", name=name, args={"prompt": "keyed"} if name == "ask_limited" else {})
        for i, name in enumerate(names)
    ]
    usage = InferenceUsage(input=1, output=1)
    return InferenceResponse(content="" if calls else "done", tool_calls=tuple(calls), usage=usage, cost=PRICE)


def _answer_noted(state: AgentState) -> InferenceResponse:
    with _noted("crm"):
        return _answer(state)


_TOOLS: Final[tuple[Callable[..., object], ...]] = (keyed, unsafe, looked_up, approved)
limited = Agent("limited", driver=_answer_noted, tools=_TOOLS, concurrency="crm")
parent = Agent("parent", driver=_answer_noted, tools=(*_TOOLS, limited.as_tool()), concurrency="crm")
free = Agent("free", driver=_answer, tools=_TOOLS)
