"""Agents of models that may answer late, over a stand-in provider; its address comes from the environment."""

from __future__ import annotations

import os
import time

import httpx
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from celery_agents import CeleryDurability
from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers.pricing import TokenPrice
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.state import AgentState
from celery_agents.worker.tools import ToolContext, tool

from .ledger import LEDGER_URL, post_effect

PROVIDER_ROOT = "TEST_PROVIDER_ROOT"
ROOT = os.environ.get(PROVIDER_ROOT, "http://127.0.0.1:1")
OPENAI = "openai-responses:gpt-5-mini"
ANTHROPIC = "anthropic:claude-haiku-4-5"
GOOGLE = "google:gemini-2.5-flash-lite"


@tool(effect="keyed")
def note(ctx: ToolContext, n: int) -> str:
    """Note a number.

    Args:
        n: Which.
    """
    if LEDGER_URL in os.environ:
        post_effect(os.environ[LEDGER_URL], ctx.idempotency_key, dedupe=True, pid=os.getpid(), step=ctx.step)
    return f"noted {n}"


def agent(name: str, model: str = OPENAI, **fields: object) -> Agent:
    base_url = f"{ROOT}/v1" if model == OPENAI else ROOT
    return Agent(name, model=model, base_url=base_url, tools=[note], **fields)  # pyright: ignore[reportArgumentType]


within_8h = agent("within_8h", completion_window="8h")
within_24h = agent("within_24h", completion_window="24h")
claude = agent("claude", ANTHROPIC, completion_window="24h", price=TokenPrice(1.0, 5.0))
gemini = agent("gemini", GOOGLE, completion_window="24h")
plain = agent("plain")
chat = agent("chat", background=True)
patient_or_live = agent("patient_or_live", completion_window="2h", window_failed="live")


def call(state: AgentState) -> str:
    """Ask the provider as a service of the user's would, with a client that waits."""
    asked = {"model": "gpt-5-mini", "input": [{"role": "user", "content": state.messages[-1].content}]}
    reply = httpx.post(f"{ROOT}/v1/responses", json=asked, headers={"Authorization": "Bearer k"}, timeout=60)
    return str(reply.raise_for_status().json()["output"][-1]["content"][0]["text"])


caller = Agent("caller", driver=call)


def hang(context: HookContext) -> None:
    """Do not return, the first time that this process sees the session."""
    if context.state.agent_id not in _SEEN:
        _SEEN.add(context.state.agent_id)
        time.sleep(25)


_SEEN = set[str]()
hooked = agent("hooked", hooks=[Hook(HookPoint.AFTER_INFERENCE, hang)])

responses = OpenAIResponsesModel("gpt-5-mini", provider=OpenAIProvider(api_key="k", base_url=f"{ROOT}/v1"))
teller = PydanticAgent(responses, name="teller", capabilities=[CeleryDurability(background=True, effect="keyed")])


@teller.tool_plain(name="note")
def note_of_teller(n: int) -> str:
    """Note a number.

    Args:
        n: Which.
    """
    return f"noted {n}"
