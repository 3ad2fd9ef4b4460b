"""The timeline of a call that was approved with other arguments."""

from __future__ import annotations

from typing import Any

import pytest

from celery_agents.tasks.observability.timeline.making import make_timeline
from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool, ScriptedDriver
from celery_agents.worker.state import Approve
from celery_agents.worker.tools import tool

from support.engine import Bench


@tool(effect="keyed", approval="always")
def switch(value: Any) -> str:
    """Set a switch."""
    return f"{value}"


@pytest.mark.parametrize(
    ("given", "note", "approved"),
    [(True, "approved by ann with value=true instead of 1", {"value": True}), (1, "approved by ann", None)],
)
def test_true_instead_of_1_is_told(given: Any, note: str, approved: Any) -> None:
    bench = Bench(Agent("a", driver=ScriptedDriver([CallTool("switch", value=1), "done"]), tools=[switch]))
    session = bench.submit()
    bench.step(session)
    bench.answer(session, Approve({"value": given}), by="ann")
    bench.run(session)
    step = make_timeline(bench.store.sessions.execution(session, 1, 200), 1, 200, with_data=True).steps[0]
    spans = {span.kind.value: span for span in step.spans}
    called = spans["tool"].data
    assert called is not None
    assert (spans["request"].note, called["approved_args"]) == (note, approved)
    bench.close()
