"""A hook that gives an earlier state than that of its context: what is stored of it would not fit to what is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.capability import Capability
from celery_agents.worker.drivers import CallTool, ScriptedDriver
from celery_agents.worker.engine import Done
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.state import AgentState, ListPart, Message, PartItem
from celery_agents.worker.tools import tool

from support.engine import Bench

NewBench = Callable[..., Bench]

BEFORE_CALLS = (HookPoint.BEFORE_STEP, HookPoint.BEFORE_INFERENCE)


class Note(PartItem):
    """One note."""

    text: str


class Notes(ListPart[Note]):
    """A note of each step."""

    part_name = "notes"


@tool(effect="pure")
def echo() -> str:
    """Say it."""
    return "said"


def agent(*hooks: Hook, **fields: Any) -> Agent:
    return Agent(
        "a", driver=ScriptedDriver([CallTool("echo"), CallTool("echo"), "done"]), tools=[echo], hooks=hooks, **fields
    )


@pytest.mark.parametrize(
    "point",
    [
        HookPoint.BEFORE_STEP,
        HookPoint.BEFORE_INFERENCE,
        HookPoint.AFTER_INFERENCE,
        HookPoint.AFTER_STEP,
        HookPoint.ON_STOP,
    ],
)
def test_a_state_of_an_earlier_step_is_refused_and_the_session_can_be_read(
    new_bench: NewBench, point: HookPoint
) -> None:
    kept: list[AgentState] = []

    def keep(context: HookContext) -> None:
        kept.append(context.state)

    def go_back(context: HookContext) -> HookContext | None:
        return context.changed(state=kept[0]) if context.step == 3 else None

    bench = new_bench(agent(Hook(HookPoint.BEFORE_STEP, keep, priority=1), Hook(point, go_back)))
    session = bench.submit()
    assert all(isinstance(each, Done) for each in bench.run(session))
    execution = bench.execution(session)
    assert execution.status == ("failed" if point in BEFORE_CALLS else "completed")
    assert [each.step.number for each in execution.step_executions] == [1, 2, 3][: 2 if point in BEFORE_CALLS else 3]
    if point in BEFORE_CALLS:
        assert "was made of an earlier one" in execution.errors[-1].message


def test_a_state_from_before_the_same_steps_answer_does_not_lose_it(new_bench: NewBench) -> None:
    kept: list[AgentState] = []

    def keep(context: HookContext) -> None:
        kept.append(context.state)

    def go_back(context: HookContext) -> HookContext:
        return context.changed(state=kept[-1])

    bench = new_bench(agent(Hook(HookPoint.BEFORE_STEP, keep), Hook(HookPoint.AFTER_STEP, go_back)))
    session = bench.submit()
    bench.run(session)
    assert (bench.record(session).final_response, bench.execution(session).step_count) == ("done", 3)


def test_a_list_of_a_part_that_is_shorter_than_before_is_refused(new_bench: NewBench) -> None:
    class Noting(Capability):
        def parts(self) -> Any:
            return (Notes,)

        def hooks(self) -> Any:
            return (Hook(HookPoint.AFTER_STEP, self._note),)

        def _note(self, context: HookContext) -> HookContext:
            state = context.state
            if context.step < 3:
                return context.changed(state=state.with_part(state.part(Notes).append(Note(text=str(context.step)))))
            execution = state.execution
            assert execution is not None
            assert execution.parts is not None
            shorter = execution.parts.with_lists({"notes": execution.parts.lists["notes"].with_items(())})
            return context.changed(state=state.with_context_and_execution(state.context, execution.with_parts(shorter)))

    bench = new_bench(agent(capabilities=[Noting()]))
    session = bench.submit()
    bench.run(session)
    assert [each.text for each in bench.state(session).part(Notes)] == ["1", "2"]


def test_a_hook_may_replace_what_was_said(new_bench: NewBench) -> None:
    def forget(context: HookContext) -> HookContext:
        return context.changed(state=context.state.with_messages([Message.user("all in short")]))

    bench = new_bench(agent(Hook(HookPoint.AFTER_STEP, forget)))
    session = bench.submit()
    bench.run(session)
    assert bench.record(session).status == "completed"
    assert [each.content for each in bench.state(session).messages] == ["all in short"]
