"""Hooks at every point: order, what each may change, what becomes of one that raises (P6, P8, P15, P16, P17)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.engine import Done
from celery_agents.worker.errors import ConfigurationError, DriverError
from celery_agents.worker.hooks import CHANGES, Hook, HookContext, HookPoint
from celery_agents.worker.state import (
    AgentState,
    ErrorInfo,
    ExecutionBudget,
    ExecutionStatus,
    FrozenDict,
    InferenceResponse,
    Message,
    StopReason,
    StopSignal,
    ToolCall,
    ToolExecution,
    ToolOutcome,
)
from celery_agents.worker.tools import tool

from support.engine import Bench, fragile_tool

NewBench = Callable[..., Bench]


@tool(effect="pure")
def echo(text: str) -> str:
    """Say it again."""
    return f"<{text}>"


def talkative(state: AgentState) -> Any:
    """A tool call, then an answer that tells what it got."""
    if state.step_count == 0:
        return CallTool("echo", text="a")
    return f"got {state.messages[-1].content}"


def agent_with(*hooks: Hook, **fields: Any) -> Agent:
    return Agent("hooked", **{"driver": talkative, "tools": [echo], "hooks": hooks, **fields})


def _watching(seen: list[HookContext], *points: HookPoint) -> list[Hook]:
    def hook(point: HookPoint) -> Hook:
        return Hook(point, lambda context: seen.append(context))  # type: ignore[func-returns-value]

    return [hook(point) for point in points or HookPoint]


def test_hooks_stand_at_every_point_of_an_execution_in_order(new_bench: NewBench) -> None:
    seen: list[HookContext] = []
    bench = new_bench(agent_with(*_watching(seen)))
    record = bench.ran()
    assert record.final_response == "got <a>"
    assert [(context.point.value, context.step) for context in seen] == [
        ("before_execution", 1),
        ("before_step", 1),
        ("before_inference_request", 1),
        ("after_inference_response", 1),
        ("before_tool_use", 1),
        ("after_tool_use", 1),
        ("after_step", 1),
        ("before_step", 2),
        ("before_inference_request", 2),
        ("after_inference_response", 2),
        ("after_step", 2),
        ("on_stop", 2),
        ("after_execution", 2),
    ]
    first, last = seen[0], seen[-1]
    assert first.state.status is ExecutionStatus.IN_PROGRESS
    assert last.state.status is ExecutionStatus.COMPLETED
    on_stop = next(context for context in seen if context.point is HookPoint.ON_STOP)
    assert on_stop.state.current_step is not None


def test_an_execution_that_fails_passes_on_error_on_stop_and_after_execution(new_bench: NewBench) -> None:
    def refuse(state: AgentState) -> str:
        raise DriverError("authentication", "no key", transient=False, status=401)

    seen: list[HookContext] = []
    bench = new_bench(agent_with(*_watching(seen), driver=refuse))
    assert bench.ran().status == "failed"
    points = [context.point.value for context in seen]
    assert points == [
        "before_execution", "before_step", "before_inference_request", "on_error", "on_stop", "after_execution",
    ]  # fmt: skip
    assert seen[3].error is not None
    assert seen[3].error.kind == "authentication"
    assert seen[-1].state.status is ExecutionStatus.FAILED


def test_a_higher_priority_runs_first_and_equal_ones_keep_their_order(new_bench: NewBench) -> None:
    order: list[str] = []

    def named(name: str, priority: int) -> Hook:
        return Hook(HookPoint.BEFORE_STEP, lambda context: order.append(name), priority)  # type: ignore[func-returns-value]

    hooks = [named("low", -5), named("first", 0), named("high", 200), named("second", 0), named("higher", 250)]
    new_bench(agent_with(*hooks, driver=lambda state: "done")).ran()
    assert order == ["higher", "high", "first", "second", "low"]


def test_each_hook_gets_what_the_one_before_it_made(new_bench: NewBench) -> None:
    def counting(context: HookContext) -> HookContext:
        count = context.state.metadata.get("count", 0)
        return context.changed(state=context.state.with_metadata("count", count + 1))

    hooks = [Hook(HookPoint.BEFORE_STEP, counting) for _ in range(3)]
    bench = new_bench(agent_with(*hooks, driver=lambda state: "done"))
    session_id = bench.submit()
    bench.run(session_id)
    assert bench.state(session_id).metadata["count"] == 3


_STATE_POINTS = [point for point in HookPoint if "state" in CHANGES[point] and point is not HookPoint.ON_ERROR]


@pytest.mark.parametrize("point", _STATE_POINTS)
def test_a_change_of_the_state_is_stored_with_the_step(new_bench: NewBench, point: HookPoint) -> None:
    def note(context: HookContext) -> HookContext:
        return context.changed(state=context.state.with_metadata(point.value, context.step))

    bench = new_bench(agent_with(Hook(point, note)))
    session_id = bench.submit()
    bench.run(session_id)
    state = bench.state(session_id)
    assert state.metadata[point.value] == (1 if point is HookPoint.BEFORE_EXECUTION else 2)
    assert state.final_response == "got <a>"


def test_a_change_of_the_state_on_error_is_stored_with_the_failure(new_bench: NewBench) -> None:
    def refuse(state: AgentState) -> str:
        raise DriverError("authentication", "no key", transient=False)

    def shape(context: HookContext) -> HookContext:
        assert context.error is not None
        error = ErrorInfo(kind="mine", message=f"shaped: {context.error.message}")
        return context.changed(state=context.state.with_metadata("seen", True), error=error)

    bench = new_bench(agent_with(Hook(HookPoint.ON_ERROR, shape), driver=refuse))
    session_id = bench.submit()
    (outcome,) = bench.run(session_id)
    assert bench.state(session_id).metadata["seen"] is True
    assert bench.record(session_id).errors == ("shaped: no key",)
    assert isinstance(outcome, Done)
    assert outcome.error == "shaped: no key"
    end = bench.store.sessions.events(session_id)[-1]
    assert (end.type, end.data["error"]) == ("execution_failed", "shaped: no key")


def test_a_message_that_a_hook_adds_before_the_step_is_seen_and_stored_and_starts_nothing(new_bench: NewBench) -> None:
    def remind(context: HookContext) -> HookContext:
        return context.changed(state=context.state.with_user_message("be brief"))

    bench = new_bench(
        agent_with(Hook(HookPoint.BEFORE_EXECUTION, remind), driver=lambda state: str(len(state.messages)))
    )
    session_id = bench.submit()
    assert len(bench.run(session_id)) == 1
    state = bench.state(session_id)
    assert [message.content for message in state.messages] == ["hello", "be brief", "2"]
    (step,) = state.steps
    assert [message.content for message in state.input_messages(step)] == ["hello", "be brief"]


def test_the_question_the_answer_the_call_and_its_result_can_be_changed(new_bench: NewBench) -> None:
    def ask(context: HookContext) -> HookContext:
        assert context.request is not None
        if context.step == 2:
            return context
        return context.changed(request=context.request.with_messages((Message.user("changed question"),)))

    def answer(context: HookContext) -> HookContext:
        assert context.response is not None
        if context.step == 1:
            return context
        return context.changed(response=InferenceResponse(content=context.response.content + "!"))

    def call(context: HookContext) -> HookContext:
        assert context.tool_call is not None
        return context.changed(tool_call=ToolCall(id=context.tool_call.id, name="echo", args={"text": "changed"}))

    def result(context: HookContext) -> HookContext:
        made = context.tool_execution
        assert made is not None
        shaped = ToolExecution.from_dict({**made.to_dict(), "value": f"{made.value} shaped"})
        return context.changed(tool_execution=shaped)

    asked: list[str] = []

    class Driver:
        name = "own"
        is_async = False

        def infer(self, request: Any) -> bytes:
            asked.append(request.messages[0].content)
            state = request.state
            calls = (ToolCall(id="c", name="echo", args={"text": "a"}),) if not state.step_count else ()
            return InferenceResponse(content="" if calls else state.messages[-1].content, tool_calls=calls).to_json()

        def parse(self, raw: bytes) -> InferenceResponse:
            return InferenceResponse.from_json(raw)

        def check(self) -> None: ...

        def knows_price(self, settings: object = None) -> bool:
            return True

        async def aclose(self) -> None: ...

    hooks = [
        Hook(HookPoint.BEFORE_INFERENCE, ask),
        Hook(HookPoint.AFTER_INFERENCE, answer),
        Hook(HookPoint.BEFORE_TOOL, call),
        Hook(HookPoint.AFTER_TOOL, result),
    ]
    bench = new_bench(agent_with(*hooks, driver=Driver()))
    session_id = bench.submit()
    bench.run(session_id)
    assert asked == ["changed question", "hello"]
    state = bench.state(session_id)
    assert state.final_response == "<changed> shaped!"
    (made,) = state.steps[0].tool_executions
    assert made.tool_call.args == {"text": "changed"}


def test_a_hook_may_send_a_call_to_another_tool_and_repair_a_name(new_bench: NewBench) -> None:
    def redirect(context: HookContext) -> HookContext:
        assert context.tool_call is not None
        return context.changed(tool_call=ToolCall(id=context.tool_call.id, name="echo", args={"text": "x"}))

    def driver(state: AgentState) -> Any:
        return CallTool("ecko", text="a") if not state.step_count else state.messages[-1].content

    assert new_bench(agent_with(Hook(HookPoint.BEFORE_TOOL, redirect), driver=driver)).ran().final_response == "<x>"


def test_a_blocked_call_is_not_made_its_reason_is_shown_and_the_others_go_on(new_bench: NewBench) -> None:
    made: list[str] = []

    @tool(effect="unsafe")
    def act(text: str) -> str:
        """Act."""
        made.append(text)
        return f"did {text}"

    def block(context: HookContext) -> HookContext:
        assert context.tool_call is not None
        if context.tool_call.args == {"text": "bad"}:
            return context.changed(blocked="not allowed with api_key=sk-abcdefgh12345678")
        return context

    seen: list[HookContext] = []

    def driver(state: AgentState) -> Any:
        if state.step_count:
            return " | ".join(message.content for message in state.messages[-2:])
        return [CallTool("act", text="bad"), CallTool("act", text="good")]

    hooks = [Hook(HookPoint.BEFORE_TOOL, block), *_watching(seen, HookPoint.AFTER_TOOL)]
    bench = new_bench(agent_with(*hooks, tools=[act], driver=driver))
    session_id = bench.submit()
    bench.run(session_id)
    assert made == ["good"]
    blocked, good = bench.state(session_id).steps[0].tool_executions
    assert (blocked.outcome, blocked.was_blocked()) == (ToolOutcome.BLOCKED, True)
    assert good.outcome is ToolOutcome.OK
    assert "not allowed" in bench.record(session_id).final_response
    assert "sk-abcdefgh" not in bench.state(session_id).to_json().decode()
    assert [context.tool_call.args["text"] for context in seen if context.tool_call] == ["good"]  # type: ignore[index]


# --- what a point does not allow ----------------------------------------------------------------------------------

_WRONG: list[tuple[HookPoint, str, Any]] = [
    (HookPoint.BEFORE_STEP, "step", lambda context: context.changed(step=9)),
    (HookPoint.BEFORE_STEP, "point", lambda context: context.changed(point=HookPoint.AFTER_STEP)),
    (HookPoint.BEFORE_STEP, "session_id", lambda context: context.changed(session_id="other")),
    (HookPoint.BEFORE_EXECUTION, "response", lambda context: context.changed(response=InferenceResponse(content="x"))),
    (HookPoint.BEFORE_INFERENCE, "response", lambda context: context.changed(response=InferenceResponse(content="x"))),
    (HookPoint.BEFORE_TOOL, "state", lambda context: context.changed(state=context.state.with_metadata("a", 1))),
    (HookPoint.BEFORE_TOOL, "id", lambda context: context.changed(tool_call=ToolCall(id="other", name="echo"))),
    (HookPoint.BEFORE_TOOL, "blocked", lambda context: context.changed(blocked=True)),
    (HookPoint.BEFORE_STEP, "returned a AgentState", lambda context: context.state),
    (HookPoint.BEFORE_STEP, "set state to a dict", lambda context: context.changed(state={})),
    (HookPoint.BEFORE_STEP, "set state to a NoneType", lambda context: context.changed(state=None)),
    (HookPoint.BEFORE_STEP, "another execution", lambda context: context.changed(state=AgentState.fresh())),
]


@pytest.mark.parametrize(("point", "named", "wrong"), _WRONG, ids=[f"{point}-{name}" for point, name, _ in _WRONG])
def test_a_change_that_a_point_before_a_call_does_not_allow_fails_the_execution(
    new_bench: NewBench, point: HookPoint, named: str, wrong: Any
) -> None:
    bench = new_bench(agent_with(Hook(point, wrong, name="wrong")))
    record = bench.ran()
    assert (record.status, record.stop_reason) == ("failed", "error")
    assert f"hook wrong at {point}" in record.errors[0]
    assert named in record.errors[0]


@pytest.mark.parametrize(
    ("point", "wrong"),
    [
        (HookPoint.AFTER_INFERENCE, lambda context: context.changed(request=None, step=4)),
        (HookPoint.AFTER_TOOL, lambda context: context.changed(state=context.state.with_metadata("a", 1))),
        (HookPoint.AFTER_STEP, lambda context: context.changed(execution_id="other")),
        (HookPoint.AFTER_STEP, lambda context: "done"),
        (HookPoint.ON_STOP, lambda context: context.changed(state=None)),
        (HookPoint.AFTER_EXECUTION, lambda context: context.changed(state=AgentState.fresh())),
    ],
)
def test_a_change_that_a_point_after_a_call_does_not_allow_is_dropped_and_said(
    new_bench: NewBench, point: HookPoint, wrong: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench = new_bench(agent_with(Hook(point, wrong, name="wrong")))
    with caplog.at_level(logging.WARNING):
        record = bench.ran()
    assert (record.status, record.final_response, record.step_count) == ("completed", "got <a>", 2)
    assert f"hook wrong at {point}" in caplog.text


@pytest.mark.parametrize("point", [HookPoint.AFTER_STEP, HookPoint.BEFORE_STEP])
def test_a_hook_that_forgets_the_prompt_leaves_a_session_that_can_be_read(
    new_bench: NewBench, point: HookPoint
) -> None:
    def forget(context: HookContext) -> HookContext:
        prompt: Any = context.state.metadata.get("prompt")
        return context.changed(state=context.state.with_system_prompt(prompt))

    bench = new_bench(Agent("a", driver=lambda _: "done", hooks=[Hook(point, forget)]))
    session = bench.submit()
    bench.run(session)
    assert bench.record(session).status == ("completed" if point is HookPoint.AFTER_STEP else "failed")
    assert bench.state(session).system_prompt == ""


@pytest.mark.parametrize(
    "make",
    [
        lambda: Hook("before_lunch", lambda context: None),  # type: ignore[arg-type]
        lambda: Hook(HookPoint.AFTER_STEP, "no function"),  # type: ignore[arg-type]
        lambda: Agent("a", driver=talkative, hooks=[lambda context: None]),  # type: ignore[list-item]
    ],
)
def test_what_is_no_hook_is_refused_where_it_is_written(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError):
        make()


def test_a_hook_that_would_have_to_be_awaited_is_refused_where_it_is_written() -> None:
    async def later(context: HookContext) -> None: ...

    with pytest.raises(ConfigurationError, match="plain function"):
        Hook(HookPoint.BEFORE_STEP, later)  # type: ignore[arg-type]


# --- hooks that raise ---------------------------------------------------------------------------------------------


def _raising(context: HookContext) -> HookContext:
    raise RuntimeError("hook broke with token=abcdefgh12345678")


@pytest.mark.parametrize("point", [HookPoint.BEFORE_EXECUTION, HookPoint.BEFORE_STEP, HookPoint.BEFORE_INFERENCE])
def test_a_hook_that_raises_before_the_driver_fails_without_a_step_and_without_a_call(
    new_bench: NewBench, point: HookPoint
) -> None:
    calls: list[int] = []

    def driver(state: AgentState) -> str:
        calls.append(1)
        return "done"

    bench = new_bench(agent_with(Hook(point, _raising), driver=driver))
    session_id = bench.submit()
    bench.run(session_id)
    record = bench.record(session_id)
    assert (record.status, record.step_count, calls) == ("failed", 0, [])
    assert record.errors == ("RuntimeError: hook broke with token=[redacted]",)
    events = bench.events(session_id)
    assert "execution_started" in events
    assert "step_committed" not in events
    assert events[-1] == "execution_failed"


def test_a_hook_that_raises_before_a_tool_fails_the_execution_and_keeps_the_step(new_bench: NewBench) -> None:
    bench = new_bench(agent_with(Hook(HookPoint.BEFORE_TOOL, _raising)))
    session_id = bench.submit()
    bench.run(session_id)
    record = bench.record(session_id)
    assert (record.status, record.step_count) == ("failed", 1)
    (step,) = bench.state(session_id).steps
    assert step.tool_executions[0].outcome is ToolOutcome.NOT_RUN
    assert "hook broke" in record.errors[-1]
    assert bench.events(session_id)[-2:] == ["step_committed", "execution_failed"]


@pytest.mark.parametrize(
    "point",
    [
        HookPoint.AFTER_INFERENCE,
        HookPoint.AFTER_TOOL,
        HookPoint.AFTER_STEP,
        HookPoint.ON_STOP,
        HookPoint.AFTER_EXECUTION,
    ],
)
def test_a_hook_that_raises_afterwards_loses_nothing_of_the_step(
    new_bench: NewBench, point: HookPoint, caplog: pytest.LogCaptureFixture
) -> None:
    bench = new_bench(agent_with(Hook(point, _raising)))
    session_id = bench.submit()
    with caplog.at_level(logging.WARNING):
        bench.run(session_id)
    record = bench.record(session_id)
    assert (record.status, record.final_response, record.step_count) == ("completed", "got <a>", 2)
    assert record.errors == ()
    assert "hook broke with token=[redacted]" in caplog.text


def test_a_hook_that_raises_on_error_hides_nothing_of_the_error(new_bench: NewBench) -> None:
    def refuse(state: AgentState) -> str:
        raise DriverError("authentication", "no key", transient=False)

    record = new_bench(agent_with(Hook(HookPoint.ON_ERROR, _raising), driver=refuse)).ran()
    assert (record.status, record.errors) == ("failed", ("no key",))


# --- hooks and the decision to stop -------------------------------------------------------------------------------


def _signal(reason: StopReason) -> StopSignal:
    return StopSignal(reason=reason, message="a hook's", context=FrozenDict({"a": 1}), source="hook")


def test_a_stronger_signal_of_an_on_stop_hook_decides_reason_event_and_status(new_bench: NewBench) -> None:
    def stronger(context: HookContext) -> HookContext:
        return context.changed(state=context.state.with_stop_signal(_signal(StopReason.ERROR_FORBADE)))

    bench = new_bench(agent_with(Hook(HookPoint.ON_STOP, stronger), driver=lambda state: "done"))
    session_id = bench.submit()
    bench.run(session_id)
    record = bench.record(session_id)
    assert (record.status, record.stop_reason, record.stop_message) == ("stopped", "error", "a hook's")
    end = bench.store.sessions.events(session_id)[-1]
    assert (end.type, end.data["reason"], end.data["status"]) == ("execution_stopped", "error", "stopped")


@pytest.mark.parametrize("point", [HookPoint.BEFORE_EXECUTION, HookPoint.BEFORE_STEP])
def test_a_stop_signal_before_the_first_step_ends_it_without_a_call_and_with_all_hooks_of_an_end(
    new_bench: NewBench, point: HookPoint
) -> None:
    def stop(context: HookContext) -> HookContext:
        return context.changed(state=context.state.with_stop_signal(_signal(StopReason.STOP_REQUESTED)))

    calls: list[int] = []
    seen: list[HookContext] = []

    def driver(state: AgentState) -> str:
        calls.append(1)
        return "done"

    hooks = [Hook(point, stop), *_watching(seen, HookPoint.ON_STOP, HookPoint.AFTER_EXECUTION)]
    bench = new_bench(agent_with(*hooks, driver=driver))
    session_id = bench.submit()
    bench.run(session_id)
    assert (bench.record(session_id).status, bench.record(session_id).step_count, calls) == ("stopped", 0, [])
    assert [context.point for context in seen] == [HookPoint.ON_STOP, HookPoint.AFTER_EXECUTION]
    (signal,) = bench.execution(session_id).continuation.stop_signals
    assert (dict(signal.context), signal.source) == ({"a": 1}, "hook")
    assert bench.events(session_id)[-1] == "execution_stopped"


def test_a_stop_signal_after_a_step_keeps_the_step(new_bench: NewBench) -> None:
    def stop(context: HookContext) -> HookContext:
        return context.changed(state=context.state.with_stop_signal(_signal(StopReason.STOP_REQUESTED)))

    record = new_bench(agent_with(Hook(HookPoint.AFTER_STEP, stop))).ran()
    assert (record.status, record.stop_reason, record.step_count) == ("stopped", "stop_requested", 1)


def _endless(state: AgentState) -> Any:
    return CallTool("echo", text=str(state.step_count))


def _override(context: HookContext) -> HookContext:
    return context.changed(state=context.state.with_execution_continued())


def test_a_request_to_continue_has_to_be_renewed_at_each_step(new_bench: NewBench) -> None:
    def once(context: HookContext) -> HookContext | None:
        return _override(context) if context.step == 2 else None

    bench = new_bench(
        agent_with(Hook(HookPoint.AFTER_STEP, once), driver=_endless, budget=ExecutionBudget(max_steps=2))
    )
    record = bench.ran()
    # It held until the end of step 2; the next look at the signals stops.
    assert (record.status, record.stop_reason, record.step_count) == ("stopped", "steps_limit", 2)


def test_a_request_to_continue_that_is_renewed_overrides_a_limit_and_its_signal_stays(new_bench: NewBench) -> None:
    def while_few(context: HookContext) -> HookContext | None:
        return _override(context) if context.step < 5 else None

    hook = Hook(HookPoint.BEFORE_STEP, while_few)
    bench = new_bench(agent_with(hook, driver=_endless, budget=ExecutionBudget(max_steps=2)))
    session_id = bench.submit()
    bench.run(session_id)
    record = bench.record(session_id)
    assert (record.status, record.stop_reason, record.step_count) == ("stopped", "steps_limit", 4)
    assert len(bench.execution(session_id).continuation.stop_signals) == 1, "the same limit, again and again"


def test_a_request_to_continue_goes_on_after_an_answer_without_calls(new_bench: NewBench) -> None:
    def insist(context: HookContext) -> HookContext | None:
        return _override(context) if context.step == 1 else None

    bench = new_bench(agent_with(Hook(HookPoint.AFTER_STEP, insist), driver=lambda state: f"draft {state.step_count}"))
    record = bench.ran()
    assert (record.status, record.step_count, record.final_response) == ("completed", 2, "draft 1")


# --- crashes ------------------------------------------------------------------------------------------------------


def test_hooks_run_again_with_their_step_and_their_changes_are_stored_once(new_bench: NewBench) -> None:
    runs: list[int] = []

    def add(context: HookContext) -> HookContext:
        runs.append(context.step)
        return context.changed(state=context.state.with_user_message("note"))

    def driver(state: AgentState) -> Any:
        return CallTool("fragile") if not state.step_count else "done"

    bench = new_bench(agent_with(Hook(HookPoint.BEFORE_EXECUTION, add), driver=driver, tools=[fragile_tool()]))
    session_id = bench.submit()
    bench.worker_died(session_id)
    bench.run(session_id)
    assert runs == [1, 1]
    contents = [message.content for message in bench.state(session_id).messages]
    assert contents.count("note") == 1


def test_changes_of_hooks_survive_a_conflict(new_bench: NewBench) -> None:
    """Somebody saves the session while the driver is asked: everything is applied again to what is stored now."""
    points = [HookPoint.BEFORE_EXECUTION, HookPoint.BEFORE_STEP, HookPoint.BEFORE_INFERENCE, HookPoint.AFTER_INFERENCE]

    def note(context: HookContext) -> HookContext:
        return context.changed(state=context.state.with_metadata(context.point.value, True))

    calls: list[int] = []

    def driver(state: AgentState) -> str:
        calls.append(1)
        bench.save_beside(session_id, lambda stored: stored.with_metadata("beside", True))
        return "done"

    bench = new_bench(agent_with(*(Hook(point, note) for point in points), driver=driver))
    session_id = bench.submit()
    bench.run(session_id)
    state = bench.state(session_id)
    assert set(state.metadata) == {"beside", *(point.value for point in points)}
    assert (calls, state.final_response) == ([1], "done")
