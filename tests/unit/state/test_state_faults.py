"""Faults that users of the state met: lost steps, wrong budgets, states of no version, values that were not frozen."""

from __future__ import annotations

import json
from typing import Any

import pytest

from celery_agents.worker.errors import InvalidInput, InvalidTransition, StateTooNew, StateUnreadable
from celery_agents.worker.state import (
    AgentState,
    AgentStep,
    ErrorInfo,
    ExecutionBudget,
    ExecutionStatus,
    FinishReason,
    FrozenDict,
    FrozenMap,
    InferenceResponse,
    InferenceUsage,
    Message,
    StopReason,
    StopSignal,
)

from support.states import at, final_step, running, stored_and_loaded, tool_step


def test_a_second_current_step_archives_the_first() -> None:
    one, other = tool_step(), final_step()
    state = running().with_current_step(one, now=at(1)).with_current_step(other, now=at(2))
    assert [step.id for step in state.steps] == [one.id]
    assert state.current_step is not None
    assert (state.current_step.id, state.step_count) == (other.id, 2)
    assert state.usage.total == one.inference_response.usage.total + other.inference_response.usage.total
    assert stored_and_loaded(state) == state


@pytest.mark.parametrize("status", [ExecutionStatus.COMPLETED, ExecutionStatus.STOPPED, ExecutionStatus.FAILED])
def test_an_ended_execution_takes_no_further_step(status: ExecutionStatus) -> None:
    state = running().with_execution_status(status)
    with pytest.raises(InvalidTransition, match=f"from {status} to another step"):
        state.with_current_step(final_step())


@pytest.mark.parametrize(
    ("field", "used"),
    [
        ("steps", -5),
        ("steps", 1.5),
        ("steps_used", -1),
        ("tokens", -1),
        ("tokens", True),
        ("tokens_used", 0.5),
        ("seconds", -0.1),
        ("seconds", float("nan")),
        ("cost", float("inf")),
        ("cost", "1"),
    ],
)
def test_a_budget_refuses_a_use_that_is_none(field: str, used: Any) -> None:
    budget = ExecutionBudget(max_steps=10, max_tokens=10, max_seconds=10.0, max_cost=10.0)
    with pytest.raises(InvalidInput, match=rf"remaining\({field}\)"):
        budget.remaining(**{field: used})


def test_what_was_used_has_the_names_of_the_source_too() -> None:
    budget = ExecutionBudget(max_steps=20, max_tokens=10_000)
    assert budget.remaining(steps_used=5, tokens_used=3000) == budget.remaining(steps=5, tokens=3000)
    assert budget.remaining(steps_used=5, tokens_used=3000) == ExecutionBudget(max_steps=15, max_tokens=7000)


@pytest.mark.parametrize("data", [b"{}", b'{"agent_id": "a1"}'])
def test_a_state_without_a_schema_version_is_refused(data: bytes) -> None:
    with pytest.raises(StateUnreadable, match="schema_version: it is missing"):
        AgentState.from_json(data)
    with pytest.raises(StateUnreadable, match="schema_version: it is missing"):
        AgentState.from_dict(json.loads(data))


def test_a_state_of_a_newer_version_is_refused_even_where_it_does_not_fit_any_more() -> None:
    for data in ({"schema_version": 99}, {"schema_version": 99, "execution_count": "many"}):
        with pytest.raises(StateTooNew, match="it is 99"):
            AgentState.from_dict(data)
        with pytest.raises(StateTooNew, match="it is 99"):
            AgentState.from_json(json.dumps(data))


def test_a_frozen_dict_is_not_built_a_second_time() -> None:
    for frozen in (FrozenDict(a=1), FrozenMap({"a": 1})):
        frozen.__init__({"b": 2})  # type: ignore[misc]
        frozen.__init__(b=2)  # type: ignore[misc]
        assert frozen == {"a": 1}


def test_a_copy_is_validated() -> None:
    budget = ExecutionBudget(max_steps=3)
    assert budget.model_copy(update={"max_steps": 4}) == ExecutionBudget(max_steps=4)
    with pytest.raises(InvalidInput, match="max_steps"):
        budget.model_copy(update={"max_steps": -1})
    with pytest.raises(InvalidInput, match="no_such_field"):
        budget.model_copy(update={"no_such_field": 1})
    message = Message.from_dict({**Message.user("hi").to_dict(), "later": 1})
    assert message.model_copy(update={"content": "ho"}).to_dict()["later"] == 1


def test_unknown_fields_of_a_value_cannot_be_changed() -> None:
    usage = InferenceUsage.from_json(b'{"input": 1, "later": 2}')
    assert usage.model_extra == {"later": 2}
    with pytest.raises(TypeError):
        usage.model_extra["later"] = 3  # type: ignore[index]
    assert usage.to_dict()["later"] == 2


def test_debug_is_json_and_says_why_what_and_for_whom() -> None:
    signal = StopSignal(reason=StopReason.ERROR_FORBADE, message="no key")
    state = running().with_stop_signal(signal).with_failure(ErrorInfo(kind="authentication", message="no key"))
    shown = json.loads(json.dumps(state.debug()))
    assert (shown["agent_id"], shown["status"], shown["stop_reason"]) == (state.agent_id, "failed", "error")
    assert shown["errors"][0]["message"] == "no key"
    assert shown["cost"] is None


@pytest.mark.parametrize(
    ("finish_reason", "status"),
    [("stop", "completed"), ("length", "stopped"), ("content_filter", "stopped"), ("other", "completed")],
)
def test_a_finish_reason_stops_where_it_cut_the_answer_short(finish_reason: str, status: str) -> None:
    response = InferenceResponse(content="half an ans", finish_reason=FinishReason(finish_reason))
    state = running().with_current_step(AgentStep.from_inference(response))
    state = state.with_stop_signal(StopSignal(reason=StopReason.FINISH_REASON_RECEIVED)).with_execution_completed()
    assert state.status == status
    assert state.last_stop_reason is StopReason.FINISH_REASON_RECEIVED
