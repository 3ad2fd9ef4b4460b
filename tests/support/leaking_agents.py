"""Agents whose tools return, raise, ask and pass on the secrets of their worker."""

from __future__ import annotations

import base64
import logging
import os
from collections.abc import Awaitable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from celery_agents import Agent, Hook, HookContext, HookPoint, Message, NeedsAnswer, NeedsApproval, ToolContext, tool
from celery_agents.worker.drivers import AuxiliaryRequest, CallTool, FunctionDriver, InferenceRequest
from celery_agents.worker.requests import UserQuestionItem, UserQuestionOption
from celery_agents.worker.state import AgentState
from celery_agents.worker.tools import UserQuestions, UseValue

NAMES = ("ACME_PASS", "GH_PAT", "ACME_DATABASE", "CELERY_AGENTS_WEBHOOK_SECRET")
_TOOLS = ("environment", "encoded", "failing", "careless")

_log = logging.getLogger("celery_agents.careless")


@tool(effect="keyed")
def environment() -> dict[str, str]:
    """Return the environment."""
    return dict(os.environ)


@tool(effect="pure")
def encoded() -> list[str]:
    """Return the secrets in other forms."""
    values = [os.environ[name] for name in NAMES]
    return [form for value in values for form in (quote(value, safe=""), base64.b64encode(value.encode()).decode())]


@tool(effect="pure")
def failing() -> str:
    """Raise with the secrets."""
    raise RuntimeError(" ".join(os.environ[name] for name in NAMES))


@tool(effect="pure")
def careless() -> str:
    """Log the secrets."""
    _log.warning("they are %s", [os.environ[name] for name in NAMES])
    return "logged"


def _answer(state: AgentState) -> str | list[CallTool]:
    return "done" if state.step_count else [CallTool(name) for name in _TOOLS]


leaking = Agent("leaking", driver=_answer, tools=[environment, encoded, failing, careless])


def _secrets() -> str:
    return " ".join(os.environ[name] for name in NAMES)


@tool(effect="pure")
def question(ctx: ToolContext) -> str:
    """Ask a person with the secrets in each text, and leave them for the next run."""
    if ctx.answer() is None:
        option = UserQuestionOption(label=f"label {_secrets()}", description=_secrets(), preview=_secrets())
        item = UserQuestionItem(question=f"item {_secrets()}", options=[option, UserQuestionOption(label="no")])
        raise NeedsAnswer(f"prompt {_secrets()}", questions=UserQuestions.of([item])).with_memo({"memo": _secrets()})
    return "asked"


@tool(effect="pure")
def schema(ctx: ToolContext) -> str:
    """Ask by a schema with the secrets in it, and with an answer for its expiry."""
    if ctx.answer() is None:
        asked = {"type": "string", "description": _secrets(), "default": _secrets()}
        expiry = UseValue(_secrets())
        raise NeedsAnswer(_secrets(), asked, to=_secrets(), expires=timedelta(hours=1), on_expiry=expiry)
    return "asked"


@tool(effect="pure")
def approval(ctx: ToolContext) -> str:
    """Ask for an approval with the secrets in its text."""
    if ctx.approval is None:
        raise NeedsApproval(f"note {_secrets()}").with_memo({"deep": [{_secrets(): [_secrets()]}]})
    return "approved"


@tool(effect="pure")
def child(ctx: ToolContext) -> str:
    """Start another agent with the secrets."""
    ctx.spawn("listener", f"prompt {_secrets()}")
    return "started"


@tool(effect="pure")
def consult(ctx: ToolContext) -> str:
    """Ask the model beside the step, which says what it has read."""
    told = AuxiliaryRequest((Message.user(_secrets()),), system_prompt=_secrets())
    return "".join(ctx.ask_model_sync(key, asked).content for key, asked in (("a", _secrets()), ("b", told)))


@tool(effect="pure")
def plain() -> str:
    """Return nothing secret."""
    return "plain"


def _add_secrets(ctx: HookContext) -> HookContext:
    assert ctx.tool_execution is not None
    return replace(ctx, tool_execution=ctx.tool_execution.with_outcome_of({"by a hook": _secrets()}, None))


def _ask_person(name: str, *tools: Any, **options: Any) -> Agent:
    calls = [CallTool(each.name) for each in tools]
    return Agent(name, driver=lambda state: "done" if state.step_count else calls, tools=tools, **options)


class _EchoingDriver(FunctionDriver):
    """Answers a question beside the step with everything that it reads."""

    def infer(self, request: InferenceRequest) -> bytes | Awaitable[bytes]:
        if request.replaced_messages is None:
            return super().infer(request)
        read = [request.state.context.system_prompt, *(each.content for each in request.replaced_messages)]
        return FunctionDriver(lambda _: "read " + "|".join(read)).infer(request)


consulting = Agent(
    "consulting",
    driver=_EchoingDriver(lambda state: "done" if state.step_count else [CallTool("consult")]),
    tools=[consult],
)
listener = Agent("listener", driver=lambda _: "heard")
asking = _ask_person("asking", question, schema, approval)
spawning = _ask_person("spawning", child)
hooked = _ask_person("hooked", plain, hooks=[Hook(HookPoint.AFTER_TOOL, _add_secrets)])
