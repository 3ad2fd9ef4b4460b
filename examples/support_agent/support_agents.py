"""A support agent that looks up an order and refunds it, once, whatever happens to its worker.

    celery-agents up --agents support_agents
    celery-agents submit support "Order 17 arrived broken" --wait

The refund is a keyed effect: the payment service gets the same idempotency key from every attempt at the call. Here the
service is an HTTP server of yours (`PAYMENTS_URL`); without one the refund is only written down.
"""

from __future__ import annotations

import json
import os
import re
import urllib.request

from celery_agents import Agent, AgentState, ExecutionBudget, ToolCall, ToolContext, tool

ORDERS = {"17": {"item": "teapot", "cents": 2400}, "18": {"item": "kettle", "cents": 3900}}


@tool(effect="pure")
def find_order(number: str) -> dict[str, str]:
    """Look an order up.

    Args:
        number: Its number.
    """
    order = ORDERS.get(number)
    if order is None:
        raise LookupError(f"there is no order {number}")
    return {"number": number, "item": str(order["item"]), "cents": str(order["cents"])}


@tool(effect="keyed", timeout=20)
def refund(ctx: ToolContext, number: str, cents: int) -> str:
    """Refund an order.

    Args:
        number: The order's number.
        cents: How much.
    """
    url = os.environ.get("PAYMENTS_URL")
    if url:
        body = json.dumps({"key": ctx.idempotency_key, "order": number, "cents": cents}).encode()
        request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=ctx.remaining_seconds()).close()
    return f"refunded {cents / 100:.2f} for order {number}"


def decide(state: AgentState) -> str | ToolCall:
    """What a model would decide: look the order up, refund it, answer."""
    asked = next(message.content for message in reversed(state.messages) if message.role == "user")
    number = re.search(r"\d+", asked)
    if number is None:
        return "Which order is it about? Please give its number."
    if state.step_count == 0:
        return ToolCall(id="find", name="find_order", args={"number": number.group()})
    done = state.steps[-1].tool_executions[0]
    if done.has_error():
        return f"I could not help: {done.error_message()}."
    if state.step_count == 1:
        order = done.value
        return ToolCall(id="pay", name="refund", args={"number": order["number"], "cents": int(order["cents"])})
    return f"I am sorry about that. I {done.value}."


support = Agent(
    "support",
    driver=decide,  # or model="openai:gpt-5-mini"
    system_prompt="You are the support of a tea shop. Refund orders that arrived broken.",
    tools=[find_order, refund],
    budget=ExecutionBudget(max_steps=8, max_seconds=300),
)
