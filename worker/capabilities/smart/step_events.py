"""The step that a commit adds, and the events that capabilities report of it."""

from __future__ import annotations

from typing import Any

from ...state.agent_state import AgentState
from ...state.execution.steps import AgentStep
from ...state.parts.state_part import PartItem, PartValue


def new_step(before: AgentState, after: AgentState) -> AgentStep | None:
    """The step that the later state has and the earlier one has not; None where the execution ended without one."""
    step = after.last_step
    if step is None or after.execution is None:
        return None
    is_same = before.execution is not None and before.execution.execution_id == after.execution.execution_id
    return None if is_same and step.number <= before.step_count else step


def describe_record(kind: type[PartValue], record: PartItem) -> dict[str, Any]:
    """The data of an event that has the fields of a record, or some of them."""
    names = kind.model_fields.keys() - {"type"}
    return kind(**{name: getattr(record, name) for name in names}).to_dict()
