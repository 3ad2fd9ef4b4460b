"""The step that a commit adds, for the events that capabilities report of it."""

from __future__ import annotations

from ...state.agent_state import AgentState
from ...state.execution.steps import AgentStep


def new_step(before: AgentState, after: AgentState) -> AgentStep | None:
    """The step that the later state has and the earlier one has not; None where the execution ended without one."""
    step = after.last_step
    if step is None or after.execution is None:
        return None
    is_same = before.execution is not None and before.execution.execution_id == after.execution.execution_id
    return None if is_same and step.number <= before.step_count else step
