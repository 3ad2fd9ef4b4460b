"""The log of the worker says where users' code has raised; what is stored and told to the model does not."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest

from celery_agents import Agent, tool
from celery_agents.worker.drivers import CallTool, ScriptedDriver
from celery_agents.worker.hooks import Hook, HookContext, HookPoint

from support.engine import Bench


@tool(effect="pure")
def look() -> str:
    """Look."""
    return {}["customer"]


def _answer(state: Any) -> str:
    return {}["driver"]


async def _answer_later(state: Any) -> str:
    return {}["driver"]


def _hook(context: HookContext) -> HookContext:
    return {}["hook"]


AGENTS = {
    "tool look of session s1 raised KeyError: 'customer'": (Agent("a", driver=ScriptedDriver([CallTool("look"), "done"]), tools=[look]), "look"),
    "the driver of session s1 raised KeyError: 'driver'": (Agent("a", driver=_answer), "_answer"),
    "the driver of session s1 raised KeyError: 'driver' ": (Agent("a", driver=_answer_later), "_answer_later"),
    "a hook of session s1 raised KeyError: 'hook'": (
        Agent("a", driver=ScriptedDriver(["done"]), hooks=[Hook(HookPoint.BEFORE_STEP, _hook)]), "_hook",
    ),
    "its change is dropped: KeyError: 'hook'": (
        Agent("a", driver=ScriptedDriver(["done"]), hooks=[Hook(HookPoint.AFTER_STEP, _hook)]), "_hook",
    ),
}  # fmt: skip


@pytest.mark.parametrize("said", AGENTS)
def test_the_log_says_where_it_was_raised(
    new_bench: Callable[..., Bench], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    agent, name = AGENTS[said]
    bench = new_bench(agent)
    with caplog.at_level(logging.INFO):
        bench.run(bench.submit())
    line = next(each for each in caplog.text.splitlines() if said.strip() in each)
    assert re.fullmatch(rf".* \([^(]*/{__name__.rpartition('.')[2]}\.py:\d+ in {name}\)", line)
    assert b".py" not in bench.state("s1").to_json()
