"""Tool calls of a step: order, bounds, time, and what the model reads of those that fail (I9 to I11, P13)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.engine import Done, RetryLater
from celery_agents.worker.engine.leases import Interruption
from celery_agents.worker.state import (
    AgentState,
    InferenceResponse,
    InferenceUsage,
    Message,
    Role,
    StopReason,
    ToolCall,
    ToolOutcome,
)
from celery_agents.worker.state.execution.answers import MESSAGE_CAME_FIRST
from celery_agents.worker.tools import StopExecution, ToolContext, tool

from support.engine import Bench, calling, executions, fragile_tool, shown
from support.wait import wait_until

NewBench = Callable[..., Bench]


def ran(bench: Bench) -> str:
    session_id = bench.submit()
    bench.run(session_id)
    return session_id


# --- order and bounds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["pure", "keyed", "unsafe"])
def test_results_keep_the_order_of_the_calls_whatever_ended_first(new_bench: NewBench, effect: str) -> None:
    first_may_end = threading.Event()
    ended: list[str] = []

    @tool(effect=effect)  # type: ignore[call-overload]
    def plain(name: str) -> str:
        """Take a while."""
        assert first_may_end.wait(10)
        ended.append(name)
        return name

    @tool(effect=effect)  # type: ignore[call-overload]
    async def quick(name: str) -> str:
        """Take no time."""
        ended.append(name)
        first_may_end.set()
        return name

    bench = new_bench(calling(CallTool("plain", name="a"), CallTool("quick", name="b"), tools=[plain, quick]))
    session_id = ran(bench)
    assert ended == ["b", "a"]
    assert [made.value for made in executions(bench, session_id)] == ["a", "b"]
    assert shown(bench, session_id) == ["a", "b"]


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_no_more_calls_than_allowed_run_side_by_side(new_bench: NewBench, is_async: bool) -> None:
    lock = threading.Lock()
    running: list[int] = [0]
    most: list[int] = [0]

    def begin() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])

    def end() -> None:
        with lock:
            running[0] -= 1

    @tool(effect="pure")
    def plain(n: int) -> int:
        """Count who runs."""
        begin()
        time.sleep(0.02)
        end()
        return n

    @tool(effect="pure", name="plain")
    async def waiting(n: int) -> int:
        """Count who runs."""
        begin()
        await asyncio.sleep(0.02)
        end()
        return n

    calls = [CallTool("plain", n=n) for n in range(10)]
    bench = new_bench(calling(*calls, tools=[waiting if is_async else plain], max_parallel_tools=3))
    session_id = ran(bench)
    assert [made.value for made in executions(bench, session_id)] == list(range(10))
    assert most[0] == 3


def test_a_failing_call_does_no_harm_to_its_neighbours(new_bench: NewBench) -> None:
    @tool(effect="unsafe")
    def work(n: int) -> int:
        """Fail at the second."""
        if n == 1:
            raise ValueError("no second")
        return n

    bench = new_bench(calling(*(CallTool("work", n=n) for n in range(3)), tools=[work]))
    session_id = ran(bench)
    assert [made.outcome.value for made in executions(bench, session_id)] == ["ok", "error", "ok"]
    assert bench.record(session_id).status == "completed"


# --- what the model reads -----------------------------------------------------------------------------------------


@tool(effect="pure")
def broken(how: str = "plain") -> str:
    """Raise."""
    if how == "secret":
        raise RuntimeError("401 for api_key=sk-abcdefgh12345678 at https://me:hunter2hunter2@host/x")
    if how == "multiline":
        raise RuntimeError("first line\nsecond line with internals")
    if how == "mute":
        raise RuntimeError
    if how == "exit":
        raise SystemExit(3)
    if how == "chained":
        raise RuntimeError("no such invoice") from KeyError("42")
    raise RuntimeError("the disk is full")


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("plain", "the disk is full"),
        ("multiline", "first line"),
        ("mute", "RuntimeError"),
        ("exit", "SystemExit"),
        ("chained", "no such invoice"),
        ("secret", "[redacted]"),
    ],
)
def test_the_model_reads_what_a_tool_raised_without_secrets(new_bench: NewBench, how: str, text: str) -> None:
    bench = new_bench(calling(CallTool("broken", how=how), tools=[broken]))
    session_id = ran(bench)
    (result,) = shown(bench, session_id)
    assert text in result
    everything = bench.state(session_id).to_json().decode()
    for leaked in ("sk-abcdefgh", "hunter2", "internals"):
        assert leaked not in everything
    assert bench.record(session_id).status == "completed"


@tool(effect="unsafe")
def typed(city: str, days: int = 3) -> str:
    """Forecast.

    Args:
        city: Where.
        days: How many.
    """
    return f"{city} {days}"


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (ToolCall(id="x", name="typedd", args={"city": "Paris"}), "unknown_tool", ["typedd", "typed"]),
        (ToolCall(id="x", name="typed", args={}), "invalid_arguments", ["city"]),
        (ToolCall(id="x", name="typed", args={"city": "Paris", "more": 1}), "invalid_arguments", ["more"]),
        (ToolCall(id="x", name="typed", args={"city": "Paris", "days": "many"}), "invalid_arguments", ["days"]),
        (ToolCall.from_text("x", "typed", '{"city": "Par'), "invalid_arguments", []),
        (ToolCall.from_text("x", "typed", "[1, 2]"), "invalid_arguments", []),
        (ToolCall.from_text("x", "typed", ""), "invalid_arguments", ["city"]),
    ],
)
def test_a_call_that_cannot_be_made_is_an_error_the_model_can_read_and_the_loop_goes_on(
    new_bench: NewBench, call: ToolCall, kind: str, words: list[str]
) -> None:
    bench = new_bench(calling(call, CallTool("typed", city="Rome"), tools=[typed]))
    session_id = ran(bench)
    refused, good = executions(bench, session_id)
    assert refused.error is not None
    assert (refused.outcome, refused.error.kind) == (ToolOutcome.ERROR, kind)
    assert (good.outcome, good.value) == (ToolOutcome.OK, "Rome 3")
    for word in words:
        assert word in shown(bench, session_id)[0]
    assert bench.record(session_id).status == "completed"


def test_every_call_has_its_result_with_its_id_in_the_history(new_bench: NewBench) -> None:
    calls = (
        ToolCall(id="one", name="typed", args={"city": "Paris"}),
        ToolCall(id="two", name="nothing"),
        ToolCall.from_text("three", "typed", "{"),
    )
    bench = new_bench(calling(*calls, tools=[typed]))
    session_id = ran(bench)
    messages = bench.state(session_id).store.section().messages
    asked = next(message for message in messages if message.tool_calls)
    assert [call.id for call in asked.tool_calls] == ["one", "two", "three"]
    assert [message.tool_call_id for message in messages if message.role is Role.TOOL] == ["one", "two", "three"]


def test_the_driver_never_sees_a_call_without_result_or_a_result_without_call(new_bench: NewBench) -> None:
    seen: list[tuple[Message, ...]] = []

    class Driver:
        name = "own"
        is_async = False

        def infer(self, request: Any) -> bytes:
            seen.append(request.messages)
            return InferenceResponse(content="done").to_json()

        def parse(self, raw: bytes) -> InferenceResponse:
            return InferenceResponse.from_json(raw)

        def check(self) -> None: ...

        def knows_price(self, settings: object = None) -> bool:
            return True

        async def aclose(self) -> None: ...

    bench = new_bench(Agent("paired", driver=Driver(), tools=[typed]))
    call = ToolCall(id="lost", name="typed", args={"city": "Rome"})
    orphans = [
        Message.assistant("thinking", [call]),
        Message(role=Role.TOOL, content="nobody asked", tool_call_id="other"),
    ]
    ran_id = bench.submit(state=AgentState.fresh().with_messages_added(orphans))
    bench.run(ran_id)
    (messages,) = seen
    assert [message.content for message in messages if message.role is not Role.USER] == ["thinking"]
    assert not any(message.tool_calls for message in messages)


@pytest.mark.parametrize(
    ("value", "text"),
    [(b"bytes", "bytes"), (object(), "object"), (iter(()), "iterator")],
    ids=["bytes", "object", "iterator"],
)
def test_a_result_that_is_no_json_says_so_and_that_the_tool_has_run(new_bench: NewBench, value: Any, text: str) -> None:
    @tool(effect="unsafe")
    def odd() -> Any:
        """Give something odd."""
        return value

    bench = new_bench(calling(CallTool("odd"), tools=[odd]))
    session_id = ran(bench)
    (made,) = executions(bench, session_id)
    assert made.error is not None
    assert made.error.kind == "unusable_result"
    assert "the tool has run" in made.error.message
    assert text in made.error.message


def test_a_long_result_is_cut_with_a_marker(new_bench: NewBench) -> None:
    @tool(effect="pure", max_result_chars=100)
    def long() -> str:
        """Talk."""
        return "x" * 1000

    bench = new_bench(calling(CallTool("long"), tools=[long]))
    assert shown(bench, ran(bench)) == ["x" * 100 + "[… 900 characters left out]"]


# --- time ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("effect", "outcome"), [("pure", "error"), ("keyed", "unknown"), ("unsafe", "unknown")])
def test_an_async_tool_that_takes_too_long_is_cancelled_and_the_model_reads_it(
    new_bench: NewBench, effect: str, outcome: str
) -> None:
    cancelled: list[bool] = []

    @tool(effect=effect, timeout=0.05)  # type: ignore[call-overload]
    async def slow() -> str:
        """Take too long."""
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return "late"

    bench = new_bench(calling(CallTool("slow"), tools=[slow]))
    session_id = ran(bench)
    (made,) = executions(bench, session_id)
    assert (made.outcome.value, cancelled) == (outcome, [True])
    assert "no result within 0.05 s" in shown(bench, session_id)[0]
    assert bench.record(session_id).status == "completed"


def test_the_timeout_of_the_agent_holds_for_tools_without_their_own(new_bench: NewBench) -> None:
    deadlines: dict[str, float] = {}

    @tool(effect="pure")
    def without(ctx: ToolContext) -> None:
        """Have no timeout."""
        deadlines["without"] = ctx.deadline.timestamp()

    @tool(effect="pure", timeout=7)
    def own(ctx: ToolContext) -> None:
        """Have one."""
        deadlines["own"] = ctx.deadline.timestamp()

    bench = new_bench(calling(CallTool("without"), CallTool("own"), tools=[without, own], tool_timeout=20))
    began = bench.clock.now.timestamp()
    ran(bench)
    assert {name: round(moment - began) for name, moment in deadlines.items()} == {"without": 20, "own": 7}


def test_the_time_that_a_tool_has_left_does_not_depend_on_the_clock_of_its_machine(new_bench: NewBench) -> None:
    """The bench has noon of another year as the time of Redis."""
    left: list[float] = []

    @tool(effect="pure", timeout=7)
    def looks(ctx: ToolContext) -> None:
        """Look at the time that is left."""
        left.append(ctx.remaining_seconds())
        bench.clock.go_on(5.0)
        left.append(ctx.remaining_seconds())

    bench = new_bench(calling(CallTool("looks"), tools=[looks]))
    assert abs((bench.clock.now - datetime.now(UTC)).total_seconds()) > 3600
    ran(bench)
    assert [round(each, 1) for each in left] == [7.0, 2.0]


def test_plain_tools_side_by_side_each_have_their_own_time(new_bench: NewBench) -> None:
    """The late one is left behind and counted; the others are not kept from ending."""
    release = threading.Event()

    @tool(effect="pure", timeout=0.05)
    def stuck() -> str:
        """Do not react."""
        bench.clock.go_on(1.0)  # its time is over
        assert release.wait(20)
        return "late"

    @tool(effect="pure", timeout=1000)
    def patient() -> str:
        """Take long, within its time."""
        wait_until(lambda: bench.keeper.abandoned == 1, "the stuck one is given up")
        return "in time"

    bench = new_bench(calling(CallTool("stuck"), CallTool("patient"), tools=[stuck, patient]))
    session_id = ran(bench)
    assert bench.keeper.abandoned == 1
    release.set()
    wait_until(lambda: bench.keeper.abandoned == 0, "its thread has returned")
    stuck_one, patient_one = executions(bench, session_id)
    assert stuck_one.error is not None
    assert (stuck_one.outcome, stuck_one.error.kind) == (ToolOutcome.ERROR, "timeout")
    assert patient_one.value == "in time"


@pytest.mark.parametrize(("effect", "outcome"), [("pure", "error"), ("keyed", "unknown"), ("unsafe", "unknown")])
def test_a_single_plain_tool_that_takes_too_long_is_given_up_and_the_next_worker_goes_on(
    new_bench: NewBench, effect: str, outcome: str
) -> None:
    """Its thread cannot be stopped: its outcome is journaled in its absence, and what it returns counts for nothing."""
    release, calls = threading.Event(), [0]

    @tool(effect=effect, timeout=5)  # type: ignore[call-overload]
    def stuck() -> str:
        """Do not react."""
        calls[0] += 1
        assert release.wait(20)
        return "late"

    bench = new_bench(calling(CallTool("stuck"), tools=[stuck]))
    session_id = bench.submit()
    outcomes: list[Any] = []
    thread = threading.Thread(target=lambda: outcomes.append(bench.step(session_id)))
    thread.start()
    wait_until(lambda: calls[0] == 1, "the tool runs")
    bench.clock.go_on(5.1)
    bench.keeper.tick()
    assert bench.keeper.abandoned == 0, "it has a moment to end by itself"
    bench.clock.go_on(0.6)
    bench.keeper.tick()
    assert bench.keeper.abandoned == 1
    bench.run(session_id)
    (made,) = executions(bench, session_id)
    assert (made.outcome.value, calls[0]) == (outcome, 1)
    assert "no result within 5 s" in shown(bench, session_id)[0]
    record = bench.record(session_id)
    assert (record.status, record.final_response) == ("completed", "done")
    release.set()
    thread.join(10)
    assert [type(outcome).__name__ for outcome in outcomes] == ["TakenOver"]
    assert bench.record(session_id) == record


def test_a_plain_tool_that_ends_a_little_late_is_believed_and_the_step_goes_on(new_bench: NewBench) -> None:
    began, noticed = threading.Event(), threading.Event()

    @tool(effect="unsafe", timeout=5)
    def late(ctx: ToolContext) -> str:
        """End when asked to."""
        began.set()
        wait_until(ctx.cancelled, "it is told that its time is over")
        noticed.set()
        return "just in time"

    @tool(effect="unsafe")
    def other() -> str:
        """Come after it."""
        return "other"

    bench = new_bench(calling(*map(CallTool, ("late", "other", "other")), tools=[late, other], max_parallel_tools=1))
    session_id = bench.submit()
    outcomes: list[Any] = []
    thread = threading.Thread(target=lambda: outcomes.append(bench.step(session_id)))
    thread.start()
    assert began.wait(10)
    bench.clock.go_on(5.1)
    while thread.is_alive() and not noticed.is_set():
        bench.keeper.tick()
    thread.join(10)
    assert isinstance(outcomes[0], Done)
    assert [made.value for made in executions(bench, session_id)] == ["just in time", "other", "other"]


# --- a stop from inside a tool ------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["pure", "unsafe"])
def test_a_tool_may_end_the_execution_and_its_step_is_recorded_with_results_and_tokens(
    new_bench: NewBench, effect: str
) -> None:
    @tool(effect=effect)  # type: ignore[call-overload]
    def finish(result: str) -> str:
        """End."""
        raise StopExecution("the customer hung up", result={"said": result}, context={"line": 3})

    @tool(effect=effect)  # type: ignore[call-overload]
    def work() -> str:
        """Work."""
        return "worked"

    def driver(state: AgentState) -> InferenceResponse:
        calls = ("work", {}), ("finish", {"result": "bye"}), ("work", {})
        return InferenceResponse(
            tool_calls=tuple(ToolCall(id=f"c{i}", name=name, args=args) for i, (name, args) in enumerate(calls)),
            usage=InferenceUsage(input=10, output=5),
        )

    bench = new_bench(Agent("ending", driver=driver, tools=[finish, work], max_parallel_tools=1))
    session_id = bench.submit()
    assert len(bench.run(session_id)) == 1
    record = bench.record(session_id)
    assert (record.status, record.stop_reason, record.stop_message, record.step_count) == (
        "stopped", "stop_requested", "the customer hung up", 1,
    )  # fmt: skip
    assert [made.value for made in executions(bench, session_id)] == ["worked", {"said": "bye"}, "worked"]
    assert record.usage["input"] == 10
    (signal,) = bench.execution(session_id).continuation.stop_signals
    assert (signal.source, dict(signal.context)) == ("finish", {"line": 3})


def test_a_tool_may_end_the_execution_as_a_success(new_bench: NewBench) -> None:
    @tool(effect="unsafe")
    def finish() -> str:
        """End."""
        raise StopExecution("all done", reason=StopReason.COMPLETED)

    record = new_bench(calling(CallTool("finish"), tools=[finish])).ran()
    assert (record.status, record.stop_reason, record.step_count) == ("completed", "completed", 1)


def test_a_stop_with_a_result_that_is_no_json_still_stops(new_bench: NewBench) -> None:
    @tool(effect="unsafe")
    def finish() -> str:
        """End."""
        raise StopExecution("enough", result=object())

    assert new_bench(calling(CallTool("finish"), tools=[finish])).ran().stop_reason == "stop_requested"


def test_a_stop_of_a_tool_survives_the_death_of_its_worker(new_bench: NewBench) -> None:
    ends = [0]

    @tool(effect="unsafe")
    def finish() -> str:
        """End."""
        ends[0] += 1
        raise StopExecution("once")

    tools = [finish, fragile_tool()]
    bench = new_bench(calling(CallTool("finish"), CallTool("fragile"), tools=tools, max_parallel_tools=1))
    session_id = bench.submit()
    bench.worker_died(session_id)
    bench.run(session_id)
    record = bench.record(session_id)
    assert (record.status, record.stop_reason, record.step_count, ends) == ("stopped", "stop_requested", 1, [1])


# --- crashes ------------------------------------------------------------------------------------------------------


def test_an_error_of_a_tool_in_the_last_step_fails_the_execution_and_one_it_recovered_from_does_not(
    new_bench: NewBench,
) -> None:
    @tool(effect="pure")
    def enough() -> str:
        """End the execution."""
        raise StopExecution("enough")

    recovered = new_bench(calling(CallTool("broken"), tools=[broken])).ran()
    assert recovered.status == "completed"
    assert any("disk is full" in error for error in recovered.errors), "the errors stay listed"
    last = new_bench(calling(CallTool("broken"), CallTool("enough"), tools=[broken, enough])).ran()
    assert last.status == "failed"


# --- what a worker leaves to another one, or off ------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["pure", "keyed", "unsafe"])
def test_a_message_that_interrupts_keeps_what_has_run_and_leaves_the_other_calls_off(
    new_bench: NewBench, effect: str
) -> None:
    bench: Bench
    ran: list[str] = []

    @tool(effect=effect)  # type: ignore[call-overload]
    def look(name: str, ctx: ToolContext) -> str:
        """Look, while a message comes."""
        ran.append(name)
        bench.send(ctx.session_id, "look elsewhere", when="interrupt")
        bench.keeper.tick()
        return f"saw {name}"

    calls = [CallTool("look", name=each) for each in "abc"]
    bench = new_bench(calling(*calls, tools=[look], max_parallel_tools=1))
    session = bench.submit()
    bench.run(session)
    assert ran == ["a"]
    assert [each.outcome for each in executions(bench, session)] == [ToolOutcome.OK, *[ToolOutcome.NOT_RUN] * 2]
    assert shown(bench, session) == ["saw a", *[f"Error in tool call: {MESSAGE_CAME_FIRST}"] * 2]
    assert bench.record(session).status == "completed"


def test_a_result_that_waits_for_its_commit_is_journaled_where_the_step_goes_to_another_worker(
    new_bench: NewBench,
) -> None:
    bench: Bench
    ran: list[str] = []
    is_cut_short = threading.Event()

    @tool(effect="keyed")
    async def slow() -> str:
        """Go on while its worker is told to give its steps back."""
        ran.append("slow")
        if ran.count("slow") == 1:
            bench.keeper.interrupt_all(Interruption.DRAIN)
            try:
                await asyncio.sleep(30)
            finally:
                is_cut_short.set()
        return "slow"

    @tool(effect="keyed")
    def last() -> str:
        """End behind the other call."""
        ran.append("last")
        assert is_cut_short.wait(10)
        return "last"

    bench = new_bench(calling(CallTool("slow"), CallTool("last"), tools=[slow, last]))
    session = bench.submit()
    assert isinstance(bench.step(session), RetryLater)
    bench.run(session)
    assert sorted(ran) == ["last", "slow", "slow"]
    assert shown(bench, session) == ["slow", "last"]
