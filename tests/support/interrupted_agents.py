"""Agents that messages interrupt: their models and some of their tools can be left off in the middle.

    from support.agents import call, plan
    client.submit("writer", plan([call("look_up", work="a")], driver={...}))

The plan is that of `support.agents`; each call of the model is in the ledger with what users had said by then.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio.to_thread
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import Delta, InferenceRequest
from celery_agents.worker.drivers.answers import raw_answer
from celery_agents.worker.drivers.function import LocalDriver
from celery_agents.worker.errors import DriverError
from celery_agents.worker.state import Role
from celery_agents.worker.tools import ToolContext, tool

from .agents import _follow, driver_key, keyed, keyed_async, plan_of, planned_answer
from .asking_agents import measured, refund, render
from .ledger import LEDGER_URL, post_effect
from .pydantic_examples import celery

WORDS = ("Once ", "upon ", "a time ")
"""What the writer emits before it waits for the ledger."""


async def _post(key: str, **fields: Any) -> None:
    deliver = partial(post_effect, os.environ[LEDGER_URL], key, **fields)
    await anyio.to_thread.run_sync(deliver, abandon_on_cancel=True)


class WritingDriver(LocalDriver):
    """Writes some words, waits where its plan says so, and answers as the plan says."""

    name = "writer"
    is_async = True
    consulted = 0

    async def infer(self, request: InferenceRequest) -> bytes:
        """See `Driver.infer`."""
        state = request.state
        assert state.execution is not None
        if request.purpose:
            return await self._consult(request)
        if request.emit is not None:
            for word in WORDS:
                request.emit(Delta(word))
        number = state.execution.step_count + 1
        said = [message.content for message in state.messages if message.role is Role.USER]
        texts = [message.content for message in state.messages if message.role is Role.ASSISTANT]
        waits = plan_of(state)["driver"] if number == 1 else {}
        key = driver_key(state.execution.execution_id, number)
        await _post(key, kind="driver", said=said, texts=texts, **waits)
        return raw_answer(planned_answer(state), request, self.name)

    async def _consult(self, request: InferenceRequest) -> bytes:
        """Fail once, and answer after the second that this asks for."""
        self.consulted += 1
        await _post(f"consulted:{request.execution_id}:{self.consulted}", kind="consulted", number=self.consulted)
        if self.consulted == 1:
            raise DriverError("busy", "ask again", transient=True, retry_after=1.0)
        return raw_answer("yes", request, self.name)


@tool(effect="keyed")
def consult(ctx: ToolContext) -> str:
    """Ask the model, which wants to be asked again."""
    return ctx.ask_model_sync("question", "May it be?").content


@tool(effect="pure")
async def look_up(ctx: ToolContext, work: str, gate: str | None = None) -> str:
    """Have no effect, and wait at a gate."""
    gated = {"gate": gate} if gate else {}
    await _post(f"look:{ctx.idempotency_key}", kind="look", work=work, **gated)
    return f"{work} done"


async def _write_in_pieces(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str]:
    for word in WORDS:
        yield word
    yield await _answer_model(messages)


async def _write_at_once(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    return ModelResponse(parts=[TextPart(await _answer_model(messages))])


async def _answer_model(messages: list[ModelMessage]) -> str:
    """Note what the model is asked, wait for ever at "wait" as the last of its prompts, and answer."""
    parts = [[part.part_kind, str(getattr(part, "content", ""))] for message in messages for part in message.parts]
    gate = {"gate": "never"} if parts[-1][1] == "wait" else {}
    await _post(f"pydantic:{len(parts)}:{parts[-1][1]}", kind="pydantic", parts=parts, **gate)
    return "done"


drafting = PydanticAgent(
    FunctionModel(_write_at_once, stream_function=_write_in_pieces),
    name="drafting",
    system_prompt="You write.",
    capabilities=celery(),
)

helper = Agent("helper", driver=WritingDriver(), tools=(look_up, keyed))
writer = Agent(
    "writer",
    driver=WritingDriver(),
    tools=(look_up, consult, keyed, keyed_async, refund, measured, render, helper.as_tool("delegate")),
    max_children=3,
)
plain = Agent("plain", driver=_follow, tools=(keyed, look_up))
