"""Agents of ours and of pydantic-ai, on OpenAI's and Anthropic's interfaces, with odd tools.

In a worker process: TEST_ANSWERS_URL is the provider, TEST_ANSWERS_RAN the file in which the calls that ran are noted.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import Tool
from pydantic_ai.toolsets import FunctionToolset

from celery_agents import Agent, CeleryDurability
from celery_agents.worker.errors import CeleryAgentsError
from celery_agents.worker.state import freeze
from celery_agents.worker.tools import ToolSet, tool
from celery_agents.worker.tools.checks import check_name

from .odd_tools import HALF, OddTool, draw_tool, typed_tools

PLAIN: Final = ("note", "look")
Ran = Callable[[str], object]

KEYS: Final = {"OPENAI_API_KEY": "not-a-key", "ANTHROPIC_API_KEY": "not-a-key"}
"""Environment variables of the process in which the agents run."""


def _plain_tools(ran: Ran) -> list[Callable[..., Any]]:
    def note(text: str, n: Any = None) -> str:
        """Write a note."""
        ran(text)
        return "noted" if len(text) % 3 else ""

    def look(text: str, n: Any = None) -> Any:
        """Look at something."""
        ran(text)
        return {"n": float("nan"), "half": HALF}

    return [note, look]


def own_agents(url: str, ran: Ran, draw: random.Random) -> list[Agent]:
    """One agent of ours for each interface. Tools that are refused where they are defined are left out."""
    tools: list[Any] = [tool(effect="keyed")(each) for each in _plain_tools(ran)]
    tools += typed_tools(ran)
    for number in range(3):
        _, description, parameters = draw_tool(draw)
        odd = OddTool(f"odd{number}", description, parameters, ran)
        try:
            ToolSet([odd])
        except (CeleryAgentsError, RecursionError):
            continue
        tools.append(odd)
    openai, anthropic = "openai:gpt-5-mini", "anthropic:claude-haiku-4-5"
    return [
        Agent("own_openai", model=openai, base_url=f"{url}/v1", tools=tools),
        Agent("own_anthropic", model=anthropic, base_url=url, tools=tools),
    ]


def _is_definable(each: Tool[Any]) -> bool:
    """Whether an agent may have such a tool from the beginning; a toolset may bring it later."""
    try:
        check_name(each.name)
        freeze(each.function_schema.json_schema)
    except (CeleryAgentsError, RecursionError):
        return False
    return True


def pydantic_agents(url: str, ran: Ran, draw: random.Random) -> list[PydanticAgent]:
    """One agent of pydantic-ai for each interface."""
    # Retries of the clients' own would sleep.
    openai = OpenAIProvider(openai_client=AsyncOpenAI(api_key="not-a-key", base_url=f"{url}/v1", max_retries=0))
    anthropic = AnthropicProvider(anthropic_client=AsyncAnthropic(api_key="not-a-key", base_url=url, max_retries=0))
    tools: list[Any] = _plain_tools(ran)
    tools += [Tool(each.function, takes_ctx=False) for each in typed_tools(ran)]

    def odd(**given: Any) -> str:
        ran(json.dumps(given, default=str))
        return "done"

    schema = {"type": "object", "properties": {"user id": {"type": "string"}, "n": {}}, "required": ["user id"]}
    drawn = {"crm_pay": ("Pay.", schema)}
    for name, description, parameters in (draw_tool(draw) for _ in range(4)):
        if isinstance(parameters, dict):
            drawn[name] = description, parameters
    made = [
        Tool.from_schema(odd, name=name, description=description, json_schema=schema)
        for name, (description, schema) in drawn.items()
    ]
    known = [each for each in made if _is_definable(each)]
    found = [each for each in made if each not in known]

    def toolset(_: Any) -> FunctionToolset[Any]:
        return FunctionToolset(found)

    return [
        PydanticAgent(
            model,
            name=name,
            tools=[*tools, *known],
            toolsets=[toolset],
            capabilities=[CeleryDurability(effect="keyed")],
        )
        for name, model in (
            ("pai_openai", OpenAIChatModel("gpt-5-mini", provider=openai)),
            ("pai_anthropic", AnthropicModel("claude-haiku-4-5", provider=anthropic)),
        )
    ]


if "TEST_ANSWERS_URL" in os.environ:
    _file = Path(os.environ["TEST_ANSWERS_RAN"])

    def _note(text: str) -> None:
        with _file.open("a") as file:
            file.write(json.dumps(text) + "\n")

    _draw = random.Random(int(os.environ["TEST_ANSWERS_SEED"]))
    own_openai, own_anthropic = own_agents(os.environ["TEST_ANSWERS_URL"], _note, _draw)
    pai_openai, pai_anthropic = pydantic_agents(os.environ["TEST_ANSWERS_URL"], _note, _draw)
