"""The document "Agent State Internals" with a budget (InstructorPHP, the earlier version): its examples in Python."""

from __future__ import annotations

from celery_agents.worker.state import (
    AgentState,
    AgentStep,
    AgentStepType,
    Budget,
    ExecutionBudget,
    ExecutionStatus,
    InferenceUsage,
    StopReason,
    StopSignal,
)

from support.states import NOON, answer, at, executed, stored_and_loaded, tool_step

BUDGET = Budget(max_steps=20, max_tokens=10000, max_seconds=60.0)


def a_state() -> AgentState:
    """An execution that was stopped behind its answer, as a store gives it back."""
    state = AgentState.fresh(system_prompt="Be brief.", parent_agent_id="parent", now=NOON)
    state = state.with_user_message("hi", now=NOON).with_metadata("user_tz", "Europe/Prague", now=NOON)
    state = state.with_execution(budget=BUDGET, now=NOON).with_execution_started(now=NOON)
    state = state.with_current_step(tool_step(executed()), now=at(1)).with_current_step_completed(now=at(2))
    usage = InferenceUsage(input=20, output=7)
    step = AgentStep.from_inference(answer("hello", usage=usage), number=2, inputs=state.store.extents)
    state = state.with_current_step(step, now=at(3)).with_stop_signal(StopSignal(reason=StopReason.USER_REQUESTED))
    return stored_and_loaded(state.with_execution_completed(now=at(4)))


def test_budget_is_the_name_of_a_budget() -> None:
    assert Budget is ExecutionBudget


def test_the_key_accessors_of_the_document() -> None:
    state = a_state()
    # Identity
    assert state.agent_id
    assert state.parent_agent_id == "parent"
    # Timing
    assert state.created_at == NOON
    assert state.execution_duration() == 4
    # Context
    assert [each.content for each in state.messages] == ["hi", "", "sunny", "hello"]
    assert state.metadata == {"user_tz": "Europe/Prague"}
    assert state.context.system_prompt == "Be brief."
    # Budget
    assert state.budget.max_steps == 20
    assert state.budget.is_exhausted() is False
    # Execution
    assert state.status is ExecutionStatus.STOPPED
    assert (state.step_count, len(state.steps)) == (2, 2)
    assert state.last_step is not None
    assert state.last_step_type is AgentStepType.FINAL_RESPONSE
    assert state.last_stop_reason is StopReason.USER_REQUESTED
    assert state.usage == InferenceUsage(input=30, output=12)
    assert state.errors == ()
    assert state.has_errors() is False
    # Final output
    assert state.has_final_response()
    assert state.final_response == "hello"


def test_a_step_shows_the_messages_of_both_sides() -> None:
    last = a_state().last_step
    assert last is not None
    assert [each.content for each in last.input_messages] == ["hi", "", "sunny"]
    assert [each.content for each in last.output_messages] == ["hello"]
    assert (last.tool_executions, last.errors) == ((), ())


def test_the_budget_is_unlimited_between_executions() -> None:
    assert AgentState.fresh().budget.is_empty()
    assert a_state().for_next_execution().budget == Budget.unlimited()


def test_the_budget_that_is_left_and_the_budget_that_is_capped() -> None:
    remaining = BUDGET.remaining(steps_used=5, tokens_used=3000)
    assert (remaining.max_steps, remaining.max_tokens, remaining.max_seconds) == (15, 7000, 60.0)
    assert BUDGET.capped_by(Budget(max_steps=10)).max_steps == 10


def test_a_state_comes_back_from_plain_data() -> None:
    state = a_state()
    data = state.to_dict()
    restored = AgentState.from_dict(data)
    assert restored == state
    assert restored.budget == BUDGET
