"""An agent whose calls ask different addressees; the message is the plan, as for `support.agents`."""

from __future__ import annotations

from pydantic import BaseModel

from celery_agents.worker.agent import Agent
from celery_agents.worker.tools import Ask, NeedsAnswer, ToolContext, tool

from .agents import _effect, _follow


class Word(BaseModel):
    """The answer to a question."""

    word: str


@tool(effect="unsafe", approval=Ask(to="managers"))
def approved_by_managers(ctx: ToolContext, work: str) -> str:
    """Have an effect, once a manager approves."""
    return _effect(ctx, "approved_by_managers", {"work": work})


@tool(effect="unsafe", approval=Ask(to="customer"))
def approved_by_customer(ctx: ToolContext, work: str) -> str:
    """Have an effect, once the customer approves."""
    return _effect(ctx, "approved_by_customer", {"work": work})


@tool(effect="unsafe", approval="always")
def approved_by_anybody(ctx: ToolContext, work: str) -> str:
    """Have an effect, once somebody approves."""
    return _effect(ctx, "approved_by_anybody", {"work": work})


def _ask(ctx: ToolContext, to: str | None) -> str:
    answer = ctx.answer(Word)
    if answer is None:
        raise NeedsAnswer("Which word?", Word, to=to)
    return answer.word


@tool(effect="pure")
def question_to_managers(ctx: ToolContext, work: str) -> str:
    """Ask a manager for a word."""
    del work
    return _ask(ctx, "managers")


@tool(effect="pure")
def question_to_customer(ctx: ToolContext, work: str) -> str:
    """Ask the customer for a word."""
    del work
    return _ask(ctx, "customer")


@tool(effect="pure")
def question_to_anybody(ctx: ToolContext, work: str) -> str:
    """Ask whoever is there for a word."""
    del work
    return _ask(ctx, None)


@tool(effect="unsafe", result="later")
def later(ctx: ToolContext, work: str) -> None:
    """Have a service do it; the service brings the result."""
    _effect(ctx, "later", {"work": work, "token": ctx.completion_token})


ADDRESSED_TOOLS = (
    approved_by_managers,
    approved_by_customer,
    approved_by_anybody,
    question_to_managers,
    question_to_customer,
    question_to_anybody,
    later,
)

addressed = Agent("addressed", driver=_follow, tools=ADDRESSED_TOOLS)
