"""The end of a poison step, whatever ends the processes that try to end it (I9)."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.capability import Capability
from celery_agents.worker.drivers import CallTool, ScriptedDriver
from celery_agents.worker.engine import Done, Parked
from celery_agents.worker.errors import DriverError
from celery_agents.worker.guards import GuardPoint, GuardView, Proceed
from celery_agents.worker.hooks import AnswerUndecided, Hook, HookContext, HookPoint
from celery_agents.worker.state import AgentState, InferenceResponse, ToolOutcome
from celery_agents.worker.tools import tool

from support.engine import Bench, WorkerDied, calling, executions

NewBench = Callable[..., Bench]
BEHIND_THE_ANSWER = (
    HookPoint.AFTER_INFERENCE, HookPoint.BEFORE_TOOL, HookPoint.AFTER_STEP, HookPoint.ON_STOP,
    HookPoint.AFTER_EXECUTION,
)  # fmt: skip
NO_ERRORS = (SystemExit(3), asyncio.CancelledError(), BaseExceptionGroup("both", [asyncio.CancelledError()]))


@tool(effect="unsafe")
def echo() -> str:
    """Say it."""
    return "said"


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise error

    return fail


def die_until_it_ends(bench: Bench, session: str, most: int) -> int:
    """Run the step in workers that die in it, until one does not; how many have died."""
    for died in range(most):
        try:
            bench.step(session)
        except WorkerDied:
            bench.clock.go_on(bench.settings.lease_seconds + bench.settings.lease_grace_seconds + 0.1)
        else:
            return died
    raise AssertionError(f"{most} workers have died, and the step goes on")


@pytest.mark.parametrize("point", BEHIND_THE_ANSWER)
def test_a_hook_that_ends_each_process_does_not_keep_the_execution_from_failing(
    new_bench: NewBench, point: HookPoint
) -> None:
    hooks = [Hook(point, raising(WorkerDied()))]
    bench = new_bench(Agent("a", driver=ScriptedDriver([CallTool("echo")]), tools=[echo], hooks=hooks))
    session = bench.submit()
    bench.change_budget(session, max_steps=1)
    assert die_until_it_ends(bench, session, 20) == bench.settings.attempts_limit + 1
    execution = bench.execution(session)
    assert execution.status == "failed"
    assert execution.errors[-1].kind == "poison"


def test_hooks_of_the_end_run_where_they_are_not_what_ends_the_processes(new_bench: NewBench) -> None:
    told: list[str] = []

    def note(context: HookContext) -> None:
        told.append(str(context.point))

    points = (HookPoint.ON_ERROR, HookPoint.ON_STOP, HookPoint.AFTER_EXECUTION)
    bench = new_bench(Agent("a", driver=raising(WorkerDied()), hooks=[Hook(each, note) for each in points]))
    session = bench.submit()
    assert die_until_it_ends(bench, session, 20) == bench.settings.attempts_limit
    assert told == [*points]


def test_a_step_whose_answer_ends_each_process_that_reads_it_is_parked(new_bench: NewBench) -> None:
    class Deadly(ScriptedDriver):
        def parse(self, raw: bytes) -> InferenceResponse:
            raise WorkerDied

    bench = new_bench(Agent("a", driver=Deadly(["done"])))
    session = bench.submit()
    died = 0
    while True:
        try:
            outcome = bench.step(session)
        except WorkerDied:
            died += 1
            assert died < 20
            bench.clock.go_on(bench.settings.lease_seconds + bench.settings.lease_grace_seconds + 0.1)
        else:
            break
    assert isinstance(outcome, Parked)
    assert outcome.reason == f"step 1 cannot be ended: {died} attempts have ended without an answer"
    assert bench.retry(session).outcome == "started"


# --- what is no error, raised by code of users ----------------------------------------------------------------------


@pytest.mark.parametrize("error", NO_ERRORS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("others", [0, 2])
def test_a_call_that_raises_what_is_no_error_is_an_error_and_the_others_keep_their_results(
    new_bench: NewBench, error: BaseException, others: int
) -> None:
    @tool(effect="unsafe")
    def ends() -> str:
        """Raise it."""
        raise error

    bench = new_bench(calling(CallTool("ends"), *[CallTool("echo")] * others, tools=[ends, echo]))
    session = bench.submit()
    bench.run(session)
    assert bench.execution(session).status == "completed"
    first, *more = executions(bench, session)
    assert first.outcome is ToolOutcome.ERROR
    assert [each.value for each in more] == ["said"] * others


@pytest.mark.parametrize("error", NO_ERRORS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("point", list(HookPoint))
def test_a_hook_that_raises_what_is_no_error_has_raised_an_error(
    new_bench: NewBench, error: BaseException, point: HookPoint
) -> None:
    before = ("before_execution", "before_step", "before_inference_request", "before_tool_use")
    bench = new_bench(calling(CallTool("echo"), tools=[echo], hooks=[Hook(point, raising(error))]))
    session = bench.submit()
    assert all(isinstance(each, Done) for each in bench.run(session))
    assert bench.execution(session).status == ("failed" if point in before else "completed")


@pytest.mark.parametrize("error", NO_ERRORS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("point", list(GuardPoint))
def test_a_guard_that_raises_what_is_no_error_fails_the_execution(
    new_bench: NewBench, error: BaseException, point: GuardPoint
) -> None:
    class Ending:
        judges_answers = True

        def check(self, view: GuardView) -> Proceed:
            if view.point is point:
                raise error
            return Proceed()

    bench = new_bench(calling(CallTool("echo"), tools=[echo], guards=[Ending()]))
    session = bench.submit()
    assert all(isinstance(each, Done) for each in bench.run(session))
    assert bench.execution(session).status == "failed"


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize(
    "error", [*NO_ERRORS, concurrent.futures.CancelledError()], ids=lambda each: type(each).__qualname__
)
def test_a_driver_that_raises_what_is_no_error_fails_the_execution_at_once(
    new_bench: NewBench, error: BaseException, is_async: bool
) -> None:
    async def answer(_: AgentState) -> str:
        raise error

    bench = new_bench(Agent("a", driver=answer if is_async else raising(error)))
    session = bench.submit()
    (outcome,) = bench.run(session)
    assert isinstance(outcome, Done)
    assert bench.execution(session).status == "failed"


def test_a_hook_behind_a_call_cannot_leave_the_answer_undecided(new_bench: NewBench) -> None:
    undecided = AnswerUndecided(ValueError("no"), None)  # pyright: ignore[reportArgumentType]
    bench = new_bench(calling(CallTool("echo"), tools=[echo], hooks=[Hook(HookPoint.AFTER_TOOL, raising(undecided))]))
    session = bench.submit()
    bench.run(session)
    (made,) = executions(bench, session)
    assert made.value == "said"


def test_a_result_of_a_hook_that_cannot_be_cut_leaves_the_result_of_the_call(new_bench: NewBench) -> None:
    deep: Any = "z" * 50_000
    for _ in range(80):
        deep = [deep]

    def change(context: HookContext) -> HookContext:
        assert context.tool_execution is not None
        return context.changed(tool_execution=context.tool_execution.with_result(deep))

    bench = new_bench(calling(CallTool("echo"), tools=[echo], hooks=[Hook(HookPoint.AFTER_TOOL, change)]))
    session = bench.submit()
    bench.run(session)
    (made,) = executions(bench, session)
    assert (made.outcome, made.value) == (ToolOutcome.OK, "said")


def test_a_wait_that_is_no_number_is_refused_where_it_is_given() -> None:
    with pytest.raises(TypeError, match="give seconds as a number"):
        DriverError("rate_limit", transient=True, retry_after="5")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)], ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("verb", ["compile", "events", "committed"])
def test_a_capability_that_raises_behind_the_answer_does_not_keep_the_step_from_its_commit(
    new_bench: NewBench, error: BaseException, verb: str
) -> None:
    """The driver reads no messages; a function of the state is one."""
    raised = raising(error)
    capability = type("Failing", (Capability,), {verb: lambda self, *_: raised()})()
    bench = new_bench(Agent("a", driver=lambda _: "done", capabilities=[capability]))
    session = bench.submit()
    (outcome,) = bench.run(session)
    assert isinstance(outcome, Done)
    assert bench.record(session).final_response == "done"
