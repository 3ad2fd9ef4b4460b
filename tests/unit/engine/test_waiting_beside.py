"""A step that asks while somebody else changes the session, answers at once, or stops it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.engine import Done, Waiting
from celery_agents.worker.engine.run_values import CallRecord
from celery_agents.worker.state import (
    AgentState,
    Approve,
    ErrorInfo,
    ToolCall,
    ToolExecution,
    ToolExecutionId,
    ToolOutcome,
)
from celery_agents.worker.store import Claim
from celery_agents.worker.tools import NeedsApproval, StopExecution, ToolContext, tool

from support.engine import Bench

NewBench = Callable[..., Bench]
SECRET = "not-a-secret-but-long-enough"


def calling(*names: str, tools: Any) -> Agent:
    """An agent that calls these tools in its first step and answers in its second."""

    def driver(state: AgentState) -> Any:
        return "done" if state.step_count else [CallTool(name) for name in names]

    return Agent("calling", driver=driver, tools=tools)


def test_what_was_saved_beside_a_step_is_kept_when_its_wait_finds_an_answer(new_bench: NewBench) -> None:
    benches: list[Bench] = []
    paid: list[str] = []

    @tool(effect="unsafe", approval="always")
    def pay(ctx: ToolContext) -> str:
        """Pay."""
        paid.append(ctx.idempotency_key)
        return "paid"

    @tool(effect="pure")
    def meddle(ctx: ToolContext) -> str:
        """Save the session and answer the request, while the step runs."""
        benches[0].save_beside(ctx.session_id, lambda state: state.with_metadata("beside", 1))
        benches[0].answer(ctx.session_id, Approve())
        return "meddled"

    benches.append(bench := new_bench(calling("pay", "meddle", tools=[pay, meddle])))
    session_id = bench.submit()
    (first, *_) = bench.run(session_id)
    assert isinstance(first, Done), "the wait found the answer, so the step went on"
    assert len(paid) == 1
    assert bench.state(session_id).context.metadata["beside"] == 1


def test_a_failed_run_that_a_paused_worker_journals_late_does_not_stand_for_an_approved_call(
    new_bench: NewBench,
) -> None:
    paid: list[str] = []

    @tool(effect="keyed")
    def pay(ctx: ToolContext) -> str:
        """Pay, with an approval."""
        if ctx.approval is None:
            raise NeedsApproval("May I?")
        paid.append(ctx.idempotency_key)
        return "paid"

    bench = new_bench(calling("pay", tools=[pay]))
    session_id = bench.submit()
    began = bench.clock.now
    bench.clock.go_on(8)
    (first,) = bench.run(session_id)
    assert isinstance(first, Waiting)
    bench.clock.go_on(1)
    late = ToolExecution(
        id=ToolExecutionId.following(first.ref.execution_id, 1, 0),
        tool_call=ToolCall(id="call", name="pay", args={}),
        outcome=ToolOutcome.UNKNOWN,
        error=ErrorInfo(kind="unknown", message="the call took too long"),
        started_at=began,
        completed_at=bench.clock.now,
    )
    paused = Claim(id="paused", worker="w", ref=first.ref, attempt=1, now_ms=bench.clock.now_ms())
    bench.store.steps.record_results(paused, {0: CallRecord(execution=late).to_json()})
    bench.answer(session_id, Approve())
    bench.run(session_id)
    assert len(paid) == 1
    assert bench.state(session_id).steps[0].tool_executions[0].outcome is ToolOutcome.OK


def test_a_call_that_a_service_has_is_unknown_when_its_own_leg_is_stopped(new_bench: NewBench) -> None:
    started: list[str] = []

    @tool(effect="unsafe", result="later")
    def render(ctx: ToolContext) -> None:
        """Render elsewhere."""
        started.append(ctx.completion_token)

    @tool(effect="pure")
    def enough() -> str:
        """Stop the execution."""
        raise StopExecution("enough")

    bench = new_bench(calling("render", "enough", tools=[render, enough]), token_secret=SECRET)
    session_id = bench.submit()
    bench.run(session_id)
    outcomes = {made.tool_call.name: made.outcome for made in bench.state(session_id).steps[0].tool_executions}
    assert len(started) == 1
    assert outcomes["render"] is ToolOutcome.UNKNOWN
