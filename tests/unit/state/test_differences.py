"""Differences between two states, value by value."""

from __future__ import annotations

from celery_agents.tasks.cli.past_views import difference_lines
from celery_agents.worker.state import AgentState, Message
from celery_agents.worker.state.past.differences import find_differences


def test_equal_states_have_no_difference() -> None:
    state = AgentState.fresh(metadata={"a": [1, None]})
    assert find_differences(state, state) == []


def test_what_was_added_changed_and_removed_is_named_with_its_place() -> None:
    before = AgentState.fresh(metadata={"kept": 1, "gone": None, "changed": [1, {"a": 1}]})
    after = before.with_metadata("changed", [1, {"a": True}, 2]).without_metadata("gone").with_metadata("new", None)
    found = [each.to_dict() for each in find_differences(before, after) if each.path[0] == "context"]
    inside = ["context", "metadata"]
    assert found == [
        {"path": [*inside, "gone"], "before": None},
        {"path": [*inside, "changed", 1, "a"], "before": 1, "after": True},
        {"path": [*inside, "changed", 2], "after": 2},
        {"path": [*inside, "new"], "after": None},
    ]


def test_the_lines_for_people_escape_what_a_terminal_would_obey() -> None:
    before = AgentState.fresh()
    after = before.with_messages_added([Message.user("\x1b[2Jhello")], now=before.updated_at)
    lines = list(difference_lines(find_differences(before, after)))
    assert lines[0] == "context.store.sections.messages"
    assert lines[1].startswith("    + ")
    assert "hello" in lines[1]
    assert "\x1b" not in "".join(lines)
