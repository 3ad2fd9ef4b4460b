"""Inputs by hypothesis, 2 000 in all; the campaign draws many times as many."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool, ScriptedDriver
from celery_agents.worker.tools import tool

from fault.real import inputs
from support.engine import Bench

pytestmark = [pytest.mark.timeout(200), pytest.mark.slow]

_EXAMPLES = 2_000


@pytest.mark.long
def test_no_input_breaks_what_is_stored_answered_called_or_submitted(tmp_path: Path) -> None:
    verdict = inputs.everything(tmp_path, _EXAMPLES, 1)
    assert sum(verdict.counts[f"examples_{border}"] for border in inputs.BORDERS) >= 0.9 * _EXAMPLES, str(verdict)
    assert not verdict.violations, str(verdict)
    assert not verdict.vacuous(inputs.WANTED), str(verdict)


@tool(effect="pure")
async def leave() -> str:
    """Call sys.exit on the event loop."""
    sys.exit(3)


def test_an_async_tool_that_exits_takes_no_other_along() -> None:
    bench = Bench(Agent("a", driver=ScriptedDriver([CallTool("leave"), CallTool("leave"), "done"]), tools=(leave,)))
    try:
        assert bench.ran().status == "completed"
        execution = bench.execution("s1")
        calls = [call for each in execution.step_executions for call in each.step.tool_executions]
        assert [call.error.kind for call in calls if call.error is not None] == ["SystemExit", "SystemExit"]
    finally:
        bench.close()
