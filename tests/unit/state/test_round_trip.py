"""Storing loses nothing: what is read back is equal, of the same types, and stored alike."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import celery_agents.worker.state as state_module
from celery_agents.worker.state import (
    AgentState,
    ErrorInfo,
    ExecutionBudget,
    FrozenDict,
    ToolExecution,
    Value,
    thaw,
)

from support.states import (
    at,
    executed,
    failed,
    is_same,
    json_values,
    running,
    stored_and_loaded,
    tool_step,
    values,
)


@pytest.mark.parametrize("name", sorted(values))
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_every_value_comes_back_from_json_and_from_a_dict(name: str, data: st.DataObject) -> None:
    value = data.draw(values[name])
    kind: type[Value] = getattr(state_module, name)
    assert is_same(kind.from_json(value.to_json()), value)
    assert is_same(kind.from_dict(value.to_dict()), value)


@given(json_values)
@settings(deadline=None)
def test_i14_any_json_value_of_a_tool_comes_back_as_it_was(value: Any) -> None:
    execution = executed(value=value)
    again = ToolExecution.from_json(execution.to_json())
    assert repr(again.value) == repr(execution.value)
    assert repr(thaw(again.value)) == repr(thaw(execution.value))


@pytest.mark.parametrize(
    "value",
    ("Paris", "", '"quoted"', 5, -1, 2.5, 1e300, True, False, None, [], {}, [1, [2, {"a": None}]], "Zoë 🌍\0\n"),
)
def test_i14_tool_results_survive_repeated_round_trips(value: Any) -> None:
    state = running().with_current_step(tool_step(executed(value=value))).with_current_step_completed()
    again = state
    for _ in range(3):
        again = stored_and_loaded(AgentState.from_json(again.to_json()))
    assert is_same(again, state)
    assert thaw(again.last_step.tool_executions[0].value) == value  # type: ignore[union-attr]


def test_i14_microseconds_survive() -> None:
    step = tool_step()
    state = running().with_current_step(step, started_at=at(0.000001), now=at(0.302001))
    state = state.with_current_step_completed(now=at(0.302002))
    assert stored_and_loaded(state).execution.step_executions[0].duration == pytest.approx(0.302001, abs=1e-9)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "error",
    (
        ErrorInfo(kind="custom", message="a custom exception", details=FrozenDict(type="shop.errors.OutOfStock")),
        ErrorInfo(kind="tool_error", message="two arguments: ('a', 3)", retryable=True),
        ErrorInfo(kind="tool_error", message="first line\nsecond line\r\n\ttabbed"),
        ErrorInfo(kind="tool_error", message="☃ \U0001f600 \u2028 \0"),
        ErrorInfo(kind="tool_error", message="outer", details=FrozenDict(cause={"type": "ValueError", "message": "x"})),
        ErrorInfo(kind="tool_error", message=""),
    ),
)
def test_i17_a_failed_tool_keeps_kind_and_message_and_errors_do_not_multiply(error: ErrorInfo) -> None:
    execution = executed(outcome="error", error=error)  # type: ignore[arg-type]
    state = running().with_current_step(tool_step(execution)).with_current_step_completed()
    again = state
    for _ in range(5):
        again = stored_and_loaded(again)
    assert again.errors == state.errors == (error,)
    assert again.last_step.tool_executions[0].error_message() == execution.error_message()  # type: ignore[union-attr]


def test_i18_a_class_named_in_stored_data_is_neither_imported_nor_built(capsys: pytest.CaptureFixture[str]) -> None:
    import sys

    stored = failed().to_dict()
    stored["error"]["details"] = {"class": "this.Zen", "__class__": "this", "type": "antigravity.fly"}
    stored["class"] = "this.Zen"
    before = set(sys.modules)
    execution = ToolExecution.from_dict(stored)
    assert type(execution.error) is ErrorInfo
    assert {"this", "antigravity"} & (set(sys.modules) - before) == set()
    assert capsys.readouterr().out == ""


_FREE_JSON = ("metadata", "details", "provider", "args", "inputs", "json_schema", "settings", "value")


def _with_unknown_fields(data: Any) -> Any:
    """The same JSON with a field that nobody knows in every object that is a value, not free JSON."""
    if isinstance(data, list):
        return [_with_unknown_fields(item) for item in data]
    if not isinstance(data, dict):
        return data
    grown = {name: item if name in _FREE_JSON else _with_unknown_fields(item) for name, item in data.items()}
    if "sections" in data:
        grown["sections"] = {name: _with_unknown_fields(section) for name, section in data["sections"].items()}
    return grown | {"from_the_future": {"a": [1, None, {"b": "c"}]}}


def _rich_state() -> AgentState:
    state = running(budget=ExecutionBudget(max_steps=5)).with_metadata("tenant", {"id": 3})
    state = state.with_current_step(tool_step(executed(), failed())).with_current_step_completed(claim="c1")
    return state.with_current_step(tool_step(executed(value={"a": 1})))


def test_i16_unknown_fields_of_a_newer_version_are_kept_and_written_back() -> None:
    stored = _with_unknown_fields(_rich_state().to_dict())
    assert str(stored).count("from_the_future") > 20
    again = AgentState.from_dict(stored)
    assert again.to_dict() == stored
    assert stored_and_loaded(again).to_dict() == stored
    assert AgentState.from_json(again.to_json()) == again


def test_i16_unknown_fields_survive_changes_of_what_holds_them() -> None:
    state = AgentState.from_dict(_with_unknown_fields(_rich_state().to_dict()))
    changed = state.with_user_message("more").with_current_step_completed().with_execution_completed()
    assert '"from_the_future"' in changed.to_json().decode()
    assert changed.to_dict()["execution"]["from_the_future"] == {"a": [1, None, {"b": "c"}]}
    assert changed.to_dict()["from_the_future"] == {"a": [1, None, {"b": "c"}]}


def test_i16_missing_fields_get_their_defaults() -> None:
    state = AgentState.from_json(b'{"schema_version": 1, "agent_id": "a1"}')
    assert state.execution is None
    assert state.messages == ()
    assert state.execution_count == 0


def test_unknown_fields_are_frozen_like_all_else() -> None:
    budget = ExecutionBudget.from_json(b'{"later": {"a": [1]}}')
    with pytest.raises(TypeError):
        budget.later["a"] = 2  # type: ignore[attr-defined]


def test_a_stored_default_stays_small() -> None:
    assert ExecutionBudget().to_json() == b"{}"
    assert set(ExecutionBudget().to_dict()) == set(ExecutionBudget.model_fields)


def test_the_schema_version_is_always_written() -> None:
    assert b'"schema_version":1' in AgentState.fresh().to_json()
