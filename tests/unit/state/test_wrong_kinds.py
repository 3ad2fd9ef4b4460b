"""A value of a wrong kind is refused where it is given to a state: stored, nobody could read the session again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_agents.worker.errors import InvalidInput
from celery_agents.worker.state import AgentState, LLMConfig, Message, ResponseFormat, ToolCall

Change = Callable[[Any], Any]


def state() -> AgentState:
    return AgentState.fresh().with_user_message("hello").with_execution_started()


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.with_system_prompt(None),
        lambda state: state.with_system_prompt(5),
        lambda state: state.with_system_prompt("\ud800"),
        lambda state: state.with_response_format("json"),
        lambda state: state.with_llm_config("openai:gpt-5"),
        lambda state: state.with_messages_added(["text"]),
        lambda state: state.with_user_message(None),
        lambda state: state.with_user_message({"role": "user", "content": "text"}),
        lambda state: state.with_messages(["text"]),
        lambda state: state.with_stop_signal("stop"),
        lambda state: state.with_failure("it failed"),
        lambda _: Message.user("text").with_content(None),
        lambda _: Message.user("text").with_content("\ud800"),
        lambda _: Message.user("text").as_result(5),
        lambda _: Message.assistant("text").with_tool_calls(["call"]),
    ],
)
def test_a_value_of_a_wrong_kind_is_refused_where_it_is_given(change: Change) -> None:
    with pytest.raises(InvalidInput):
        change(state())


def test_objects_with_the_same_fields_become_values() -> None:
    changed: Any = state()
    changed = changed.with_llm_config({"model": "openai:gpt-5"}).with_response_format({"type": "json_object"})
    changed = changed.with_messages([{"role": "user", "content": "text"}])
    assert changed.llm_config == LLMConfig(model="openai:gpt-5")
    assert changed.context.response_format == ResponseFormat.from_dict({"type": "json_object"})
    assert changed.messages == (Message.user("text"),)
    assert AgentState.from_json(changed.to_json()) == changed


def test_what_a_newer_version_has_stored_stays() -> None:
    newer = Message.from_dict({"role": "assistant", "content": "a", "mood": "good", "provider": {"x": 1}})
    call = ToolCall(id="1", name="look")
    for changed in (newer.with_content("b"), newer.as_result("b"), newer.with_tool_calls((call,))):
        assert changed.to_dict()["mood"] == "good"
    assert newer.with_content("b").provider is None
