"""What every value promises, whichever way pydantic is used (`test_pydantic_internals` runs this both ways)."""

from __future__ import annotations

import pytest

from celery_agents.worker.errors import InvalidInput
from celery_agents.worker.state import AgentState, ExecutionBudget, Message, ToolCall, head_json, join, split, step_json

from support.states import running, tool_step


def test_unknown_fields_are_refused_by_the_constructor_and_kept_by_readers() -> None:
    with pytest.raises(InvalidInput, match="there is no such field"):
        ExecutionBudget(max_stepz=3)  # type: ignore[call-arg]
    newer = Message.from_json(
        b'{"role":"assistant","tool_calls":[{"id":"c","name":"t","args":{},"later":[1]}],"newer":{"deep":[1,2]}}'
    )
    assert isinstance(newer.tool_calls[0], ToolCall)
    assert Message.from_json(newer.to_json()) == newer
    assert b'"newer":{"deep":[1,2]}' in newer.to_json()
    assert b'"later":[1]' in newer.to_json()


def test_a_state_comes_back_from_its_json_its_dict_and_its_parts() -> None:
    state = running().with_current_step(tool_step()).with_current_step_completed()
    assert AgentState.from_json(state.to_json()) == state
    assert AgentState.from_dict(state.to_dict()) == state
    apart = split(state)
    messages = {name: list(section.messages) for name, section in apart.sections.items()}
    assert join(head_json(state), messages, [step_json(step) for step in apart.steps]) == state


def test_a_copy_keeps_unknown_fields_and_leaves_the_first_as_it_was() -> None:
    read = AgentState.from_dict({**AgentState.fresh().to_dict(), "newer": 1})
    changed = read.with_system_prompt("brief")
    assert (changed.system_prompt, read.system_prompt) == ("brief", "")
    assert changed.to_dict()["newer"] == 1
