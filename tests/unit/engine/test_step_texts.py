"""What the events of steps say, and how much of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities import AskUser
from celery_agents.worker.drivers import CallTool, ScriptedDriver
from celery_agents.worker.state import FinishReason, InferenceResponse, InferenceUsage
from celery_agents.worker.tools import tool

from support.engine import Bench

NewBench = Callable[..., Bench]


@tool(effect="pure")
def look(number: int) -> int:
    """Look."""
    return number


@pytest.mark.parametrize(("calls", "more"), [(3, None), (100, None), (101, 1), (103, 3)])
def test_the_event_of_a_step_names_a_hundred_tools_and_counts_the_others(
    new_bench: NewBench, calls: int, more: int | None
) -> None:
    answers = [[CallTool("look", number=number) for number in range(calls)], "done"]
    bench = new_bench(Agent("a", driver=ScriptedDriver(answers), tools=[look]), max_calls=200)
    session = bench.submit()
    bench.step(session)
    data = bench.store.sessions.events(session)[-1].data
    assert data["tools"] == [{"name": "look", "outcome": "ok"}] * min(calls, 100)
    assert data.get("more_tools") == more


def test_the_event_of_an_end_tells_what_it_cost_and_that_its_answer_was_cut(new_bench: NewBench) -> None:
    answer = InferenceResponse(
        content="half an ans", usage=InferenceUsage(input=3, output=4), cost=0.5, finish_reason=FinishReason.LENGTH
    )
    bench = new_bench(Agent("a", driver=ScriptedDriver([answer])))
    session = bench.submit()
    bench.run(session)
    data = dict(bench.store.sessions.events(session)[-1].data)
    assert data == {
        "status": "completed", "reason": "completed", "steps": 1, "tokens": 7, "cost": 0.5, "error": "",
        "finish_reason": "length",
    }  # fmt: skip


@pytest.mark.parametrize("free", [True, False])
def test_the_model_reads_whether_people_may_answer_in_their_own_words(free: bool) -> None:
    (ask,) = Agent("a", driver=ScriptedDriver(["x"]), capabilities=[AskUser(allow_free_text=free)]).toolset.specs()
    (other,) = Agent("a", driver=ScriptedDriver(["x"]), capabilities=[AskUser()]).toolset.specs()
    assert (ask.description == other.description) is free
    assert ask.description.startswith(other.description)
