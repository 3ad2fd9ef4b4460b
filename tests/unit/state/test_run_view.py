"""`state.run`: the fields and builders of Locus on the state that is stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_agents.worker.errors import InvalidInput
from celery_agents.worker.run_state import ReasoningStep, RunReason, RunView
from celery_agents.worker.state import (
    AgentState,
    AgentStep,
    ErrorInfo,
    ExecutionBudget,
    ExecutionStatus,
    InferenceResponse,
    InferenceUsage,
    Message,
    StopReason,
    StopSignal,
    ToolExecution,
    ToolOutcome,
    join,
    split,
)

from support.states import NOON, at, call, executed

Build = Callable[[AgentState], AgentState]

BUILDERS: dict[str, Build] = {
    "with_message": lambda s: s.run.with_message(Message.assistant("…"), now=NOON),
    "with_messages": lambda s: s.run.with_messages([Message.user("a"), Message.user("b")], now=NOON),
    "with_iteration": lambda s: s.run.with_iteration(s.run.iteration + 1, now=NOON),
    "next_iteration": lambda s: s.run.next_iteration(now=NOON),
    "with_tool_execution": lambda s: s.run.with_tool_execution(executed(), now=NOON),
    "with_reasoning_step": lambda s: s.run.with_reasoning_step(ReasoningStep(iteration=1, timestamp=NOON), now=NOON),
    "with_confidence": lambda s: s.run.with_confidence(0.78, now=NOON),
    "adjust_confidence": lambda s: s.run.adjust_confidence(0.15, now=NOON),
    "with_error": lambda s: s.run.with_error("rate-limited", now=NOON),
    "with_metadata": lambda s: s.run.with_metadata("user_tz", "America/New_York", now=NOON),
    "with_token_usage": lambda s: s.run.with_token_usage(prompt_tokens=312, completion_tokens=87, now=NOON),
}


def running(budget: ExecutionBudget | None = None) -> AgentState:
    state = AgentState.fresh(now=NOON).with_execution("x1", budget or ExecutionBudget.unlimited(), now=NOON)
    return state.with_execution_started(now=NOON)


def stepped(state: AgentState, *executions: ToolExecution, text: str = "") -> AgentState:
    """The state after one more step with these calls."""
    number = state.step_count + 1
    answer = InferenceResponse(content=text, tool_calls=tuple(each.tool_call for each in executions))
    step = AgentStep.from_inference(answer, executions, number=number)
    return state.with_current_step(step, now=at(number)).with_current_step_completed(now=at(number))


# --- fields ---------------------------------------------------------------------------------------------------


def test_a_fresh_state_shows_the_defaults_of_the_document() -> None:
    run = AgentState.fresh(now=NOON).run
    assert (run.run_id, run.iteration, run.max_iterations, run.token_budget) == (None, 0, None, None)
    assert (run.confidence, run.confidence_threshold, run.confidence_history) == (0.0, 0.85, ())
    assert (run.tool_history, run.tool_loop_threshold, run.terminal_tools) == ((), 3, frozenset())
    assert (run.tool_executions, run.reasoning_steps, run.errors, run.messages) == ((), (), (), ())
    assert (run.prompt_tokens_used, run.completion_tokens_used, run.total_tokens_used, run.total_tokens) == (0, 0, 0, 0)
    assert (run.reason, run.success) == (None, False)


def test_a_run_has_the_id_of_its_execution_and_the_agent_keeps_its_own() -> None:
    state = running()
    again = state.with_execution_completed(now=NOON).for_next_execution(now=NOON).with_execution("x2", now=NOON)
    assert (state.run.run_id, again.run.run_id) == ("x1", "x2")
    assert state.run.agent_id == again.run.agent_id == str(state.agent_id)


def test_a_run_starts_with_its_execution_and_times_are_utc() -> None:
    state = AgentState.fresh(now=NOON)
    assert state.run.started_at == NOON
    started = state.with_execution(now=at(1)).with_execution_started(now=at(2))
    assert (started.run.started_at, started.run.updated_at) == (at(2), at(2))
    assert started.run.started_at.tzinfo is not None


def test_limits_are_those_of_the_budget() -> None:
    run = running(ExecutionBudget(max_steps=20, max_tokens=1000)).run
    assert (run.max_iterations, run.token_budget) == (20, 1000)


def test_steps_are_iterations_and_with_iteration_counts_on_from_another_number() -> None:
    state = stepped(running(), executed())
    assert state.run.iteration == 1
    assert state.run.with_iteration(7).run.iteration == 7
    assert stepped(state.run.with_iteration(7), executed()).run.iteration == 8
    assert state.run.next_iteration().run.iteration == 2
    for wrong in (-1, 2**63, 10**5000):
        with pytest.raises(InvalidInput, match=r"with_iteration\(iteration\): give a whole number, from 0"):
            state.run.with_iteration(wrong)


def test_tool_executions_are_those_of_the_steps_and_those_that_were_recorded_in_order() -> None:
    state = stepped(running(), executed(call("a", id="1")), executed(call("b", id="2")))
    state = state.run.with_tool_execution(executed(call("c", id="3")))
    before = state.run.messages
    state = stepped(state, executed(call("d", id="4")))
    assert state.run.tool_history == ("a", "b", "c", "d")
    assert [each.tool_call.id for each in state.run.tool_executions] == ["1", "2", "3", "4"]
    assert [message for message in before if message.name == "c"] == []  # recording one adds no message


def test_errors_are_messages_in_order_and_with_error_fails_nothing() -> None:
    failed = executed(outcome=ToolOutcome.ERROR, error=ErrorInfo(kind="timeout", message="too slow"))
    state = stepped(running(), failed).run.with_error("rate-limited")
    state = stepped(state, failed)
    assert state.run.errors == ("too slow", "rate-limited", "too slow")
    done = stepped(state, text="done").with_execution_completed(now=at(9))
    assert done.status is ExecutionStatus.COMPLETED


def test_tokens_are_counted_by_kind_and_the_cache_apart() -> None:
    usage = InferenceUsage(input=10, output=5, reasoning=2, cache_write=100, cache_read=200)
    run = running().with_usage(usage).run
    assert (run.prompt_tokens_used, run.completion_tokens_used, run.total_tokens_used) == (10, 7, 17)
    assert (run.cache_creation_tokens_used, run.cache_read_tokens_used) == (100, 200)
    assert run.total_tokens == 17


def test_before_any_token_is_counted_four_characters_are_one() -> None:
    state = running().run.with_message(Message.user("x" * 40))
    state = state.run.with_message(Message.assistant("", [call(args={"city": "Paris"})]))
    assert state.run.total_tokens == (40 + len('{"city":"Paris"}')) // 4


def test_token_usage_adds_up_and_refuses_less_than_none() -> None:
    state = running().run.with_token_usage(312, 87).run.with_token_usage(prompt_tokens=1)
    assert (state.run.prompt_tokens_used, state.run.completion_tokens_used, state.run.total_tokens_used) == (
        313,
        87,
        400,
    )
    with pytest.raises(InvalidInput, match="input"):
        state.run.with_token_usage(-1)


# --- confidence -----------------------------------------------------------------------------------------------


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_confidence_is_cut_to_0_to_1_and_goes_into_the_history(value: float) -> None:
    run = running().run.with_confidence(0.5).run.with_confidence(value).run
    assert run.confidence == min(1.0, max(0.0, value))
    assert run.confidence_history == (0.5, run.confidence)


@given(st.floats(0, 1), st.floats(-1, 1))
def test_an_increase_is_diminished_exactly_once_and_a_decrease_never(start: float, delta: float) -> None:
    run = running().run.with_confidence(start).run
    wanted = start + (delta * (1 - start) if delta > 0 else delta)
    assert run.state.run.adjust_confidence(delta).run.confidence == min(1.0, max(0.0, wanted))
    assert run.state.run.adjust_confidence(delta, diminishing=False).run.confidence == min(1.0, max(0.0, start + delta))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, "0.5", True, None])
def test_a_confidence_that_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match=r"with_confidence\(confidence\): give a finite number"):
        running().run.with_confidence(value)


# --- builders -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILDERS)
def test_a_builder_leaves_the_state_as_it_was(name: str) -> None:
    state = stepped(running(), executed()).run.with_confidence(0.4, now=at(2))
    before = state.to_json()
    after = BUILDERS[name](state)
    assert state.to_json() == before
    assert after != state
    assert after.updated_at >= state.updated_at
    assert after.created_at == state.created_at


def test_metadata_of_a_new_state_cannot_change_the_old_one() -> None:
    old = AgentState.fresh(metadata={"a": {"b": 1}})
    new = old.run.with_metadata("c", 2)
    with pytest.raises(TypeError, match="cannot be changed"):
        new.run.metadata["x"] = 1
    assert (dict(old.run.metadata), new.run.metadata["c"]) == ({"a": {"b": 1}}, 2)


def test_tuples_take_no_further_message() -> None:
    with pytest.raises(AttributeError, match="append"):
        running().run.messages.append(Message.user("x"))  # type: ignore[attr-defined]


def test_with_messages_of_the_view_appends_and_that_of_the_state_replaces() -> None:
    state = running().run.with_messages([Message.user("a")]).run.with_messages([Message.user("b")])
    assert [message.content for message in state.run.messages] == ["a", "b"]
    assert [message.content for message in state.with_messages([Message.user("c")]).run.messages] == ["c"]


@given(st.lists(st.sampled_from(sorted(BUILDERS)), max_size=8))
def test_any_chain_of_builders_comes_back_from_its_checkpoint_and_from_the_store(names: list[str]) -> None:
    state = running()
    for name in names:
        state = BUILDERS[name](state)
    checkpoint = json.loads(json.dumps(state.run.to_checkpoint()))
    assert AgentState.from_checkpoint(checkpoint) == state
    parts = split(state)
    lists = {name: each.items for name, each in parts.lists.items()}
    again = join(parts.head, {n: s.messages for n, s in parts.sections.items()}, parts.steps, lists)
    assert again == state
    for name in (n for n in dir(RunView) if not n.startswith(("_", "with_", "next", "adjust", "to_")) and n != "state"):
        assert getattr(again.run, name) == getattr(state.run, name)


def test_metadata_that_is_no_json_is_refused_with_its_path() -> None:
    with pytest.raises(InvalidInput, match="a"):
        running().run.with_metadata("a", object())


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("max_iterations", r"ExecutionBudget\(max_steps=…\)"),
        ("token_budget", r"ExecutionBudget\(max_tokens=…\)"),
        ("confidence", "with_confidence"),
        ("confidence_threshold", r"Reflexion\(threshold=…\)"),
        ("tool_loop_threshold", r"LoopDetection\(threshold=…\)"),
        ("terminal_tools", "TerminalTools"),
        ("messages", "with_messages"),
    ],
)
def test_a_field_of_the_document_in_the_constructor_is_refused_with_what_to_write(name: str, instead: str) -> None:
    with pytest.raises(InvalidInput, match=rf"AgentState\.{name}: .*{instead}"):
        AgentState(**{name: 1})


# --- the end --------------------------------------------------------------------------------------------------


def signalled(reason: StopReason) -> AgentState:
    return running().with_stop_signal(StopSignal(reason=reason), now=NOON)


@pytest.mark.parametrize("reason", RunReason)
def test_the_reason_of_a_signal_comes_back_and_a_success_completes(reason: RunReason) -> None:
    ended = running().with_stop_signal(reason.signal("why", "here"), now=NOON).with_execution_completed(now=NOON)
    again = AgentState.from_json(ended.to_json())
    assert again.run.reason is reason
    assert again.run.success is reason.is_success
    wanted = ExecutionStatus.COMPLETED if reason.is_success else ExecutionStatus.STOPPED
    assert again.status is wanted


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (StopReason.STEPS_LIMIT_REACHED, RunReason.MAX_ITERATIONS),
        (StopReason.TOKEN_LIMIT_REACHED, RunReason.TOKEN_BUDGET),
        (StopReason.COST_LIMIT_REACHED, RunReason.TOKEN_BUDGET),
        (StopReason.TIME_LIMIT_REACHED, RunReason.TIME_BUDGET),
        (StopReason.USER_REQUESTED, RunReason.CANCELLED),
        (StopReason.HOLD_EXPIRED, RunReason.CANCELLED),
        (StopReason.STOP_REQUESTED, RunReason.INTERRUPTED),
        (StopReason.RETRY_LIMIT_REACHED, RunReason.ERROR),
    ],
)
def test_other_stops_have_a_reason_of_the_closed_set_too(given: StopReason, shown: RunReason) -> None:
    run = signalled(given).with_execution_completed(now=NOON).run
    assert (run.reason, run.success) == (shown, False)


def test_a_run_that_ends_by_its_answer_is_complete_and_one_that_failed_an_error() -> None:
    done = stepped(running(), text="done").with_execution_completed(now=NOON)
    assert (done.run.reason, done.run.success) == (RunReason.COMPLETE, True)
    failed = running().with_failure(ErrorInfo(kind="x", message="y"), now=NOON)
    assert (failed.run.reason, failed.run.success) == (RunReason.ERROR, False)
    assert running().with_execution_waiting(now=NOON).run.reason is RunReason.INTERRUPTED


def test_the_successes_are_three_and_no_tools_is_none_of_them() -> None:
    assert {each.value for each in RunReason if each.is_success} == {"complete", "terminal_tool", "confidence_met"}
    assert {each.value for each in RunReason} == {
        "complete", "terminal_tool", "confidence_met", "max_iterations", "tool_loop", "no_tools", "grounding_failed",
        "token_budget", "time_budget", "interrupted", "error", "cancelled",
    }  # fmt: skip


def test_the_next_execution_begins_with_nothing_of_the_run() -> None:
    state = running().run.with_confidence(0.9).run.with_tool_execution(executed()).run.with_error("e")
    state = state.run.with_iteration(9).run.with_reasoning_step(ReasoningStep(iteration=1, timestamp=NOON))
    run = state.with_execution_completed(now=NOON).for_next_execution(now=NOON).with_execution(now=NOON).run
    assert (run.iteration, run.confidence, run.confidence_history) == (0, 0.0, ())
    assert (run.tool_executions, run.errors, run.reasoning_steps) == ((), (), ())
