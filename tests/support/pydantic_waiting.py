"""Agents of pydantic-ai whose calls wait: for an approval, a question, a result from outside, `RequestInput`."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from pydantic_ai import Agent, ApprovalRequired, CallDeferred, RunContext
from pydantic_ai.capabilities import ProcessHistory, RequestInput
from pydantic_ai.external_events import wait_for_external_event
from pydantic_ai.messages import ModelMessage
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolDefinition
from pydantic_ai.toolsets import ExternalToolset

from celery_agents import CeleryDurability

from .ledger import LEDGER_URL, post_effect
from .pydantic_examples import answers


def post(ctx: RunContext[Any], what: str) -> None:
    """Tell the ledger, where there is one, about an effect of this call."""
    url = os.environ.get(LEDGER_URL)
    assert ctx.metadata is not None
    if url:
        post_effect(url, f"{what}-{ctx.metadata['celery']['idempotency_key']}")


refunds = Agent(
    answers([("look_up", {"order": 7}), ("refund", {"order": 7, "cents": 900})], "refunded"),
    name="refunds",
    capabilities=[CeleryDurability()],
)


@refunds.tool_plain(metadata={"celery": {"effect": "pure"}})
def look_up(order: int) -> str:
    """Look the order up."""
    return f"order {order} of Ada"


@refunds.tool
def refund(ctx: RunContext[None], order: int, cents: int) -> str:
    """Refund an order."""
    if cents > 100 and not ctx.tool_call_approved:
        raise ApprovalRequired(metadata={"reason": f"{cents} cents are much"})
    post(ctx, "refund")
    return f"refunded {cents} cents of order {order}"


guarded = Agent(
    answers([("delete_file", {"path": "a.txt"})], "deleted"), name="guarded", capabilities=[CeleryDurability()]
)


@guarded.tool_plain(requires_approval=True)
def delete_file(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


renders = Agent(
    answers([("render", {"scene": "sunset"})], "rendered"), name="renders", capabilities=[CeleryDurability()]
)
TOKENS: list[str] = []


@renders.tool
def render(ctx: RunContext[None], scene: str) -> str:
    """Let a farm render a scene, which takes hours."""
    assert ctx.metadata is not None
    TOKENS.append(ctx.metadata["celery"]["completion_token"])
    post(ctx, "render")
    raise CallDeferred(metadata={"text": f"the farm renders {scene}"})


browser = Agent(
    answers([("screen_size", {})], "it is wide"),
    toolsets=[
        ExternalToolset(
            [
                ToolDefinition(
                    name="screen_size", description="Ask the browser.", parameters_json_schema={"type": "object"}
                )
            ]
        )
    ],
    name="browser",
    capabilities=[CeleryDurability()],
)

curious = Agent(answers([("colour", {})], "fine"), name="curious", capabilities=[CeleryDurability()])


@curious.tool_plain
def colour() -> str:
    """Ask for a colour."""
    raise CallDeferred(metadata={"question": "Which colour?"}, kind="question")


ASKED: list[tuple[DeferredToolRequests, str]] = []


def ask_later(ctx: RunContext[Any], requests: DeferredToolRequests, token: str) -> DeferredToolResults | None:
    """Hand the token to whoever answers; answer small refunds at once."""
    ASKED.append((requests, token))
    for call in requests.approvals:
        if call.args_as_dict().get("cents", 1000) < 200:
            return requests.build_results(approve_all=True)
    return None


def input_agent(name: str, tool: Any, args: Any) -> Agent[None, str]:
    """An agent whose deferred call is decided through `RequestInput`."""
    return Agent(
        answers([(tool.__name__, args)], "done"),
        name=name,
        tools=[tool],
        capabilities=[CeleryDurability(), RequestInput(ask_later, timeout=timedelta(hours=1))],
    )


asking_big = input_agent("asking_big", refund, {"order": 7, "cents": 900})
asking_small = input_agent("asking_small", refund, {"order": 7, "cents": 150})
asking_question = input_agent("asking_question", colour, {})
asking_render = input_agent("asking_render", render, {"scene": "sunset"})

reviewed = Agent(answers([("publish", {"text": "hello"})], "done"), name="reviewed", capabilities=[CeleryDurability()])


@reviewed.tool
async def publish(ctx: RunContext[None], text: str) -> str:
    """Publish a text that two people have read."""
    first = await wait_for_external_event("review", ask=lambda _: None)
    second = await wait_for_external_event("review", ask=lambda _: None)
    post(ctx, "publish")
    return f"{text}, read by {first} and {second}"


async def wait_first(ctx: RunContext[None], messages: list[ModelMessage]) -> list[ModelMessage]:
    """Wait for somebody before the model is asked, which no worker can."""
    await wait_for_external_event("start", ask=lambda _: None)
    return messages


impatient = Agent(answers("done"), name="impatient", capabilities=[CeleryDurability(), ProcessHistory(wait_first)])
