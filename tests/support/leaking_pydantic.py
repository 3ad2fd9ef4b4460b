"""Agents of pydantic-ai whose own code writes secrets of their worker into results, rejections and requests."""

from __future__ import annotations

import os
from typing import Any

from pydantic_ai import Agent, ModelRetry, RunContext, TextOutput
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from celery_agents import CeleryDurability

from .leaking_agents import NAMES


def _secrets() -> str:
    return " ".join(os.environ[name] for name in NAMES)


def _answer(messages: list[Any], _: Any) -> ModelResponse:
    number = sum(1 for each in messages if each.kind == "response")
    return ModelResponse(parts=[TextPart(f"try {number}")])


def _call(messages: list[Any], info: Any) -> ModelResponse:
    if any(each.kind == "response" for each in messages):
        return ModelResponse(parts=[TextPart("done")])
    return ModelResponse(parts=[ToolCallPart(each.name, {}) for each in info.function_tools])


def _shape(text: str) -> str:
    return f"{text}: {_secrets()}"


validated = Agent(FunctionModel(_answer), name="validated", capabilities=[CeleryDurability()], retries=2)
shaped = Agent(FunctionModel(_answer), name="shaped", output_type=TextOutput(_shape), capabilities=[CeleryDurability()])
calling = Agent(FunctionModel(_call), name="calling", capabilities=[CeleryDurability()])
deferring = Agent(FunctionModel(_call), name="deferring", capabilities=[CeleryDurability()])


@validated.output_validator
def check(output: str) -> str:
    """Reject the first answer with the secrets."""
    if output == "try 0":
        raise ModelRetry(f"bad: {_secrets()}")
    return output


@calling.tool_plain(metadata={"celery": {"effect": "pure"}})
def environment() -> dict[str, list[str]]:
    """Return the secrets."""
    return {"found": [_secrets()]}


@calling.tool(metadata={"celery": {"effect": "pure"}}, retries=2)
def retried(ctx: RunContext[Any]) -> str:
    """Ask the model to try again, with the secrets."""
    del ctx
    raise ModelRetry(_secrets())


@deferring.tool(metadata={"celery": {"effect": "pure"}})
def approved(ctx: RunContext[Any]) -> str:
    """Want an approval, with the secrets among its words."""
    if not ctx.tool_call_approved:
        raise ApprovalRequired(metadata={"reason": _secrets(), "more": {"deep": [_secrets()]}})
    return "approved"
