"""The agent of `support.agents` with every capability of `state.run`, and with tools that give recorded results again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities import (
    ConfidenceMet,
    LoopDetection,
    MaxIterations,
    Reasoning,
    Reflexion,
    TerminalTools,
    Termination,
    TextMention,
    TimeLimit,
    ToolCalled,
)

from .agents import _follow, failing, keyed, keyed_async, looked_up, pure, unsafe

TERMINAL: Final = "looked_up"
_TOOLS: Final[list[Any]] = [
    replace(each, idempotent=True)  # type: ignore[type-var]
    for each in (pure, keyed, keyed_async, looked_up, unsafe, failing)
]
_ENDS: Final = MaxIterations(50) | TimeLimit(3600) | (ToolCalled("unsafe") & TextMention("never")) | ConfidenceMet(1.0)

planned = Agent(
    "planned",
    driver=_follow,
    tools=_TOOLS,
    capabilities=[Reasoning(), Reflexion(), LoopDetection(), TerminalTools({TERMINAL}), Termination(_ENDS)],
)
