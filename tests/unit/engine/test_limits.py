"""Limits that the engine keeps: on answers, on calls, on results, on metadata, on the session."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import AuxiliaryRequest, CallTool, ScriptedDriver
from celery_agents.worker.engine import retry_transition, stop_transition
from celery_agents.worker.errors import DriverError, InvalidInput
from celery_agents.worker.hooks import Hook, HookPoint
from celery_agents.worker.known_secrets import current_matcher
from celery_agents.worker.state import ExecutionState, InferenceResponse, StopReason, StopSignal, ToolOutcome
from celery_agents.worker.tools import StopExecution, ToolContext, tool

from support.engine import Bench
from support.store_client import StoreClient

NewBench = Callable[..., Bench]
ASKED: list[int] = []


@tool(effect="pure")
def look(number: int = 0) -> str:
    """Look."""
    ASKED.append(number)
    return "seen"


def ended(bench: Bench) -> ExecutionState:
    session = bench.submit()
    bench.run(session)
    return bench.execution(session)


class RawDriver(ScriptedDriver):
    """A driver of somebody's own, which knows no limit."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(["never"])
        self._raw = raw
        self.asked = 0

    def infer(self, request: Any) -> bytes:
        self.asked += 1
        return self._raw


@pytest.mark.parametrize("answer", ["x" * 3_000, InferenceResponse(content="x" * 3_000)], ids=["text", "response"])
def test_an_answer_that_is_too_large_fails_the_execution_and_is_not_asked_for_again(
    new_bench: NewBench, answer: Any
) -> None:
    asked: list[str] = []
    agent = Agent("a", driver=lambda state: asked.append("once") or answer)
    bench = new_bench(agent, max_answer_bytes=2_000)
    execution = ended(bench)
    assert execution.status == "failed"
    assert "CELERY_AGENTS_MAX_ANSWER_BYTES" in execution.all_errors()[-1].message
    assert asked == ["once"]


def test_a_driver_of_somebody_s_own_is_held_to_the_limit_before_the_journal(new_bench: NewBench) -> None:
    driver = RawDriver(InferenceResponse(content="x" * 3_000).to_json())
    bench = new_bench(Agent("a", driver=driver), max_answer_bytes=2_000)
    execution = ended(bench)
    assert (execution.status, driver.asked) == ("failed", 1)
    assert execution.all_errors()[-1].kind == "answer_too_large"


def test_an_auxiliary_answer_is_held_to_the_limit_too(new_bench: NewBench) -> None:
    refused: list[str] = []

    def ask(context: Any) -> Any:
        try:
            context.ask_model("k", AuxiliaryRequest(()))
        except DriverError as error:
            refused.append(error.kind)
        return context

    driver = ScriptedDriver(["done"], auxiliary={"k": "x" * 3_000})
    bench = new_bench(Agent("a", driver=driver, hooks=[Hook(HookPoint.BEFORE_STEP, ask)]), max_answer_bytes=2_000)
    assert ended(bench).status == "completed"
    assert refused == ["answer_too_large"]


def test_calls_beyond_the_limit_do_not_run_and_the_model_reads_why(new_bench: NewBench) -> None:
    ASKED.clear()
    driver = ScriptedDriver([[CallTool("look", number=n) for n in range(1_000)], "done"])
    bench = new_bench(Agent("a", driver=driver, tools=[look]), max_calls=5)
    execution = ended(bench)
    assert execution.status == "completed"
    assert sorted(ASKED) == [0, 1, 2, 3, 4]
    calls = execution.step_executions[0].step.tool_executions
    assert len(calls) == 1_000
    assert [each.outcome for each in calls[:6]] == [ToolOutcome.OK] * 5 + [ToolOutcome.ERROR]
    assert calls[999].error is not None
    assert "5 calls" in calls[999].error.message


def test_a_result_is_never_longer_than_the_worker_allows_whatever_its_tool_says(new_bench: NewBench) -> None:
    @tool(effect="pure", max_result_chars=100_000_000)
    def dump() -> str:
        """Return a lot."""
        return "x" * 5_000_000

    driver = ScriptedDriver([CallTool("dump"), "done"])
    bench = new_bench(Agent("a", driver=driver, tools=[dump]), max_result_bytes=10_000)
    (call,) = ended(bench).step_executions[0].step.tool_executions
    assert call.value == "x" * 10_000 + "[… 4990000 characters left out]"


def test_the_setting_holds_for_tools_that_set_no_limit_of_their_own(new_bench: NewBench) -> None:
    @tool(effect="pure")
    def dump() -> str:
        """Return a lot."""
        return "x" * 5_000

    driver = ScriptedDriver([CallTool("dump"), "done"])
    bench = new_bench(Agent("a", driver=driver, tools=[dump]), max_result_chars=1_000)
    (call,) = ended(bench).step_executions[0].step.tool_executions
    assert call.value == "x" * 1_000 + "[… 4000 characters left out]"


def test_the_reasons_of_a_stop_are_bounded(new_bench: NewBench) -> None:
    @tool(effect="pure")
    def end() -> str:
        """End it."""
        raise StopExecution(
            StopSignal(reason=StopReason.STOP_REQUESTED, message="m" * 100_000, context={"a": "x" * 100_000})
        )

    bench = new_bench(Agent("a", driver=ScriptedDriver([CallTool("end")]), tools=[end]))
    signal = ended(bench).stop_signal
    assert signal is not None
    assert len(signal.to_json()) < 12_000


def test_metadata_is_limited_all_together(new_bench: NewBench) -> None:
    bench = new_bench(Agent("a", driver=ScriptedDriver(["done"])))
    session = bench.submit()
    bench.run(session)
    loaded = bench.state(session)
    for number in range(9):
        loaded = loaded.with_metadata(f"k{number}", "x" * 100_000)
    with pytest.raises(InvalidInput, match="metadata"):
        loaded.with_metadata("k9", "x" * 100_000)
    assert loaded.with_metadata("k8", "small").context.metadata["k8"] == "small"
    with pytest.raises(InvalidInput, match="metadata"):
        bench.write_metadata(session, "k", "x" * 1_100_000)


def test_metadata_that_finds_no_room_at_the_commit_are_refused_in_an_event(new_bench: NewBench) -> None:
    def answer(state: Any) -> str:
        for number in range(3):
            bench.write_metadata(session, f"k{number}", "x" * 400_000)
        return "done"

    bench = new_bench(Agent("a", driver=answer))
    session = bench.submit()
    bench.run(session)
    assert set(bench.state(session).context.metadata) == {"k0", "k1"}
    refused = [event.data["key"] for event in bench.store.sessions.events(session) if event.type == "metadata_refused"]
    assert refused == ["k2"]
    assert bench.record(session).status == "completed"


@pytest.mark.parametrize(("levels", "is_refused"), [(99, False), (100, True)])
def test_metadata_nest_as_deep_beside_a_step_as_between_two(new_bench: NewBench, levels: int, is_refused: bool) -> None:
    """A level more than all metadata may have was taken into the inbox, and parked the session at its commit."""
    value = functools.reduce(lambda inner, _: [inner], range(levels), cast("Any", 1))

    def answer(state: Any) -> str:
        with pytest.raises(InvalidInput) if is_refused else contextlib.nullcontext():
            StoreClient(bench.store).write_metadata(session, "k", value)
        return "done"

    bench = new_bench(Agent("a", driver=answer))
    session = bench.submit()
    bench.run(session)
    assert bench.record(session).status == "completed"
    assert ("k" in bench.state(session).context.metadata) is not is_refused


def test_a_session_that_has_grown_too_large_fails_with_advice(new_bench: NewBench) -> None:
    asked: list[int] = []

    def answer(state: Any) -> Any:
        asked.append(state.step_count)
        return ["x" * 60_000, CallTool("look")]

    bench = new_bench(Agent("a", driver=answer, tools=[look]), max_session_bytes=200_000)
    execution = ended(bench)
    assert execution.status == "failed"
    assert "CELERY_AGENTS_MAX_SESSION_BYTES" in execution.all_errors()[-1].message
    assert len(asked) < 10


def test_the_event_of_a_step_names_no_more_than_a_hundred_tools(new_bench: NewBench) -> None:
    driver = ScriptedDriver([[CallTool("n" * 1_000) for _ in range(300)], "done"])
    bench = new_bench(Agent("a", driver=driver, tools=[look]))
    session = bench.submit()
    bench.run(session)
    event = next(event for event in bench.store.sessions.events(session) if event.type == "step_committed")
    assert (len(event.data["tools"]), event.data["more_tools"]) == (100, 200)
    assert len(json.dumps(dict(event.data))) < 16_000


# --- secrets ------------------------------------------------------------------------------------------------------


@tool(effect="keyed")
def environment(ctx: ToolContext) -> dict[str, str]:
    """Return a secret."""
    return {"ACME_TOKEN": "not-a-real-token"}


def test_a_result_is_stored_without_the_secrets_of_the_worker(
    new_bench: NewBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_TOKEN", "not-a-real-token")
    current_matcher(fresh=True)
    bench = new_bench(Agent("a", driver=ScriptedDriver([CallTool("environment"), "done"]), tools=[environment]))
    (call,) = ended(bench).step_executions[0].step.tool_executions
    assert call.value == {"ACME_TOKEN": "[redacted]"}


def test_a_tool_may_return_secrets_on_purpose(new_bench: NewBench, monkeypatch: pytest.MonkeyPatch) -> None:
    @tool(effect="pure", returns_secrets=True)
    def issue() -> str:
        """Issue a token."""
        return "not-a-real-token"

    monkeypatch.setenv("ACME_TOKEN", "not-a-real-token")
    current_matcher(fresh=True)
    bench = new_bench(Agent("a", driver=ScriptedDriver([CallTool("issue"), "done"]), tools=[issue]))
    (call,) = ended(bench).step_executions[0].step.tool_executions
    assert call.value == "not-a-real-token"


def test_what_a_model_repeats_of_a_secret_is_not_in_an_event(
    new_bench: NewBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_TOKEN", "not-a-real-token")
    current_matcher(fresh=True)
    bench = new_bench(Agent("a", driver=ScriptedDriver(["it is not-a-real-token"])))
    session = bench.submit()
    bench.run(session)
    assert not any("not-a-real" in json.dumps(dict(event.data)) for event in bench.store.sessions.events(session))


# --- who asked ----------------------------------------------------------------------------------------------------


def test_who_stopped_and_retried_is_in_the_events(new_bench: NewBench) -> None:
    bench = new_bench(Agent("a", driver=ScriptedDriver(["done"])))
    session = bench.submit()
    bench.store.sessions.stop(session, None, stop_transition, by="ops@desk")
    events = {event.type: dict(event.data) for event in bench.store.sessions.events(session)}
    assert events["stop_requested"] == {"by": "ops@desk"}
    bench.store.sessions.retry(session, retry_transition(None, "lead"), by="lead")
    events = {event.type: dict(event.data) for event in bench.store.sessions.events(session)}
    assert events["step_retried"]["by"] == "lead"
