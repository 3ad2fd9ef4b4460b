"""An agent that asks a customer, a manager and a carrier, and holds no worker while it waits for them.

    export CELERY_AGENTS_TOKEN_SECRET=…                     (16 characters or more; the service has the same)
    celery-agents up --agents desk_agents
    celery-agents submit desk "Order 18 arrived broken"
    celery-agents requests

The customer chooses in a question, large refunds need a manager's approval, and the carrier says in a call of its own
when it comes. `desk_service.py` is the web service for all three.
"""

from __future__ import annotations

import json
import os
import urllib.request
from datetime import timedelta
from typing import Any

from celery_agents import Agent, AgentState, Approvals, Ask, AskUser, Rule, ToolCall, ToolContext, tool

PRICES = {"17": 2400, "18": 3900}
WISH = "Do you want your money back, or a new one?"


@tool(effect="keyed", timeout=20)
def refund(ctx: ToolContext, order: str, cents: int) -> str:
    """Pay money back.

    Args:
        order: Number of the order.
        cents: How much.
    """
    post("PAYMENTS_URL", {"key": ctx.idempotency_key, "order": order, "cents": cents}, ctx)
    return f"refunded {cents / 100:.2f}"


@tool(effect="keyed", timeout=20, result="later", expires=timedelta(days=2), on_expiry="deny")
def order_pickup(ctx: ToolContext, order: str) -> None:
    """Have the carrier fetch the broken article; it says later on which day.

    Args:
        order: Number of the order.
    """
    post("CARRIER_URL", {"key": ctx.idempotency_key, "order": order, "token": ctx.completion_token}, ctx)


def post(setting: str, body: dict[str, Any], ctx: ToolContext) -> None:
    """Post JSON to the service whose address is in this environment variable; without one nothing is sent."""
    url = os.environ.get(setting)
    if url:
        data = json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=ctx.remaining_seconds()).close()


def decide(state: AgentState) -> str | ToolCall | list[ToolCall]:
    """What a model would decide: ask the customer, then pay and order the pick-up, then answer."""
    asked = next(message.content for message in reversed(state.messages) if message.role == "user")
    order = next((number for number in PRICES if number in asked), None)
    if order is None:
        return "Which order is it about?"
    if state.step_count == 0:
        options = [{"label": "Money back", "value": "money"}, {"label": "A new one", "value": "new"}]
        questions = [{"question": WISH, "header": "Wish", "options": options}]
        return ToolCall(id="wish", name="ask_user_question", args={"questions": questions})
    if state.step_count == 1:
        pickup = ToolCall(id="pickup", name="order_pickup", args={"order": order})
        pay = ToolCall(id="pay", name="refund", args={"order": order, "cents": PRICES[order]})
        return [pay, pickup] if wants_money(state) else pickup
    done = [each.as_message() for each in state.steps[-1].tool_executions]
    return f"About order {order}: {'; '.join(done)}."


def wants_money(state: AgentState) -> bool:
    """What the customer chose."""
    (asked,) = state.steps[-1].tool_executions
    reply: Any = asked.value or {}
    return any("money" in answer["values"] for answer in reply.get("answers", ()))  # none where nobody answered in time


desk = Agent(
    "desk",
    driver=decide,  # or model="openai:gpt-5-mini"
    system_prompt="You are the support of a tea shop.",
    tools=[refund, order_pickup],
    capabilities=[
        AskUser(to="customer", allow_free_text=False, expires=timedelta(days=7)),
        Approvals(
            [
                Rule(
                    "refund",
                    when=lambda ctx, args: args["cents"] > 3000,
                    then=Ask(to="managers", expires=timedelta(hours=8), on_expiry="deny", text="A large refund."),
                )
            ]
        ),
    ],
)
