"""An end that code of users decides: by a hook's state, by `StopExecution` in a hook, a guard, a driver or a lookup."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.engine import Done, operation_transition
from celery_agents.worker.guards import PROCEED, FinishReasonGuard, GuardPoint, GuardView, Verdict
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.state import (
    AgentState,
    ErrorInfo,
    ExecutionBudget,
    ExecutionStatus,
    FinishReason,
    InferenceResponse,
    InferenceUsage,
    StopReason,
    ToolOutcome,
)
from celery_agents.worker.tools import LookupResult, StopExecution, ToolContext, tool

from support.engine import Bench, WorkerDied
from support.trees import a_tree, answering, asking, children_of, delegating, run_tree

NewBench = Callable[..., Bench]

BEFORE = (HookPoint.BEFORE_EXECUTION, HookPoint.BEFORE_STEP, HookPoint.BEFORE_INFERENCE)
AFTER = (HookPoint.AFTER_INFERENCE, HookPoint.AFTER_STEP)


class Model:
    """Asks for a tool, then answers; counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, state: AgentState) -> Any:
        self.asked += 1
        if state.step_count == 0:
            return InferenceResponse(
                content="let me look", tool_calls=(_call("echo"),), usage=InferenceUsage(input=10, output=5)
            )
        return "the answer"


def _call(name: str) -> Any:
    from celery_agents.worker.state import ToolCall

    return ToolCall(id=f"c-{name}", name=name, args={"text": "a"})


@tool(effect="pure")
def echo(text: str) -> str:
    """Say it again."""
    return text


def _agent(model: Any, *hooks: Hook, **fields: Any) -> Agent:
    return Agent("ended", **{"driver": model, "tools": [echo], "hooks": hooks, **fields})


def _watch_the_end(seen: list[str]) -> list[Hook]:
    def note(context: HookContext) -> None:
        seen.append(context.point.value if context.error is None else f"{context.point.value}: {context.error.message}")

    return [Hook(point, note) for point in (HookPoint.ON_ERROR, HookPoint.ON_STOP, HookPoint.AFTER_EXECUTION)]


ENDS: dict[str, tuple[Callable[[AgentState], AgentState], str]] = {
    "stopped": (lambda state: state.with_execution_status(ExecutionStatus.STOPPED), "stopped"),
    "completed": (lambda state: state.with_execution_status(ExecutionStatus.COMPLETED), "completed"),
    "ended": (lambda state: state.with_execution_completed(), "completed"),
    "failed": (lambda state: state.with_failure(ErrorInfo(kind="mine", message="not like this")), "failed"),
}


@pytest.mark.parametrize("point", [*BEFORE, *AFTER])
@pytest.mark.parametrize("end", ENDS)
def test_a_hook_that_ends_the_execution_ends_it_as_at_any_end(new_bench: NewBench, point: HookPoint, end: str) -> None:
    change, status = ENDS[end]
    seen: list[str] = []
    model = Model()
    ending = Hook(point, lambda context: context.changed(state=change(context.state)))
    bench = new_bench(_agent(model, ending, *_watch_the_end(seen)))
    session_id = bench.submit()
    (outcome,) = bench.run(session_id)
    assert isinstance(outcome, Done)
    assert model.asked == (0 if point in BEFORE else 1), "before the call, no call is made"
    record = bench.record(session_id)
    assert (outcome.status, record.status) == (status, status)
    assert record.step_count == (0 if point in BEFORE else 1)
    assert record.usage["input"] == (0 if point in BEFORE else 10), "what was paid for is kept"
    assert bench.events(session_id)[-1] == f"execution_{status}"
    expected = ["on_stop", "after_execution"]
    assert seen == (["on_error: not like this", *expected] if status == "failed" else expected)
    assert record.errors == (("not like this",) if status == "failed" else ())
    if status == "stopped":
        assert (record.stop_reason, record.stop_message) == ("stop_requested", "a hook ended the execution")


@pytest.mark.parametrize("point", [*BEFORE, *AFTER])
def test_a_message_that_came_meanwhile_is_queued_and_starts_the_next_execution_when_it_is_released(
    new_bench: NewBench, point: HookPoint
) -> None:
    bench: Bench

    def end_first(context: HookContext) -> HookContext | None:
        if context.execution_id != "e1":
            return None
        bench.send(context.session_id, "and this?")
        return context.changed(state=context.state.with_execution_status(ExecutionStatus.STOPPED))

    bench = new_bench(_agent(lambda state: f"saw {len(state.messages)}", Hook(point, end_first)))
    session_id = bench.submit()
    bench.step(session_id)
    assert bench.due(session_id) is None
    queue = bench.store.sessions.read_waiting(session_id).queue
    assert (len(queue.messages), queue.held) == (1, "stopped")
    bench.store.sessions.release_queue(session_id, "r1", operation_transition)
    bench.run(session_id)
    record = bench.record(session_id)
    assert (record.status, record.execution_id != "e1") == ("completed", True)
    assert bench.events(session_id).count("execution_stopped") == 1


def test_a_child_that_a_hook_has_ended_does_not_go_on_for_a_message(new_bench: NewBench) -> None:
    bench: Bench

    def end(context: HookContext) -> HookContext:
        bench.send(context.session_id, "and this?")
        return context.changed(state=context.state.with_execution_status(ExecutionStatus.COMPLETED))

    worker = answering(hooks=[Hook(HookPoint.AFTER_INFERENCE, end)])
    bench, root = a_tree(new_bench, delegating("lead", *asking("ask_worker", "a"), tools=[worker.as_tool()]), worker)
    run_tree(bench, root)
    (child,) = children_of(bench, root)
    assert (bench.record(child).status, bench.record(child).step_count) == ("completed", 1)
    assert bench.record(root).status == "completed"


def test_a_step_whose_answer_is_journaled_is_kept_when_a_hook_ends_the_execution_before_it(new_bench: NewBench) -> None:
    class DyingTool:
        died = False

    @tool(effect="pure")
    def die(text: str) -> str:
        """End the worker once."""
        if not DyingTool.died:
            DyingTool.died = True
            raise WorkerDied
        return text

    def end_later(context: HookContext) -> HookContext | None:
        if not DyingTool.died:
            return None
        return context.changed(state=context.state.with_execution_status(ExecutionStatus.STOPPED))

    asked: list[int] = []

    def driver(state: AgentState) -> Any:
        asked.append(state.step_count)
        return CallTool("die", text="a")

    bench = new_bench(_agent(driver, Hook(HookPoint.BEFORE_STEP, end_later), tools=[die]))
    session_id = bench.submit()
    bench.worker_died(session_id)
    bench.run(session_id)
    assert asked == [0]
    state = bench.state(session_id)
    assert (state.status, state.step_count) == (ExecutionStatus.STOPPED, 1)
    assert [each.outcome for each in state.steps[0].tool_executions] == [ToolOutcome.NOT_RUN]


@pytest.mark.parametrize("point", [HookPoint.BEFORE_STEP, HookPoint.AFTER_STEP])
def test_a_hook_cannot_make_an_execution_wait(new_bench: NewBench, point: HookPoint) -> None:
    waiting = Hook(point, lambda context: context.changed(state=context.state.with_execution_waiting()), name="waits")
    bench = new_bench(_agent(lambda state: "done", waiting))
    record = bench.ran()
    if point is HookPoint.BEFORE_STEP:
        assert record.status == "failed"
        assert "hook waits at before_step made the execution waiting" in record.errors[0]
    else:
        assert record.status == "completed", "its change is dropped, the step is kept"


@pytest.mark.parametrize("point", [HookPoint.ON_STOP, HookPoint.AFTER_EXECUTION])
def test_a_hook_of_the_end_cannot_change_the_end(new_bench: NewBench, point: HookPoint) -> None:
    def change(context: HookContext) -> HookContext:
        state = context.state
        if context.point is HookPoint.ON_STOP:
            return context.changed(state=state.with_execution_status(ExecutionStatus.FAILED))
        return context.changed(state=state.for_retry())

    driver = Model()
    bench = new_bench(_agent(driver, Hook(point, change), budget=ExecutionBudget(max_steps=1)))
    assert bench.ran().status == "stopped"


def test_the_claim_of_a_step_that_a_hook_has_archived_is_recorded(new_bench: NewBench) -> None:
    ending = Hook(HookPoint.AFTER_STEP, lambda context: context.changed(state=context.state.with_execution_completed()))
    bench = new_bench(_agent(Model(), ending))
    session_id = bench.submit()
    bench.run(session_id)
    (done,) = bench.execution(session_id).step_executions
    assert done.claim != ""


# --- StopExecution --------------------------------------------------------------------------------------------------


def _stop(*_: Any, **__: Any) -> Any:
    raise StopExecution("enough, with api_key=sk-abcdefgh12345678", context={"n": 1})


@pytest.mark.parametrize("point", [*BEFORE, *AFTER, HookPoint.BEFORE_TOOL, HookPoint.AFTER_TOOL])
def test_a_hook_may_raise_stop_execution(new_bench: NewBench, point: HookPoint) -> None:
    model = Model()
    bench = new_bench(_agent(model, Hook(point, _stop, name="enough")))
    session_id = bench.submit()
    assert len(bench.run(session_id)) == 1
    record = bench.record(session_id)
    assert (record.status, record.stop_reason) == ("stopped", "stop_requested")
    assert record.stop_message.startswith("enough")
    assert "sk-abcdefgh" not in record.stop_message
    signal = bench.state(session_id).stop_signal
    assert signal is not None
    assert (signal.source, dict(signal.context)) == ("enough", {"n": 1})
    assert model.asked == (0 if point in BEFORE else 1)
    assert record.step_count == (0 if point in BEFORE else 1)
    if point in (HookPoint.BEFORE_TOOL, HookPoint.AFTER_TOOL):
        (call,) = bench.state(session_id).steps[0].tool_executions
        assert call.outcome is (ToolOutcome.NOT_RUN if point is HookPoint.BEFORE_TOOL else ToolOutcome.OK)


def test_what_earlier_hooks_of_the_point_have_changed_is_kept_and_later_ones_do_not_run_before_a_call(
    new_bench: NewBench,
) -> None:
    def note(context: HookContext) -> HookContext:
        return context.changed(state=context.state.with_metadata("noted", True))

    later: list[str] = []
    point = HookPoint.BEFORE_STEP
    hooks = [Hook(point, note), Hook(point, _stop), Hook(point, lambda context: later.append("ran"))]  # type: ignore[func-returns-value]
    bench = new_bench(_agent(Model(), *hooks))
    session_id = bench.submit()
    bench.run(session_id)
    assert bench.state(session_id).metadata["noted"] is True
    assert later == []


class StoppingGuard:
    """Raises at one point."""

    def __init__(self, point: GuardPoint) -> None:
        self._point = point

    def check(self, view: GuardView) -> Verdict:
        return _stop() if view.point is self._point else PROCEED


@pytest.mark.parametrize("point", [GuardPoint.BEFORE_CALL, GuardPoint.BEFORE_NEXT])
def test_a_guard_may_raise_stop_execution(new_bench: NewBench, point: GuardPoint) -> None:
    model = Model()
    bench = new_bench(_agent(model, guards=[StoppingGuard(point)]))
    session_id = bench.submit()
    bench.run(session_id)
    record = bench.record(session_id)
    assert (record.status, record.stop_reason) == ("stopped", "stop_requested")
    assert model.asked == (0 if point is GuardPoint.BEFORE_CALL else 1)
    assert bench.state(session_id).stop_signal.source == "StoppingGuard"  # type: ignore[union-attr]


def test_a_driver_may_raise_stop_execution_plain_or_async(new_bench: NewBench) -> None:
    async def stop_later(state: AgentState) -> Any:
        return _stop()

    for driver in (_stop, stop_later):
        bench = new_bench(_agent(driver))
        session_id = bench.submit()
        assert len(bench.run(session_id)) == 1
        record = bench.record(session_id)
        assert (record.status, record.stop_reason, record.step_count) == ("stopped", "stop_requested", 0)
        assert bench.state(session_id).stop_signal.source == driver.__name__  # type: ignore[union-attr]


def test_a_lookup_may_raise_stop_execution_and_the_call_stays_unknown(new_bench: NewBench) -> None:
    calls: list[str] = []

    def find(key: str, ctx: ToolContext) -> LookupResult:
        return _stop()

    @tool(effect="lookup", lookup=find)
    def act(text: str) -> str:
        """Act."""
        calls.append(text)
        raise WorkerDied

    bench = new_bench(_agent(lambda state: CallTool("act", text="a"), tools=[act]))
    session_id = bench.submit()
    bench.worker_died(session_id)
    bench.run(session_id)
    record = bench.record(session_id)
    assert (record.status, record.stop_reason) == ("stopped", "stop_requested")
    assert calls == ["a"]
    (execution,) = bench.state(session_id).steps[0].tool_executions
    assert execution.outcome is ToolOutcome.UNKNOWN


def test_stop_execution_may_say_that_all_is_done(new_bench: NewBench) -> None:
    def done(context: HookContext) -> HookContext:
        raise StopExecution("found it", reason=StopReason.COMPLETED)

    bench = new_bench(_agent(Model(), Hook(HookPoint.AFTER_STEP, done)))
    assert bench.ran().status == "completed"


# --- limits and finish reasons --------------------------------------------------------------------------------------


def test_a_limit_with_a_tool_error_in_the_last_step_is_stopped_and_not_failed(new_bench: NewBench) -> None:
    @tool(effect="pure")
    def broken(text: str) -> str:
        """Never works."""
        raise RuntimeError("no")

    driver: Any = lambda state: CallTool("broken", text="a")  # noqa: E731
    bench = new_bench(_agent(driver, tools=[broken], budget=ExecutionBudget(max_steps=1)))
    record = bench.ran()
    assert (record.status, record.stop_reason) == ("stopped", "steps_limit")
    assert bench.store.sessions.headers(index="failed")[0] == []


@pytest.mark.parametrize("guarded", [False, True])
def test_a_cut_off_answer_is_visible_and_the_documented_guard_stops_it(new_bench: NewBench, guarded: bool) -> None:
    def driver(state: AgentState) -> InferenceResponse:
        return InferenceResponse(content="half an ans", finish_reason=FinishReason.LENGTH)

    guards = [FinishReasonGuard(["length", "content_filter"])] if guarded else []
    bench = new_bench(_agent(driver, guards=guards))
    session_id = bench.submit()
    bench.run(session_id)
    record = bench.record(session_id)
    assert (record.final_response, record.finish_reason) == ("half an ans", "length")
    end = bench.store.sessions.events(session_id)[-1]
    assert end.data["finish_reason"] == "length"
    assert (record.status, record.stop_reason) == (
        ("stopped", "finish_reason") if guarded else ("completed", "completed")
    )


def test_a_whole_answer_says_so_and_the_guard_lets_it_pass(new_bench: NewBench) -> None:
    bench = new_bench(_agent(lambda state: "all of it", guards=[FinishReasonGuard(["length"])]))
    record = bench.ran()
    assert (record.status, record.finish_reason) == ("completed", "stop")


def test_a_guard_that_does_not_judge_answers_is_not_asked_about_a_final_one(new_bench: NewBench) -> None:
    asked: list[GuardPoint] = []

    class Counting:
        def check(self, view: GuardView) -> Verdict:
            asked.append(view.point)
            return PROCEED

    new_bench(_agent(Model(), guards=[Counting()])).ran()
    assert asked == [GuardPoint.BEFORE_CALL, GuardPoint.BEFORE_NEXT, GuardPoint.BEFORE_CALL]


# --- a hook that does not return ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", [*BEFORE, *AFTER], ids=lambda each: each.value)
def test_a_step_whose_hook_does_not_return_is_run_by_another_worker(new_bench: NewBench, point: HookPoint) -> None:
    model, called, outcomes = Model(), list[int](), list[object]()

    def hang(context: HookContext) -> None:
        called.append(1)
        if len(called) == 1:
            bench.clock.go_on(901)
            bench.keeper.tick()
            bench.clock.go_on(bench.settings.lease_seconds)
            bench.keeper.tick()
            outcomes.extend(bench.run(session))

    bench = new_bench(Agent("a", driver=model, tools=[echo], hooks=[Hook(point, hang)]))
    session = bench.submit()
    outcomes.append(bench.step(session))
    record = bench.record(session)
    assert (record.status, record.final_response, model.asked) == ("completed", "the answer", 2), outcomes
    assert not isinstance(outcomes[-1], Done), "its own step was another worker's when it returned"
    assert bench.keeper.abandoned == 0
