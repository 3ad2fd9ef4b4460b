"""The agent of docs/http.md: it refunds after a person's approval, and answers everything else at once."""

from __future__ import annotations

from celery_agents import Agent, tool
from celery_agents.worker.drivers import CallTool, FunctionDriver
from celery_agents.worker.state import AgentState


@tool(effect="keyed", approval="always")
def refund(order: int, cents: int) -> str:
    """Pay money back."""
    return f"{cents} cents of order {order} were paid back"


def _answer(state: AgentState) -> str | list[CallTool]:
    last = state.messages[-1]
    if last.role.value == "user" and "refund" in last.content.lower():
        return [CallTool("refund", order=17, cents=1250)]
    return "Your money is on its way." if last.role.value == "tool" else "How can I help?"


support = Agent("support", driver=FunctionDriver(_answer), tools=(refund,))
