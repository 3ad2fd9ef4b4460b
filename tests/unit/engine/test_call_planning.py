"""What a call is given before it runs: its time, its place in the session, and what the session keeps of the agent."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.state import AgentState, ToolExecution, ToolOutcome
from celery_agents.worker.tools import ToolContext, tool

from support.engine import Bench, WorkerDied

NewBench = Callable[..., Bench]


def calling(*tools: Any, **fields: Any) -> Agent:
    """An agent that calls each of its tools in its first step."""

    def driver(state: AgentState) -> Any:
        return "done" if state.step_count else [CallTool(each.name) for each in tools]

    return Agent("calling", driver=driver, tools=tools, **fields)


@pytest.mark.parametrize(
    ("of_tool", "of_agent", "seconds"), [(7.0, 9.0, 7.0), (None, 9.0, 9.0), (None, None, 300.0), (5_000.0, None, 900.0)]
)
def test_a_call_has_the_time_of_its_tool_its_agent_or_the_setting_and_ends_with_its_step(
    new_bench: NewBench, of_tool: float | None, of_agent: float | None, seconds: float
) -> None:
    seen: list[float] = []

    @tool(effect="pure", timeout=of_tool)
    def look(ctx: ToolContext) -> str:
        """Look."""
        seen.append((ctx.deadline - bench.clock.now).total_seconds())
        return ""

    bench = new_bench(calling(look, tool_timeout=of_agent), tool_timeout_seconds=300.0, step_timeout_seconds=900.0)
    bench.ran()
    assert seen == [pytest.approx(seconds, abs=0.01)]


def test_a_call_that_begins_late_in_its_step_has_what_is_left(new_bench: NewBench) -> None:
    seen: list[float] = []

    @tool(effect="pure")
    def look(ctx: ToolContext) -> str:
        """Look."""
        seen.append((ctx.deadline - bench.clock.now).total_seconds())
        return ""

    def driver(state: AgentState) -> Any:
        bench.clock.go_on(0.0 if state.step_count else 99.5)
        return "done" if state.step_count else [CallTool("look")]

    bench = new_bench(Agent("late", driver=driver, tools=[look]), step_timeout_seconds=100.0, lease_seconds=1000.0)
    bench.ran()
    assert seen == [pytest.approx(0.5, abs=0.01)]


def hooked(before: Callable[[HookContext], HookContext], ran: list[str]) -> Agent:
    """An agent whose call of `note` passes a hook."""

    @tool(effect="pure")
    def note(text: str) -> str:
        """Note."""
        ran.append(text)
        return "noted"

    def driver(state: AgentState) -> Any:
        return "done" if state.step_count else [CallTool("note", text="x")]

    return Agent("hooked", driver=driver, tools=[note], hooks=[Hook(HookPoint.BEFORE_TOOL, before)])


@pytest.mark.parametrize("over", [0, 1])
def test_a_hook_gives_a_call_arguments_as_long_as_an_answer_may_be(new_bench: NewBench, over: int) -> None:
    def change(context: HookContext) -> HookContext:
        call = context.tool_call
        assert call is not None
        room = 1_000 - len(call.model_copy(update={"args": {"text": ""}}).to_json())
        return context.changed(tool_call=call.model_copy(update={"args": {"text": "y" * (room + over)}}))

    ran: list[str] = []
    bench = new_bench(hooked(change, ran), max_answer_bytes=1_000)
    session = bench.submit()
    bench.run(session)
    (call,) = bench.execution(session).step_executions[0].step.tool_executions
    if not over:
        assert (len(ran), call.outcome) == (1, "ok")
        return
    assert ran == []
    assert call.error is not None
    assert call.error.kind == "invalid_arguments"
    assert "more than 1000 bytes (CELERY_AGENTS_MAX_ANSWER_BYTES)" in call.error.message


def test_a_hook_that_blocks_a_call_is_stronger_than_one_that_knows_its_result(new_bench: NewBench) -> None:
    def answer(context: HookContext) -> HookContext:
        assert context.tool_call is not None
        now = context.state.updated_at
        known = ToolExecution(
            tool_call=context.tool_call, outcome=ToolOutcome.OK, value="known", started_at=now, completed_at=now
        )
        return context.changed(tool_execution=known, blocked=blocked)

    for blocked, outcome in ((None, "ok"), ("not today", "blocked")):
        ran: list[str] = []
        bench = new_bench(hooked(answer, ran))
        session = bench.submit()
        bench.run(session)
        (call,) = bench.execution(session).step_executions[0].step.tool_executions
        assert (call.outcome, ran) == (outcome, [])
        assert call.value == ("known" if blocked is None else None)


def test_a_session_keeps_the_definition_of_the_agent_that_began_it(new_bench: NewBench) -> None:
    @tool(effect="pure")
    def look() -> str:
        """Look."""
        return ""

    agent = calling(look, system_prompt="Be brief.")
    bench = new_bench(agent)
    session_id = bench.submit()
    bench.step(session_id)
    kept = bench.store.sessions.definition(session_id)
    assert kept["name"] == "calling"
    later = bench.another_worker(calling(look, system_prompt="Be kind."), name="newer")
    bench.step(session_id, later)
    assert bench.store.sessions.definition(session_id) == kept


@pytest.mark.parametrize("point", [HookPoint.BEFORE_TOOL, HookPoint.AFTER_TOOL])
def test_a_call_that_runs_again_says_so(new_bench: NewBench, point: HookPoint) -> None:
    seen: list[tuple[bool, bool]] = []
    deaths = [1]

    @tool(effect="keyed")
    def pay(ctx: ToolContext) -> str:
        """Pay."""
        again.append(ctx.is_repeated)
        if deaths:
            deaths.pop()
            raise WorkerDied
        return "paid"

    def note(context: HookContext) -> None:
        seen.append((context.is_repeated, context.tool_call is not None))

    again: list[bool] = []
    bench = new_bench(calling(pay, hooks=[Hook(point, note)]))
    session_id = bench.submit()
    bench.worker_died(session_id)
    bench.run(session_id)
    assert again == [False, True]
    assert seen[-1] == (True, True)
    assert bench.record(session_id).status == "completed"


@pytest.mark.parametrize("most", [1, 2, 3])
def test_as_many_calls_of_an_answer_run_as_it_may_hold(new_bench: NewBench, most: int) -> None:
    ran: list[int] = []

    @tool(effect="pure")
    def look(number: int) -> str:
        """Look."""
        ran.append(number)
        return "seen"

    def driver(state: AgentState) -> Any:
        return "done" if state.step_count else [CallTool("look", number=number) for number in range(3)]

    bench = new_bench(Agent("a", driver=driver, tools=[look], max_parallel_tools=1), max_calls=most)
    session_id = bench.submit()
    bench.run(session_id)
    assert ran == list(range(most))
    surplus = [made for made in bench.state(session_id).steps[0].tool_executions if made.error is not None]
    assert [made.error.kind for made in surplus if made.error is not None] == ["too_many_calls"] * (3 - most)


def test_an_agent_that_calls_more_side_by_side_than_its_worker_gets_threads_for_all(new_bench: NewBench) -> None:
    together = threading.Barrier(12)
    met: list[bool] = []

    @tool(effect="unsafe")
    def meet() -> None:
        """Wait for the others."""
        met.append(together.wait(10) >= 0)

    def driver(state: AgentState) -> Any:
        return "done" if state.step_count else [CallTool("meet")] * 12

    agent = Agent("meeting", driver=driver, tools=[meet], max_parallel_tools=12)
    new_bench(agent, concurrency=1, max_parallel_tools=2).ran()
    assert met == [True] * 12
