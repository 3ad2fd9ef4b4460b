"""What hooks put in place of answers and results has the limits of these; auxiliary answers of a step have one, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool, InferenceRequest, ScriptedDriver
from celery_agents.worker.drivers.function import LocalDriver
from celery_agents.worker.errors import DriverError
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.known_secrets import current_matcher
from celery_agents.worker.state import (
    AgentState,
    ErrorInfo,
    ExecutionState,
    InferenceResponse,
    ToolCall,
    ToolExecution,
    ToolOutcome,
)
from celery_agents.worker.tools import ToolContext, tool

from support.engine import Bench

NewBench = Callable[..., Bench]
MOST = 2_000


@tool(effect="keyed")
def look(what: str = "") -> str:
    """Look."""
    return f"seen {what[:10]}"


def ended(new_bench: NewBench, *hooks: Hook, **settings: Any) -> ExecutionState:
    def driver(state: AgentState) -> Any:
        return "done" if state.step_count else CallTool("look", what="x")

    bench = new_bench(Agent("a", driver=driver, tools=[look], hooks=hooks), **settings)
    session = bench.submit()
    bench.run(session)
    return bench.execution(session)


def the_call(execution: ExecutionState) -> ToolExecution:
    (made,) = execution.step_executions[0].step.tool_executions
    return made


def changing(execution: ToolExecution, **changes: Any) -> ToolExecution:
    return execution.model_copy(update=changes)


@pytest.mark.parametrize("value", ["x" * 10_000, "x" * 10**6, "漢" * 10**6, ["y" * 100] * 10_000, {"a": ["z"] * 10**5}])
def test_a_result_that_a_hook_has_made_is_cut_as_any_result(new_bench: NewBench, value: Any) -> None:
    def enlarge(context: HookContext) -> HookContext:
        assert context.tool_execution is not None
        return context.changed(tool_execution=changing(context.tool_execution, value=value))

    made = the_call(ended(new_bench, Hook(HookPoint.AFTER_TOOL, enlarge), max_result_bytes=MOST))
    assert len(str(made.value).encode()) < MOST + 200
    assert "left out" in str(made.value)
    assert made.outcome is ToolOutcome.OK


def test_a_result_that_a_hook_has_made_is_cut_where_it_has_too_many_characters_alone(new_bench: NewBench) -> None:
    def enlarge(context: HookContext) -> HookContext:
        assert context.tool_execution is not None
        return context.changed(tool_execution=changing(context.tool_execution, value="x" * 10_000))

    made = the_call(ended(new_bench, Hook(HookPoint.AFTER_TOOL, enlarge), max_result_chars=500))
    assert len(str(made.value)) < 700


def test_an_error_that_a_hook_has_made_is_cut(new_bench: NewBench) -> None:
    def fail(context: HookContext) -> HookContext:
        assert context.tool_execution is not None
        error = ErrorInfo(kind="hook", message="e" * 1_000_000)
        made = changing(context.tool_execution, value=None, error=error, outcome=ToolOutcome.ERROR)
        return context.changed(tool_execution=made)

    made = the_call(ended(new_bench, Hook(HookPoint.AFTER_TOOL, fail)))
    assert made.error is not None
    assert len(made.error.message) <= 4_000


def test_an_error_that_a_hook_has_made_is_cut_in_kind_and_details_and_without_secrets(
    new_bench: NewBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_TOKEN", "not-a-real-token")
    current_matcher(fresh=True)

    def fail(context: HookContext) -> HookContext:
        assert context.tool_execution is not None
        details = {"more": "d" * 1_000_000, "key": "not-a-real-token"}
        error = ErrorInfo(kind="k" * 1_000_000, message="it is not-a-real-token", details=details)
        made = changing(context.tool_execution, value=None, error=error, outcome=ToolOutcome.ERROR)
        return context.changed(tool_execution=made)

    made = the_call(ended(new_bench, Hook(HookPoint.AFTER_TOOL, fail)))
    assert made.error is not None
    assert len(made.error.to_json()) <= 10_000
    assert "not-a-real" not in made.error.to_json().decode()


def test_a_result_that_a_hook_knows_already_is_cut(new_bench: NewBench) -> None:
    def know(context: HookContext) -> HookContext:
        assert context.tool_call is not None
        now = context.now
        known = ToolExecution(
            id="x", tool_call=context.tool_call, outcome=ToolOutcome.OK, value="k" * 1_000_000, started_at=now,
            completed_at=now,
        )  # fmt: skip
        return context.changed(tool_execution=known)

    made = the_call(ended(new_bench, Hook(HookPoint.BEFORE_TOOL, know), max_result_bytes=MOST))
    assert len(str(made.value)) < MOST + 200


def test_a_result_that_was_cut_once_keeps_its_marker(new_bench: NewBench) -> None:
    @tool(effect="keyed")
    def dump() -> str:
        """Dump."""
        return "x" * 10_000

    def touch(context: HookContext) -> HookContext:
        assert context.tool_execution is not None
        return context.changed(
            tool_execution=changing(context.tool_execution, value=f"{context.tool_execution.value}!")
        )

    def driver(state: AgentState) -> Any:
        return "done" if state.step_count else CallTool("dump")

    agent = Agent("a", driver=driver, tools=[dump], hooks=[Hook(HookPoint.AFTER_TOOL, touch)])
    bench = new_bench(agent, max_result_bytes=MOST)
    session = bench.submit()
    bench.run(session)
    assert str(the_call(bench.execution(session)).value).endswith("[… 8000 characters left out]!")


def test_the_reason_by_which_a_hook_blocks_a_call_is_cut(new_bench: NewBench) -> None:
    made = the_call(ended(new_bench, Hook(HookPoint.BEFORE_TOOL, lambda context: context.changed(blocked="b" * 10**6))))
    assert made.outcome is ToolOutcome.BLOCKED
    assert made.error is not None
    assert len(made.error.message) <= 4_000


def test_arguments_that_a_hook_has_made_are_an_error_where_they_are_too_large(new_bench: NewBench) -> None:
    def enlarge(context: HookContext) -> HookContext:
        assert context.tool_call is not None
        call = ToolCall(id=context.tool_call.id, name="look", args={"what": "w" * 1_000_000})
        return context.changed(tool_call=call)

    made = the_call(ended(new_bench, Hook(HookPoint.BEFORE_TOOL, enlarge), max_answer_bytes=50_000))
    assert made.outcome is ToolOutcome.ERROR
    assert "CELERY_AGENTS_MAX_ANSWER_BYTES" in made.error_message()
    assert made.tool_call.args == {"what": "x"}


@pytest.mark.parametrize("point", [HookPoint.BEFORE_STEP, HookPoint.AFTER_INFERENCE])
def test_an_answer_that_a_hook_has_made_fails_the_execution_where_it_is_too_large(
    new_bench: NewBench, point: HookPoint
) -> None:
    def enlarge(context: HookContext) -> HookContext:
        return context.changed(response=InferenceResponse(content="a" * 1_000_000))

    execution = ended(new_bench, Hook(point, enlarge), max_answer_bytes=50_000)
    assert execution.status == "failed"
    (error,) = execution.all_errors()
    assert error.kind == "answer_too_large"
    assert "a hook" in error.message
    assert len(execution.to_json()) < 50_000


@pytest.mark.parametrize("changes", [{}, {"response": None}], ids=["nothing", "no answer"])
def test_an_answer_that_no_hook_has_made_stays_although_it_is_longer_when_parsed(
    new_bench: NewBench, changes: dict[str, Any]
) -> None:
    class Terse(LocalDriver):
        name = "terse"
        is_async = False

        def infer(self, request: InferenceRequest) -> bytes:
            return b"3000"

        def parse(self, raw: bytes) -> InferenceResponse:
            return InferenceResponse(content="a" * int(raw))

    hook = Hook(HookPoint.AFTER_INFERENCE, lambda context: context.changed(**changes))
    record = new_bench(Agent("a", driver=Terse(), hooks=[hook]), max_answer_bytes=2_000).ran()
    assert (record.status, record.final_response) == ("completed", "a" * 3000)


def test_values_of_hooks_within_the_limits_come_as_they_are(new_bench: NewBench) -> None:
    def change(context: HookContext) -> HookContext:
        assert context.tool_execution is not None
        return context.changed(tool_execution=changing(context.tool_execution, value={"n": [1, 2.5, None, "ü"]}))

    assert the_call(ended(new_bench, Hook(HookPoint.AFTER_TOOL, change))).value == {"n": (1, 2.5, None, "ü")}


def test_a_secret_that_a_hook_writes_into_a_result_is_not_stored(
    new_bench: NewBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_TOKEN", "not-a-real-token")
    current_matcher(fresh=True)

    def change(context: HookContext) -> HookContext:
        assert context.tool_execution is not None
        value = {"token": "not-a-real-token", "n": [1]}
        return context.changed(tool_execution=changing(context.tool_execution, value=value))

    made = the_call(ended(new_bench, Hook(HookPoint.AFTER_TOOL, change)))
    assert made.value == {"token": "[redacted]", "n": (1,)}


# --- auxiliary answers --------------------------------------------------------------------------------------------


class Talkative(ScriptedDriver):
    """Gives the same answer to every auxiliary question."""

    def __init__(self, answers: list[Any], *, text: str) -> None:
        super().__init__(answers)
        self._text = text

    def infer(self, request: InferenceRequest) -> bytes:
        return InferenceResponse(content=self._text).to_json() if request.purpose else super().infer(request)


def test_auxiliary_answers_of_a_step_have_a_limit_by_bytes(new_bench: NewBench) -> None:
    asked: list[int] = []

    @tool(effect="keyed")
    def greedy(ctx: ToolContext) -> str:
        """Ask until nobody answers."""
        for number in range(100):
            ctx.ask_model_sync(f"q{number}", "?")
            asked.append(number)
        return "all"

    driver = Talkative([CallTool("greedy"), "done"], text="x" * 900)
    bench = new_bench(Agent("a", driver=driver, tools=[greedy]), max_answer_bytes=2_000)
    session = bench.submit()
    bench.run(session)
    made = the_call(bench.execution(session))
    assert made.outcome is ToolOutcome.ERROR
    assert "auxiliary" in made.error_message()
    assert 5 <= len(asked) <= 10
    assert bench.execution(session).status == "completed"


def test_auxiliary_answers_of_a_step_have_a_limit_by_number(new_bench: NewBench, monkeypatch: Any) -> None:
    from celery_agents.worker.engine import auxiliary_calls

    monkeypatch.setattr(auxiliary_calls, "MOST_OF_STEP", 20)
    raised: list[Exception] = []

    def greedy(context: HookContext) -> None:
        for number in range(100):
            try:
                context.ask_model(f"q{number}", "?")
            except Exception as error:
                raised.append(error)
                raise

    driver = Talkative(["done"], text="x")
    bench = new_bench(Agent("a", driver=driver, hooks=[Hook(HookPoint.BEFORE_STEP, greedy)]))
    session = bench.submit()
    bench.run(session)
    assert bench.execution(session).status == "failed", "it is not tried for ever"
    (error,) = raised
    assert isinstance(error, DriverError)
    assert (error.kind, error.transient) == ("auxiliary_limit", False)
