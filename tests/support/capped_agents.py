"""An agent whose model costs money; each call is written down in an outside ledger, as a provider's bill does."""

from __future__ import annotations

import itertools
import os
import time
from typing import Final

from celery_agents import Agent
from celery_agents.worker.state import AgentState, InferenceResponse, InferenceUsage, ToolCall
from celery_agents.worker.tools import tool

from .ledger import LEDGER_URL, post_effect

PRICE: Final = 0.05
_numbers = itertools.count(1)


@tool(effect="pure")
def nothing() -> str:
    """Do nothing."""
    return "nothing"


def think(state: AgentState) -> InferenceResponse:
    """As many steps as the first message says, behind which the customer stands; each is charged when it begins."""
    steps, _, customer = state.messages[0].content.partition(" ")
    name = f"call {os.getpid()}-{next(_numbers)}"
    post_effect(os.environ[LEDGER_URL], name, dedupe=False, kind="paid", customer=customer)
    time.sleep(0.05)
    wanted, done = int(steps), state.execution.step_count if state.execution else 0
    calls = () if done + 1 >= wanted else (ToolCall(id=f"c{done}", name="nothing", args={}),)
    usage = InferenceUsage(input=1, output=1)
    return InferenceResponse(content=f"{done + 1}", tool_calls=calls, usage=usage, cost=PRICE)


spender = Agent("spender", driver=think, tools=[nothing])
other = Agent("other", driver=think, tools=[nothing])
