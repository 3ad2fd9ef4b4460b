"""Which messages a model sees, and that calls and results go in pairs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_agents.worker.state import (
    AgentState,
    AllSections,
    ConversationWithCurrentToolTrace,
    Message,
    Role,
    SelectedSections,
    ToolCall,
    repair_pairs,
)

from support.states import call, final_step, messages, running, stored_and_loaded, tool_step


def texts_of(seen: tuple[Message, ...]) -> list[str]:
    return [message.content for message in seen]


def two_executions() -> AgentState:
    state = running("first question").with_current_step(tool_step(content="old trace")).with_current_step_completed()
    state = state.with_current_step(final_step("first answer")).with_execution_completed()
    state = state.with_user_message("second question").with_execution().with_execution_started()
    return state.with_current_step(tool_step(content="new trace"))


def test_s14_the_current_trace_is_seen_and_older_ones_are_not() -> None:
    assert texts_of(ConversationWithCurrentToolTrace().compile(two_executions())) == [
        "first question", "first answer", "second question", "new trace", "sunny",
    ]  # fmt: skip


def test_s14_between_executions_no_trace_is_seen_and_nothing_is_deleted() -> None:
    state = two_executions().for_next_execution()
    assert texts_of(state.messages) == ["first question", "first answer", "second question"]
    assert len(AllSections().compile(state)) == 7


def test_s14_an_execution_that_ended_in_the_middle_leaves_no_dangling_call() -> None:
    state = running("q").with_current_step(tool_step()).with_execution_completed()
    state = state.with_user_message("again").with_execution().with_execution_started()
    assert texts_of(state.messages) == ["q", "again"]


def test_s16_another_process_sees_the_trace_of_the_same_execution() -> None:
    state = two_executions()
    assert stored_and_loaded(state).messages == state.messages


def test_the_sections_are_read_in_their_order() -> None:
    state = AgentState.fresh().with_user_message("m").with_messages_added([Message.user("x")], "extra")
    state = state.with_messages_added([Message.user("b")], "buffer").with_messages_added([Message.user("s")], "summary")
    assert texts_of(AllSections().compile(state)) == ["s", "b", "m", "x"]
    assert texts_of(state.messages) == ["s", "b", "m", "x"]
    assert texts_of(AllSections().compile(stored_and_loaded(state))) == ["s", "b", "m", "x"]


def test_selected_sections_in_the_given_order_without_the_missing_ones() -> None:
    state = AgentState.fresh().with_user_message("m").with_messages_added([Message.user("s")], "summary")
    assert texts_of(SelectedSections(("messages", "nothing", "summary")).compile(state)) == ["m", "s"]
    assert texts_of(SelectedSections().compile(state)) == ["m"]


def asks(*ids: str, content: str = "") -> Message:
    return Message.assistant(content, [call(id=each) for each in ids])


def result(call_id: str, content: str = "ok") -> Message:
    return Message(role=Role.TOOL, content=content, tool_call_id=call_id)


USER = Message.user("hi")


def test_a_conversation_in_order_is_left_as_it_is() -> None:
    given_messages = (USER, asks("a", "b"), result("a"), result("b"), Message.assistant("done"))
    assert repair_pairs(given_messages) == given_messages


def test_a_conversation_without_tools_is_left_as_it_is() -> None:
    assert repair_pairs([USER, Message.assistant("hello")]) == (USER, Message.assistant("hello"))
    assert repair_pairs(()) == ()


def test_a_result_without_its_call_is_dropped() -> None:
    assert repair_pairs((result("x"), USER, asks("a"), result("a"), result("b"))) == (USER, asks("a"), result("a"))


def test_a_call_without_its_result_is_dropped_and_the_text_beside_it_kept() -> None:
    assert repair_pairs((USER, asks("a", "b", content="let me see"), result("b"))) == (
        USER, asks("b", content="let me see"), result("b"),
    )  # fmt: skip
    assert repair_pairs((USER, asks("a", content="let me see"))) == (USER, Message.assistant("let me see"))
    assert repair_pairs((USER, asks("a"))) == (USER,)


def test_the_providers_data_go_with_the_calls_they_describe() -> None:
    message = Message(role=Role.ASSISTANT, tool_calls=(call(id="a"), call(id="b")), provider={"parts": 2})  # type: ignore[arg-type]
    assert repair_pairs((message, result("a")))[0].provider is None
    assert repair_pairs((message, result("a"), result("b")))[0].provider == {"parts": 2}


def test_h17_results_are_sent_in_call_order_right_after_their_calls() -> None:
    late = (asks("a", "b"), result("b"), USER, result("a"))
    assert repair_pairs(late) == (asks("a", "b"), result("a"), result("b"), USER)


def test_ids_that_a_provider_uses_every_turn_are_matched_with_the_nearest_call() -> None:
    conversation = (
        asks("call_0"), result("call_0", "one"), USER, asks("call_0"), result("call_0", "two"),
    )  # fmt: skip
    assert repair_pairs(conversation) == conversation
    without_first = (asks("call_0"), USER, asks("call_0"), result("call_0", "two"))
    assert repair_pairs(without_first) == (USER, asks("call_0"), result("call_0", "two"))


def test_two_calls_of_one_id_take_their_results_in_order() -> None:
    conversation = (asks("x", "x"), result("x", "one"), result("x", "two"))
    assert repair_pairs(conversation) == conversation


def _is_paired(seen: tuple[Message, ...]) -> bool:
    waiting: list[ToolCall] = []
    for message in seen:
        if message.role is Role.TOOL:
            if not waiting or waiting.pop(0).id != message.tool_call_id:
                return False
        elif waiting:
            return False
        else:
            waiting = list(message.tool_calls)
    return not waiting


@given(st.lists(messages | st.sampled_from((asks("a"), asks("a", "b"), result("a"), result("b"), USER)), max_size=12))
def test_any_conversation_is_paired_afterwards_and_a_second_time_changes_nothing(given_messages: list[Message]) -> None:
    seen = repair_pairs(given_messages)
    assert _is_paired(seen)
    assert repair_pairs(seen) == seen
    plain = [message for message in given_messages if message.role is not Role.TOOL and not message.tool_calls]
    assert [message for message in seen if any(message is each for each in plain)] == plain


@pytest.mark.parametrize("count", (2000,))
def test_a_long_conversation_is_repaired_in_time_that_grows_with_it(count: int) -> None:
    conversation = tuple(message for number in range(count) for message in (asks(f"c{number}"), result(f"c{number}")))
    assert repair_pairs(conversation) == conversation
