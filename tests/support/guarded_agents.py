"""Agents with guardrails that a model judges by; each model call is in the ledger, with whether it may emit."""

from __future__ import annotations

import json
import os
from typing import Final

from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities import Guardrail, Guardrails, ModelRule, RegexRule
from celery_agents.worker.drivers import InferenceRequest, ScriptedDriver
from celery_agents.worker.state import AgentState, InferenceResponse, InferenceUsage, ToolCall
from celery_agents.worker.tools import ToolContext, tool

from .ledger import LEDGER_URL, post_effect

USAGE: Final = InferenceUsage(input=10, output=5, requests=1)
FORBIDDEN: Final = "forbidden"
ALLOWED: Final = '{"allow": true}'
REFUSED: Final = '{"allow": false, "reason": "it is about something forbidden"}'


@tool(effect="unsafe")
def act(ctx: ToolContext, word: str) -> str:
    """Do something that nobody deduplicates."""
    post_effect(os.environ[LEDGER_URL], ctx.idempotency_key, kind="effect")
    return f"did {word}"


def _answer(state: AgentState) -> InferenceResponse:
    asked = state.smart.messages[0].content
    if state.step_count == 0:
        calls = (ToolCall(id="c1", name="act", args={"word": asked.split()[-1]}),)
        return InferenceResponse(content="I begin.", tool_calls=calls, usage=USAGE)
    return InferenceResponse(content=f"This is {asked}.", usage=USAGE)


def _verdict(asked: str) -> InferenceResponse:
    text = json.loads(asked)["text"]
    return InferenceResponse(content=REFUSED if FORBIDDEN in text else ALLOWED, usage=USAGE)


class Judging(ScriptedDriver):
    """Answers by the script, and judges a text by a word; each call is paid for at the ledger."""

    def infer(self, request: InferenceRequest) -> bytes:
        key = f"driver:{request.execution_id}:{request.step}:{request.purpose}"
        post_effect(os.environ[LEDGER_URL], key, kind="driver", purpose=request.purpose, emits=request.emit is not None)
        if request.purpose:
            return _verdict(request.messages[-1].content).to_json()
        return super().infer(request)


def _guarded(name: str, phase: str) -> Agent:
    judge = Guardrail("judge", [RegexRule("nothing of this kind"), ModelRule("Nothing forbidden.")], phases=[phase])
    return Agent(name, driver=Judging([_answer], repeat_last=True), tools=[act], capabilities=[Guardrails([judge])])


asks_first = _guarded("asks_first", "request")
asks_after = _guarded("asks_after", "response")
