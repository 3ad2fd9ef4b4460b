"""Agents of a tea shop for the stories in a browser: a support that refunds with an approval, children that look things up.

What a message says decides what happens, so that a story can be told by messages alone:

    "My kettle, order 4812, is cracked"   find_order and track_parcel side by side, a research by a child, a refund to approve
    "Where is order 4915?"                 one look-up
    "Ask the archive about order 4100"     a research by a child, one of whose readers fails
    "fail: …"                              a model that cannot be asked
    "slow: …"                              a tool that takes a minute
    "write 300"                            an answer of so many pieces, written as they come
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from datetime import timedelta
from typing import Any, Final

from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities.approvals import Approvals, Rule
from celery_agents.worker.drivers import Delta, FunctionDriver, InferenceRequest
from celery_agents.worker.state import AgentState, ExecutionBudget, InferenceResponse, InferenceUsage, Role, ToolCall
from celery_agents.worker.tools import AgentTool, Ask, NeedsAnswer, ToolContext, tool

SECONDS: Final = float(os.environ.get("STORY_SECONDS", "0.4"))
"""How long a model call takes; tools take parts of it."""

MODEL: Final = "openai:gpt-5-mini"
PRICE: Final = 0.0000004  # dollars for a token


@tool(effect="pure")
def find_order(order: str) -> dict[str, Any]:
    """Look an order up.

    Args:
        order: Number of the order.
    """
    time.sleep(SECONDS / 2)
    return {"order": order, "cents": 3900, "shipped": "2026-11-20"}


@tool(effect="pure")
def track_parcel(order: str) -> dict[str, Any]:
    """Find out where a parcel is.

    Args:
        order: Number of the order.
    """
    time.sleep(SECONDS)
    return {"order": order, "delivered": "2026-11-23", "damage_noted": False}


@tool(effect="keyed", timeout=90)
def refund(ctx: ToolContext, order: str, cents: int, reason: str = "") -> dict[str, Any]:
    """Pay money back.

    Args:
        order: Number of the order.
        cents: Amount in cents.
        reason: What the customer is told.
    """
    if pause := float(os.environ.get("STORY_REFUND_SECONDS", "0")):
        time.sleep(pause)
    return {"refund": f"r-{ctx.idempotency_key[:5]}", "order": order, "cents": cents}


@tool(effect="keyed", timeout=90)
def stocktaking(seconds: float = 60.0) -> str:
    """Count the stock.

    Args:
        seconds: How long it takes.
    """
    time.sleep(seconds)
    return "counted"


@tool(effect="keyed")
def ask_colour(ctx: ToolContext) -> str:
    """Ask the customer which colour the new kettle has."""
    schema = {
        "type": "object",
        "properties": {
            "colour": {"enum": ["black", "steel", "cream"], "description": "As in the catalogue."},
            "engraving": {"type": "string", "maxLength": 12},
        },
        "required": ["colour"],
    }
    answer = ctx.answer(schema)
    if answer is None:
        raise NeedsAnswer("Which colour shall the new kettle have?", schema, to="customer")
    return f"ordered in {answer['colour']}"


class Storyteller(FunctionDriver):
    """Decides by the newest message of the user, and writes its text piece by piece."""

    def __init__(self, decide: Any) -> None:
        super().__init__(decide)
        self._decide = decide
        self.is_async = True

    async def infer(self, request: InferenceRequest) -> bytes:
        """Answer once."""
        decided = self._decide(request.state)
        text = decided if isinstance(decided, str) else decided[0]
        calls = () if isinstance(decided, str) else tuple(decided[1])
        pieces = re.findall(r"\S+\s*", text)
        pause = SECONDS / max(1, len(pieces)) if len(pieces) < 100 else 0.01
        for piece in pieces:
            if request.emit is not None:
                request.emit(Delta(piece))
            await asyncio.sleep(pause)
        tokens = 400 + 30 * request.step
        usage = InferenceUsage(input=tokens, output=len(pieces))
        cost = round(PRICE * (tokens + 4 * len(pieces)), 6)
        return InferenceResponse(content=text, tool_calls=calls, usage=usage, cost=cost, model=MODEL).to_json()


Decision = str | tuple[str, list[ToolCall]]


def _said(state: AgentState) -> tuple[str, int]:
    """The newest message of the user, and how many steps have been done since it came."""
    messages = list(state.messages)
    last = max(number for number, each in enumerate(messages) if each.role is Role.USER)
    answers = sum(each.role is Role.ASSISTANT for each in messages[last:])
    return messages[last].content, answers


def _call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id=f"call-{name}", name=name, args=arguments)


def support_decides(state: AgentState) -> Decision:
    """What the model of the support would decide."""
    said, done = _said(state)
    found = re.search(r"\d{4}", said)
    order = found.group() if found else "4812"
    if said.startswith("write"):
        return " ".join(f"word{number}" for number in range(int(said.split()[1])))
    if said.startswith("fail"):
        raise ValueError("the model of the shop is gone: ask for another one")
    if said.startswith("slow"):
        return ("I count the stock.", [_call("stocktaking")]) if done == 0 else "All is counted."
    if said.startswith("colour"):
        return ("", [_call("ask_colour")]) if done == 0 else "Your new kettle is on its way."
    if said.startswith("Ask the archive"):
        call = _call("research", prompt=f"the archive, {order}")
        return ("", [call]) if done == 0 else "The archive is closed today. I have found nothing else about this order."
    if said.startswith("Where"):
        return ("", [_call("track_parcel", order=order)]) if done == 0 else "It was delivered on the 23rd."
    if "cracked" not in said:
        return "You are welcome."
    match done:
        case 0:
            return "", [_call("find_order", order=order), _call("track_parcel", order=order)]
        case 1:
            return "I’m sorry about that. I’m asking whether this fault is known.", [
                _call("research", prompt=f"cracked lids, {order}")
            ]
        case 2:
            return "I’ll ask for a refund.", [_call("refund", order=order, cents=3900, reason="cracked lid")]
        case _:
            return "Good news: the money is on its way back to your card. It takes up to five days."


def research_decides(state: AgentState) -> Decision:
    """What the model of the research would decide: ask two readers, then sum up."""
    said, done = _said(state)
    if done == 0:
        return "", [
            _call("read", prompt=f"reviews: {said}"),
            ToolCall(id="call-2", name="read", args={"prompt": f"tickets: {said}"}),
        ]
    return "A known fault of this series: two suppliers changed the lid."


def reader_decides(state: AgentState) -> Decision:
    """What the model of a reader would decide."""
    if _said(state)[0].startswith("tickets: the archive"):
        raise ValueError("the archive refuses connections until 18:00; ask again later")
    return f"Nothing unusual in {_said(state)[0].split(':')[0]}."


support = Agent(
    "support",
    driver=Storyteller(support_decides),
    system_prompt="You help customers of a tea shop. Refunds need an approval.",
    tools=[
        find_order,
        track_parcel,
        refund,
        stocktaking,
        ask_colour,
        AgentTool("research", name="research"),
    ],
    capabilities=[
        Approvals(
            [
                Rule(
                    "refund",
                    then=Ask(to="managers", expires=timedelta(hours=8), on_expiry="deny", text="Approve a refund?"),
                )
            ]
        )
    ],
    budget=ExecutionBudget(max_steps=12, max_tokens=60_000, max_cost=0.5),
    description="Helps customers of a tea shop.",
)
research = Agent("research", driver=Storyteller(research_decides), tools=[AgentTool("reader", name="read")])
reader = Agent("reader", driver=Storyteller(reader_decides))
