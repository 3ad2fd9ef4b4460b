"""The state in parts: joined again it is the same, and what is written is what changed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings

from celery_agents.worker.errors import StateTooNew, StateUnreadable
from celery_agents.worker.state import (
    AgentState,
    ListChange,
    Message,
    StateChanges,
    changes,
    head_json,
    join,
    message_json,
    read_head,
    split,
    step_json,
)
from celery_agents.worker.state.agent_fields import PACKED_SCHEMA_VERSION

from support.states import Change, changes_of_state, final_step, is_same, running, states, stored_and_loaded, tool_step


class Lists:
    """A store as simple as can be: it does what `changes` says."""

    def __init__(self) -> None:
        self.head = b""
        self.sections: dict[str, list[bytes]] = {}
        self.steps: list[bytes] = []

    def write(self, change: StateChanges) -> None:
        self.head = head_json(change.state)
        for name, section in change.sections.items():
            self.sections[name] = self._written(self.sections.get(name, []), section)
        if change.steps is not None:
            self.steps = self._written(self.steps, change.steps)

    def _written(self, held: list[bytes], change: ListChange) -> list[bytes]:
        assert change.start in (0, len(held))
        written = held[: change.start] + list(change.items)
        assert len(written) == change.length
        return written

    def read(self) -> AgentState:
        return join(self.head, self.sections, self.steps)


@given(states)
@settings(max_examples=40, deadline=None)
def test_any_state_is_the_same_when_joined(state: AgentState) -> None:
    assert is_same(stored_and_loaded(state), state)


@given(changes_of_state)
@settings(max_examples=60, deadline=None)
def test_after_every_change_what_was_written_makes_the_state(made: list[Change]) -> None:
    state, lists = running(), Lists()
    lists.write(changes(None, state))
    for change in made:
        after = change(state)
        lists.write(changes(state, after))
        assert is_same(lists.read(), after)
        state = after


@given(changes_of_state)
@settings(max_examples=50, deadline=None)
def test_several_changes_may_be_written_at_once(made: list[Change]) -> None:
    before, lists = running(), Lists()
    lists.write(changes(None, before))
    after = before
    for change in made:
        after = change(after)
    lists.write(changes(before, after))
    assert is_same(lists.read(), after)


@given(changes_of_state)
@settings(max_examples=50, deadline=None)
def test_a_worker_that_holds_the_older_part_parses_the_new_one_only(made: list[Change]) -> None:
    before = running().with_current_step(tool_step()).with_current_step_completed()
    after = before
    for change in made:
        after = change(after)
    after = stored_and_loaded(after)
    parts = split(after)
    held = before.store.sections
    sections: dict[str, list[Any]] = {}
    for name, section in parts.sections.items():
        same = name in held and held[name].generation == section.generation
        old = list(held[name].messages) if same else []
        sections[name] = [*old, *map(message_json, section.messages[len(old) :])]
    written_alike = after.execution is not None and before.execution.is_written_like(after.execution)  # type: ignore[union-attr]
    old_steps = before.execution.step_executions if written_alike else ()  # type: ignore[union-attr]
    steps = [*old_steps, *map(step_json, parts.steps[len(old_steps) :])]
    assert is_same(join(parts.head, sections, steps), after)


def test_objects_given_to_join_are_taken_as_they_are() -> None:
    state = running().with_current_step(tool_step()).with_current_step_completed()
    parts = split(state)
    again = join(parts.head, {"messages": state.store.section().messages}, parts.steps)
    assert again.store.section().messages[0] is state.store.section().messages[0]
    assert again.execution.step_executions[0] is parts.steps[0]  # type: ignore[union-attr]


def test_a_step_written_holds_no_message_of_its_section() -> None:
    state = running().with_current_step(final_step("a long answer")).with_current_step_completed()
    done = state.execution.step_executions[0]  # type: ignore[union-attr]
    assert b"output_messages" not in step_json(done)
    assert b'"outputs":[["messages",0,1,2]]' in step_json(done)
    assert stored_and_loaded(state).last_step.output_text == "a long answer"  # type: ignore[union-attr]


def test_the_head_does_not_grow_with_the_conversation() -> None:
    def talked(turns: int) -> AgentState:
        state = running()
        for number in range(turns):
            state = state.with_current_step(tool_step(content="x" * 500, number=number + 1))
            state = state.with_current_step_completed().with_user_message("y" * 500)
        return state

    assert len(head_json(talked(60))) < len(head_json(talked(1))) + 20


def test_a_step_adds_only_itself_and_its_messages() -> None:
    state = running()
    for number in range(1, 4):
        before, state = state, state.with_current_step(tool_step(number=number)).with_current_step_completed()
        change = changes(before, state)
        assert set(change.sections) == {"messages"}
        assert len(change.sections["messages"].items) == 2
        assert change.steps is not None
        assert len(change.steps.items) == 1


def test_nothing_but_the_head_is_written_when_no_list_changed() -> None:
    state = running()
    change = changes(state, state.with_metadata("a", 1))
    assert change.sections == {}
    assert change.steps is None


def test_a_replaced_section_is_a_new_generation_and_steps_keep_what_they_said() -> None:
    state = running().with_current_step(final_step("before")).with_current_step_completed()
    after = state.with_messages([Message.user("summary of all")])
    assert after.store.section().generation == 1
    assert after.steps[0].output_text == "before"
    change = changes(state, after)
    assert change.sections["messages"].start == 0
    assert change.steps is not None
    assert change.steps.start == 0
    assert is_same(stored_and_loaded(after), after)


def test_a_section_that_is_emptied_and_filled_again_is_no_continuation() -> None:
    state = running().with_messages_added([Message.system("s1"), Message.system("s2")], "summary")
    emptied = state.with_message_store(state.store.with_sections({"messages": state.store.section()}))
    refilled = emptied.with_messages_added([Message.system("x"), Message.system("y"), Message.system("z")], "summary")
    assert refilled.store.section("summary").generation > state.store.section("summary").generation
    assert changes(state, refilled).sections["summary"].start == 0


def test_a_step_that_goes_on_after_its_section_was_replaced_is_stored_whole() -> None:
    state = running().with_current_step(tool_step(content="thinking about it"))
    state = state.with_messages([Message.user("summary")])
    step = state.current_step
    assert step is not None
    grown = step.with_outputs((*step.output_messages, Message.assistant("and more")), ())
    state = state.with_current_step(grown).with_current_step_completed()
    assert is_same(stored_and_loaded(state), state)
    assert len(state.steps[0].output_messages) == 3


@pytest.mark.parametrize(
    ("sections", "steps", "part"),
    (
        ({}, 1, "messages"),
        ({"messages": 2}, 1, "messages"),
        ({"messages": 4}, 1, "messages"),
        ({"messages": 3}, 0, "steps"),
        ({"messages": 3}, 2, "steps"),
    ),
)
def test_lists_of_another_length_are_refused(sections: dict[str, int], steps: int, part: str) -> None:
    state = running().with_current_step(tool_step()).with_current_step_completed()
    parts = split(state)
    message = message_json(Message.user("x"))
    given_sections = {name: [message] * length for name, length in sections.items()}
    with pytest.raises(StateUnreadable) as caught:
        join(parts.head, given_sections, [step_json(parts.steps[0])] * steps)
    assert caught.value.part == part


@pytest.mark.parametrize("damaged", (b"", b"{", b"[]", b'{"role": "nobody"}', b'{"role": 3}', b"\xff\xfe", b"null"))
def test_a_damaged_message_is_named_without_its_content(damaged: bytes) -> None:
    state = running("a secret message")
    with pytest.raises(StateUnreadable) as caught:
        join(head_json(state), {"messages": [damaged]})
    assert caught.value.part == "messages[0]"
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("damaged", (b"", b"{}", b'{"state": {"agent_id": "no good id"}}', b"[" * 100_000, b"\xff"))
def test_a_damaged_head_is_refused(damaged: bytes) -> None:
    with pytest.raises(StateUnreadable, match="head"):
        join(damaged, {})


def test_a_head_whose_sections_and_lengths_disagree_is_refused() -> None:
    with pytest.raises(StateUnreadable, match="head"):
        read_head(head_json(running()).replace(b'"lengths":{"messages":1}', b'"lengths":{"other":1}'))


def test_a_step_whose_messages_are_elsewhere_is_refused() -> None:
    state = running().with_current_step(tool_step()).with_current_step_completed()
    parts = split(state)
    step = step_json(parts.steps[0]).replace(b'["messages",0,1,3]', b'["messages",0,1,9]')
    with pytest.raises(StateUnreadable) as caught:
        join(parts.head, {"messages": parts.sections["messages"].messages}, [step])
    assert caught.value.part == "steps[0]"


def test_a_damaged_name_is_not_told_in_full() -> None:
    parts = split(running().with_current_step(tool_step()).with_current_step_completed())
    step = step_json(parts.steps[0]).replace(b'["messages",0,1,3]', b'["' + b"m" * 10_000 + b'",0,1,3]')
    with pytest.raises(StateUnreadable) as caught:
        join(parts.head, {"messages": parts.sections["messages"].messages}, [step])
    assert "not in section 'mmmm" in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_steps_without_an_execution_are_refused() -> None:
    state = AgentState.fresh()
    step = running().with_current_step(tool_step()).with_current_step_completed().execution.step_executions[0]  # type: ignore[union-attr]
    with pytest.raises(StateUnreadable, match="steps"):
        join(head_json(state), {}, [step])


@pytest.mark.parametrize("also_unreadable", (False, True))
def test_a_state_of_a_newer_version_says_so_whether_or_not_it_can_be_read(also_unreadable: bool) -> None:
    head = head_json(running()).replace(b'"schema_version":1', b'"schema_version":7')
    if also_unreadable:
        head = head.replace(b'"status":"in_progress"', b'"status":"dreaming"')
    with pytest.raises(StateTooNew) as caught:
        join(head, {"messages": [message_json(Message.user("x"))]})
    assert caught.value.version == 7
    assert caught.value.known == PACKED_SCHEMA_VERSION


@given(states)
@settings(max_examples=30, deadline=None)
def test_a_head_of_packed_entries_names_a_form_of_its_own_beside_that_of_the_state(state: AgentState) -> None:
    plain, packed = head_json(state), head_json(state, packed=True)
    assert json.loads(packed)["state"]["schema_version"] == PACKED_SCHEMA_VERSION
    assert json.loads(packed)["packed"] == state.schema_version
    read = read_head(packed)
    assert (read.packed, read_head(plain).packed) == (state.schema_version, 0)
    assert read.state == read_head(plain).state


def test_a_state_of_a_newer_form_in_a_head_of_packed_entries_is_refused() -> None:
    head = head_json(running(), packed=True).replace(b'"packed":1', b'"packed":9')
    with pytest.raises(StateTooNew):
        read_head(head)


def test_an_unknown_status_of_this_version_is_damage() -> None:
    with pytest.raises(StateUnreadable, match="status"):
        read_head(head_json(running()).replace(b'"status":"in_progress"', b'"status":"dreaming"'))
