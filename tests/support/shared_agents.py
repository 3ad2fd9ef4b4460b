"""An agent whose steps take times of their own; each step is written down in an outside ledger with its times."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from celery_agents.worker.agent import Agent
from celery_agents.worker.state import AgentState, InferenceResponse, InferenceUsage, ToolCall
from celery_agents.worker.tools import tool

from .ledger import LEDGER_URL, post_effect


def work(customer: str, *, steps: int = 1, seconds: float = 0.1, sigma: float = 0.0) -> str:
    """A message to the agent: how many steps, and how long each is; with a sigma the mean of a log-normal time."""
    return json.dumps({"customer": customer, "steps": steps, "seconds": seconds, "sigma": sigma})


async def think(state: AgentState) -> InferenceResponse:
    """Take as long as the first message says, for as many steps."""
    wanted, done = json.loads(state.messages[0].content), state.execution.step_count if state.execution else 0
    sigma, began = wanted["sigma"], time.time()
    await asyncio.sleep(wanted["seconds"] * (random.lognormvariate(-sigma * sigma / 2, sigma) if sigma else 1.0))
    await asyncio.to_thread(write_down, wanted["customer"], began)
    calls = () if done + 1 >= wanted["steps"] else (ToolCall(id=f"c{done}", name="nothing", args={}),)
    return InferenceResponse(content="done", tool_calls=calls, usage=InferenceUsage(input=1, output=1))


def write_down(customer: str, began: float) -> None:
    """Write a step into the ledger, when it has ended."""
    key = f"{os.getpid()}-{time.monotonic_ns()}"
    post_effect(os.environ[LEDGER_URL], key, dedupe=False, customer=customer, began=began, ended=time.time())


@tool(effect="pure")
def nothing() -> str:
    """Do nothing."""
    return "nothing"


def used(entries: Iterable[Mapping[str, Any]], begin: float, end: float) -> dict[str, float]:
    """The seconds for which the steps of each customer ran between two times."""
    found: dict[str, float] = {}
    for each in entries:
        seconds = min(end, each["ended"]) - max(begin, each["began"])
        if seconds > 0:
            found[each["customer"]] = found.get(each["customer"], 0.0) + seconds
    return found


def jain(shares: Sequence[float]) -> float:
    """R. Jain's index of fairness: 1 where all have the same, 1/n where one has everything."""
    squares = len(shares) * sum(each * each for each in shares)
    return sum(shares) ** 2 / squares if squares else 0.0


shared = Agent("shared", driver=think, tools=[nothing])
