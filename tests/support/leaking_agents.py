"""An agent whose tools return and raise the secrets of its worker, in every usual form."""

from __future__ import annotations

import base64
import logging
import os
from urllib.parse import quote

from celery_agents import Agent, tool
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.state import AgentState

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
