"""The document "Agent State Internals" (InstructorPHP): its examples in Python."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from celery_agents import Agent
from celery_agents.testing import script
from celery_agents.worker.errors import StateUnreadable
from celery_agents.worker.session import (
    AgentDefinition,
    InlineRunner,
    InMemorySessionStore,
    SendMessage,
    SessionRepository,
    SessionRuntime,
)
from celery_agents.worker.state import (
    AgentState,
    AgentStep,
    AgentStepType,
    ExecutionBudget,
    ExecutionContinuation,
    ExecutionState,
    ExecutionStatus,
    InferenceUsage,
    Message,
    StepExecution,
    StopReason,
    StopSignal,
    ToolExecution,
    Value,
)

from support.states import NOON, answer, at, executed, failed, final_step, running, stored_and_loaded, tool_step


def asked(text: str, state: AgentState, number: int) -> AgentStep:
    return AgentStep.from_inference(
        answer(text, usage=InferenceUsage(input=20, output=7)), number=number, inputs=state.store.extents
    )


def completed() -> AgentState:
    """An execution of a tool call and an answer, as a store gives it back."""
    state = running("hi").with_current_step(tool_step(executed()), now=at(1)).with_current_step_completed(now=at(2))
    state = state.with_current_step(asked("hello", state, 2), now=at(3))
    return stored_and_loaded(state.with_execution_completed(now=at(4)))


# --- structure ------------------------------------------------------------------------------------------------


def test_a_change_gives_another_state() -> None:
    state = AgentState.fresh()
    changed = state.with_metadata("a", 1)
    assert (state.metadata, changed.metadata) == ({}, {"a": 1})
    assert changed.updated_at >= state.updated_at
    with pytest.raises(ValidationError):
        state.execution_count = 1  # type: ignore[misc]


def test_the_object_graph_has_the_names_of_the_document() -> None:
    state = completed()
    execution = state.execution
    assert execution is not None
    (first, last) = execution.step_executions
    names: list[tuple[Value, str]] = [
        (state, "agent_id parent_agent_id created_at updated_at execution_count llm_config context execution"),
        (state.context, "store metadata system_prompt response_format"),
        (execution, "execution_id status started_at completed_at step_executions continuation"),
        (execution, "current_step_started_at current_step"),
        (execution.continuation, "stop_signals is_continuation_requested"),
        (first, "id step continuation started_at completed_at"),
        (state.steps[0], "id input_messages output_messages inference_response tool_executions errors"),
    ]
    assert [(type(value), name) for value, line in names for name in line.split() if not hasattr(value, name)] == []
    assert (first.id, last.id) == (first.step.id, last.step.id)


def test_the_session_outlives_the_execution() -> None:
    state = completed()
    following = state.for_next_execution()
    assert (following.execution, following.status) == (None, None)
    kept = ("agent_id", "parent_agent_id", "created_at", "execution_count", "llm_config", "context")
    assert all(getattr(following, name) == getattr(state, name) for name in kept)


# --- steps ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (tool_step(failed()), AgentStepType.ERROR),
        (tool_step(executed()), AgentStepType.TOOL_EXECUTION),
        (final_step("hello"), AgentStepType.FINAL_RESPONSE),
    ],
)
def test_the_type_of_a_step_is_derived(step: AgentStep, kind: AgentStepType) -> None:
    assert step.step_type is kind


def test_a_step_has_what_the_model_saw_and_what_it_said() -> None:
    state = completed()
    for last in (state.last_step, state.current_step_or_last, state.steps[-1]):
        assert last is not None
        assert [each.content for each in last.input_messages] == ["hi", "", "sunny"]
        assert [each.content for each in last.output_messages] == ["hello"]


def test_the_current_step_has_its_input_messages_too() -> None:
    state = running("hi")
    state = state.with_current_step(asked("hello", state, 1))
    assert state.current_step is not None
    assert [each.content for each in state.current_step.input_messages] == ["hi"]


def test_a_step_of_no_state_says_so() -> None:
    with pytest.raises(StateUnreadable, match="belongs to no state"):
        _ = final_step().input_messages


def test_a_step_that_a_state_shows_is_the_step() -> None:
    state = completed()
    assert state.execution is not None
    stored = tuple(each.step for each in state.execution.step_executions)
    assert state.steps == stored
    assert [each.to_json() for each in state.steps] == [each.to_json() for each in stored]


def test_messages_of_a_replaced_section_are_gone_by_name() -> None:
    state = completed().with_messages([Message.user("anew")])
    assert state.last_step is not None
    with pytest.raises(StateUnreadable, match="inputs of step 2"):
        _ = state.last_step.input_messages


def test_output_messages_are_tagged_and_the_answer_is_no_trace() -> None:
    state = completed()
    tags = [dict(each.metadata) for each in state.store.section().messages[1:]]
    assert all({"step_id", "execution_id", "agent_id"} <= each.keys() for each in tags)
    assert ["is_trace" in each for each in tags] == [True, True, False]


# --- accessors ------------------------------------------------------------------------------------------------


def test_the_key_accessors_of_the_document() -> None:
    state = completed()
    # Identity and timing
    assert str(state.agent_id)
    assert state.parent_agent_id is None
    assert (state.created_at, state.updated_at) == (NOON, at(4))
    assert state.execution_count == 1
    assert state.execution_duration() == 4
    # Context
    assert [each.content for each in state.messages] == ["hi", "", "sunny", "hello"]
    assert len(state.store.section().messages) == 4
    assert state.metadata == {}
    assert state.context.system_prompt == "Be brief."
    # Execution state
    assert state.status is ExecutionStatus.COMPLETED
    assert state.execution is not None
    assert str(state.execution.execution_id)
    assert state.step_count == len(state.steps) == 2
    assert state.last_step == state.steps[-1]
    assert state.last_step_type is AgentStepType.FINAL_RESPONSE
    assert state.last_stop_reason is StopReason.COMPLETED
    assert state.usage == InferenceUsage(input=30, output=12)
    assert state.has_errors() is False
    assert state.errors == ()
    # Final output
    assert state.has_final_response() is True
    assert (state.final_response, state.current_response) == ("hello", "hello")


# --- continuation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "stops"),
    [
        (lambda s: s.with_stop_signal(StopSignal(reason=StopReason.STOP_REQUESTED)), True),
        (lambda s: s.with_execution_continued(), False),
        (lambda s: s.with_current_step(tool_step(executed())), False),
        (lambda s: s.with_current_step(final_step()), True),
    ],
)
def test_a_state_should_stop_as_the_document_says(change: Callable[[AgentState], AgentState], stops: bool) -> None:
    assert change(running()).should_stop() is stops


def test_reasons_have_the_priorities_of_the_document() -> None:
    table = (
        "ERROR_FORBADE", "STOP_REQUESTED", "STEPS_LIMIT_REACHED", "TOKEN_LIMIT_REACHED", "TIME_LIMIT_REACHED",
        "RETRY_LIMIT_REACHED", "FINISH_REASON_RECEIVED", "USER_REQUESTED", "COMPLETED", "UNKNOWN",
    )  # fmt: skip
    assert [StopReason[name].priority for name in table] == list(range(10))
    natural = {each for each in StopReason if not each.was_force_stopped()}
    assert natural == {StopReason.COMPLETED, StopReason.FINISH_REASON_RECEIVED}


def test_several_signals_stand_together_and_the_highest_decides() -> None:
    state = running().with_stop_signal(StopSignal(reason=StopReason.USER_REQUESTED))
    state = state.with_stop_signal(StopSignal(reason=StopReason.STEPS_LIMIT_REACHED))
    assert state.execution is not None
    assert len(state.execution.continuation.stop_signals) == 2
    assert state.last_stop_reason is StopReason.STEPS_LIMIT_REACHED


# --- budget ---------------------------------------------------------------------------------------------------


def test_the_budget_of_the_document() -> None:
    budget = ExecutionBudget(
        max_steps=20,
        max_tokens=10000,
        max_seconds=60.0,
        max_cost=0.50,
        deadline=datetime(2025, 12, 31, 23, 59, 59, tzinfo=UTC),
    )
    assert budget.is_exhausted(NOON)  # the deadline of the document has passed
    assert not budget.is_exhausted(datetime(2025, 12, 31, tzinfo=UTC))
    assert ExecutionBudget.unlimited().is_empty() is True


def test_the_budget_of_a_definition_limits_its_executions() -> None:
    agent = Agent("a", driver=script("hello"))
    runtime = SessionRuntime(SessionRepository(InMemorySessionStore()))
    session = runtime.create(AgentDefinition(name="a", budget=ExecutionBudget(max_steps=0)))
    state = runtime.execute(session.session_id, SendMessage("hi", InlineRunner([agent]))).state
    assert (state.status, state.last_stop_reason) == (ExecutionStatus.STOPPED, StopReason.STEPS_LIMIT_REACHED)
    assert state.budget == ExecutionBudget(max_steps=0)


# --- debugging and data ---------------------------------------------------------------------------------------


def test_debug_has_the_entries_of_the_document() -> None:
    info = completed().debug()
    assert (info["status"], info["execution_count"], info["has_execution"], info["steps"]) == ("completed", 1, True, 2)
    assert info["continuation"] == "No Stop Signals; Continuation Requested: No"
    assert (info["has_errors"], info["errors"], info["usage"]["input"]) == (False, [], 30)
    assert info["execution_id"]


def test_every_object_of_the_table_comes_back_from_plain_data() -> None:
    state = completed()
    execution = state.execution
    assert execution is not None
    done = execution.step_executions[0]
    values: tuple[tuple[type[Value], Value], ...] = (
        (AgentState, state), (ExecutionState, execution), (AgentStep, done.step), (StepExecution, done),
        (ToolExecution, done.step.tool_executions[0]), (ExecutionBudget, ExecutionBudget(max_steps=3)),
        (ExecutionContinuation, ExecutionContinuation().with_signal(StopSignal(reason=StopReason.UNKNOWN))),
    )  # fmt: skip
    for kind, value in values:
        assert kind.from_dict(value.to_dict()) == value
    restored = AgentState.from_dict(state.to_dict())
    assert (restored.agent_id, restored.step_count, restored.status) == (state.agent_id, 2, ExecutionStatus.COMPLETED)


def test_chained_changes_belong_to_one_execution() -> None:
    state, signal = AgentState.fresh(), StopSignal(reason=StopReason.USER_REQUESTED)
    one, other = state.with_stop_signal(signal), state.with_current_step(final_step())
    assert one.execution is not None
    assert other.execution is not None
    assert one.execution.execution_id != other.execution.execution_id  # "wrong" in the document
    chained = state.with_current_step(final_step()).with_stop_signal(signal)
    assert chained.execution is not None
    assert (chained.step_count, len(chained.execution.continuation.stop_signals)) == (1, 1)
