"""Agents that ask the provider of `support.provider`, whose prompt and tools a deployment chooses by its environment."""

from __future__ import annotations

import json
import os
from typing import Any, Final

from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import ModelRetry, RunContext
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from celery_agents import Handoff
from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities import Summarization
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.pydantic_agents.durability import CeleryDurability
from celery_agents.worker.state import Message
from celery_agents.worker.tools import tool

PROVIDER_URL: Final = "TEST_PROVIDER_URL"
PROMPT: Final = "SEEN_PROMPT"
TOOL: Final = "SEEN_TOOL"

_url = os.environ.get(PROVIDER_URL, "http://127.0.0.1:1/v1")
_prompt = os.environ.get(PROMPT, "You sell shoes.")
_model: dict[str, Any] = {"model": "openai-chat:test-model", "base_url": _url}


@tool(effect="pure")
def note(text: str) -> str:
    """Note something.

    Args:
        text: What.
    """
    return f"noted {text}"


@tool(effect="pure", name=os.environ.get(TOOL, "find"))
def find(place: str, most: int = 3) -> list[str]:
    """Find shops."""
    return [f"shop {number} in {place}" for number in range(most)]


@tool(effect="unsafe", approval="always")
def pay(dollars: int) -> str:
    """Pay."""
    return f"paid {dollars}"


desk = Agent("desk", **_model, system_prompt="You are the desk.", tools=[note])
seller = Agent(
    "seller",
    **_model,
    system_prompt=_prompt,
    tools=[note, find, pay],
    handoffs=[Handoff(desk, when="it is about a bill")],
    model_settings={"temperature": 0.25, "extra_headers": {"x-team": "shoes"}},
)


def _remind(context: HookContext) -> HookContext:
    assert context.request is not None
    reminder = Message.system(f"It is step {context.request.step}.")
    return context.changed(request=context.request.with_messages((reminder, *context.request.messages)))


reminded = Agent(
    "reminded", **_model, system_prompt=_prompt, tools=[note], hooks=[Hook(HookPoint.BEFORE_INFERENCE, _remind)]
)
compact = Agent(
    "compact",
    **_model,
    system_prompt=_prompt,
    tools=[note],
    capabilities=[Summarization(600, max_summary_tokens=60, last_turns_to_keep=2)],
)

_pydantic_model = OpenAIChatModel("test-model", provider=OpenAIProvider(base_url=_url, api_key="not-a-key"))


class Order(BaseModel):
    """An order."""

    pairs: int


library = PydanticAgent(
    _pydantic_model,
    name="library",
    system_prompt="You keep books.",
    instructions=_prompt,
    model_settings={"temperature": 0.5},
    output_type=[str, Order],
    capabilities=[CeleryDurability()],
)


@library.instructions
def count_steps(ctx: RunContext[Any]) -> str:
    """Instructions that change with each step."""
    return f"It is request {ctx.run_step}."


@library.tool_plain(name=os.environ.get(TOOL, "look_up"), metadata={"celery": {"effect": "pure"}})
def look_up(title: str) -> str:
    """Look a book up."""
    if title == "unknown":
        raise ModelRetry("There is no such book.")
    return f"{title} is there"


@library.output_validator
def check_output(output: str | Order) -> str | Order:
    """An output that is rejected once is asked for again."""
    if isinstance(output, Order) and output.pairs == 0:
        raise ModelRetry("An order has at least one pair.")
    return output


def _newest(messages: list[ModelMessage]) -> list[ModelMessage]:
    return messages[-3:]


forgetful = PydanticAgent(
    _pydantic_model,
    name="forgetful",
    instructions=_prompt,
    tools=[look_up],
    capabilities=[CeleryDurability(effect="pure"), ProcessHistory(_newest)],
)


def answer_forgetful(messages: list[dict[str, Any]], _: dict[str, Any]) -> dict[str, Any]:
    """The provider's answers to `forgetful`, whose requests do not tell how long the conversation is."""
    newest = (
        int(json.loads(messages[-2]["tool_calls"][0]["function"]["arguments"])["title"])
        if messages[-1]["role"] == "tool"
        else 0
    )
    if newest == 4:
        return {"content": "done"}
    return {"tool_calls": [{"name": "look_up", "arguments": {"title": str(newest + 1)}}]}


def answer_at_length(messages: list[dict[str, Any]], body: dict[str, Any]) -> dict[str, Any]:
    """The provider's answers to agents that note long texts: eight of them, and short summaries."""
    if not body.get("tools"):
        return {"content": json.dumps({"summary": "long texts were noted"})}
    noted = [int(each["content"].split()[1]) for each in messages if each.get("content", "") and each["role"] == "tool"]
    if noted and noted[-1] == 7:
        return {"content": "done"}
    text = f"{noted[-1] + 1 if noted else 0} " + "long " * 60
    return {"tool_calls": [{"name": "note", "arguments": {"text": text}}]}
