"""A step's type, its errors, and what it adds to the conversation."""

from __future__ import annotations

import pytest

from celery_agents.worker.state import (
    AgentStep,
    AgentStepType,
    ErrorInfo,
    FrozenDict,
    InferenceResponse,
    Role,
    ToolCall,
    ToolOutcome,
    step_messages,
)

from support.states import answer, call, executed, failed, final_step, tool_step


def test_s6_errors_beat_tool_calls_and_these_a_final_response() -> None:
    assert final_step().step_type is AgentStepType.FINAL_RESPONSE
    assert tool_step().step_type is AgentStepType.TOOL_EXECUTION
    assert tool_step(failed()).step_type is AgentStepType.ERROR
    assert tool_step(executed(), failed()).step_type is AgentStepType.ERROR
    assert final_step().with_error(ErrorInfo(kind="boom")).step_type is AgentStepType.ERROR


def test_s6_a_call_that_was_requested_makes_a_tool_step_whether_it_ran_or_not() -> None:
    assert AgentStep.from_inference(answer("", call())).step_type is AgentStepType.TOOL_EXECUTION


@pytest.mark.parametrize(
    ("outcome", "step_type"),
    (
        (ToolOutcome.OK, AgentStepType.TOOL_EXECUTION),
        (ToolOutcome.NOT_RUN, AgentStepType.TOOL_EXECUTION),
        (ToolOutcome.ERROR, AgentStepType.ERROR),
        (ToolOutcome.UNKNOWN, AgentStepType.ERROR),
        (ToolOutcome.BLOCKED, AgentStepType.ERROR),
    ),
)
def test_s6_which_outcomes_are_errors(outcome: ToolOutcome, step_type: AgentStepType) -> None:
    assert tool_step(executed(outcome=outcome)).step_type is step_type


def test_requested_and_executed_calls_differ_when_calls_were_skipped() -> None:
    calls = [call(id=f"c{index}") for index in range(4)]
    outcomes = (ToolOutcome.OK, ToolOutcome.BLOCKED, ToolOutcome.NOT_RUN, ToolOutcome.UNKNOWN)
    done = [
        executed(each, outcome, index=index) for index, (each, outcome) in enumerate(zip(calls, outcomes, strict=True))
    ]
    step = AgentStep.from_inference(answer("", *calls), done)
    assert [each.id for each in step.requested_tool_calls] == ["c0", "c1", "c2", "c3"]
    assert [each.id for each in step.executed_tool_calls] == ["c0", "c3"]


def test_the_tools_errors_come_before_the_steps_own_and_are_not_stored_twice() -> None:
    step = tool_step(failed("tool")).with_error(ErrorInfo(kind="engine", message="step"))
    assert [error.message for error in step.all_errors] == ["tool", "step"]
    again = AgentStep.from_json(AgentStep.from_json(step.to_json()).to_json())
    assert again.all_errors == step.all_errors
    assert len(again.errors) == 1


def test_a_blocked_call_is_told_from_a_failed_one() -> None:
    blocked = executed(outcome=ToolOutcome.BLOCKED, error=ErrorInfo(kind="guard", message="not on Sundays"))
    assert blocked.was_blocked()
    assert not failed().was_blocked()
    assert blocked.error_message() == "not on Sundays"


def test_one_assistant_message_with_all_calls_then_the_results_in_call_order() -> None:
    calls = [call(id=f"c{index}") for index in range(3)]
    done = [executed(calls[index], value=f"r{index}", index=index) for index in (2, 0, 1)]
    assistant, *results = step_messages(answer("looking", *calls), done)
    assert assistant.role is Role.ASSISTANT
    assert assistant.content == "looking"
    assert [each.id for each in assistant.tool_calls] == ["c0", "c1", "c2"]
    assert [(each.role, each.tool_call_id, each.content) for each in results] == [
        (Role.TOOL, f"c{index}", f"r{index}") for index in range(3)
    ]
    assert {each.name for each in results} == {"weather"}
    assert [each.metadata["tool_execution_id"] for each in results] == [done[index].id for index in (1, 2, 0)]


@pytest.mark.parametrize(
    ("content", "kept"),
    (
        ("I will look it up.", "I will look it up."),
        ('{"city": "Paris"}', ""),
        ('  {"city":"Paris"}\n', ""),
        ('{"city": "London"}', '{"city": "London"}'),
        ('Calling {"city": "Paris"}', 'Calling {"city": "Paris"}'),
        ("{not json", "{not json"),
    ),
)
def test_s17_text_that_only_repeats_the_arguments_is_dropped_and_other_text_kept(content: str, kept: str) -> None:
    assert step_messages(answer(content, call()), ())[0].content == kept


def test_s17_a_final_answer_that_is_json_is_kept() -> None:
    assert step_messages(answer('{"city": "Paris"}'), ())[0].content == '{"city": "Paris"}'


def test_nothing_said_makes_no_message() -> None:
    assert step_messages(answer(""), ()) == ()
    assert step_messages(answer(" \n", provider=FrozenDict(parts=[])), ()) == ()


def test_the_providers_data_go_with_the_message_once() -> None:
    step = AgentStep.from_inference(answer("hi", provider=FrozenDict(signature="abc")))
    assert step.output_messages[0].provider == {"signature": "abc"}
    assert step.inference_response.provider is None
    silent = AgentStep.from_inference(answer("", provider=FrozenDict(signature="abc")))
    assert silent.inference_response.provider == {"signature": "abc"}


@pytest.mark.parametrize(
    ("value", "text"),
    (
        ("sunny", "sunny"),
        ("", ""),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        ([1, "x"], '[1,"x"]'),
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (3, "3"),
        (2.5, "2.5"),
        ({"city": "Zürich"}, '{"city":"Zürich"}'),
    ),
)
def test_a_tools_result_as_the_model_reads_it(value: object, text: str) -> None:
    assert executed(value=value).as_message() == text


def test_a_failure_as_the_model_reads_it() -> None:
    assert failed("no such city").as_message() == "Error in tool call: no such city"
    assert executed(outcome=ToolOutcome.ERROR).as_message().startswith("Error in tool call: The tool failed")
    assert executed(outcome=ToolOutcome.NOT_RUN).as_message() == "Error in tool call: The call was not run."
    unknown = executed(outcome=ToolOutcome.UNKNOWN, error=ErrorInfo(kind="lost", message="The worker died."))
    assert unknown.as_message() == ("Outcome unknown: the call may or may not have happened. The worker died.")
    assert executed(outcome=ToolOutcome.UNKNOWN).as_message().endswith("happened.")


def test_an_execution_that_is_ok_has_no_error() -> None:
    done = executed()
    assert (done.has_error(), done.error_message(), done.error_info(), done.duration) == (False, "", None, 1.0)


def test_an_outcome_without_an_error_still_says_what_happened() -> None:
    info = executed(outcome=ToolOutcome.BLOCKED).error_info()
    assert info is not None
    assert (info.kind, info.message) == ("tool_blocked", "The call was not allowed.")


@pytest.mark.parametrize(
    ("text", "args"),
    (
        ('{"a": [1, {"b": null}]}', {"a": (1, {"b": None})}),
        ("", {}),
        ("{}", {}),
        ("[1]", "[1]"),
        ('"x"', '"x"'),
        ("{broken", "{broken"),
        ('{"a": NaN}', '{"a": NaN}'),
        ("[" * 100_000, "[" * 100_000),
        ('{"a": ' + "[" * 120 + "]" * 120 + "}", '{"a": ' + "[" * 120 + "]" * 120 + "}"),
        ('{"a": "\\ud800"}', '{"a": "\\ud800"}'),
    ),
    ids=lambda value: str(value)[:20],
)
def test_arguments_that_are_no_json_object_are_kept_as_text(text: str, args: object) -> None:
    made = ToolCall.from_text("c1", "weather", text)
    assert made.args == args
    assert ToolCall.from_json(made.to_json()) == made


def test_arguments_as_a_provider_wants_them() -> None:
    assert ToolCall(id="c", name="n", args=FrozenDict(a=1)).args_json() == '{"a":1}'
    assert ToolCall(id="c", name="n", args="{broken").args_json() == "{broken"


def test_a_response_without_its_providers_data() -> None:
    response = InferenceResponse(content="x", provider=FrozenDict(a=1))
    assert response.without_provider().provider is None
    assert response.provider == {"a": 1}
    assert not response.has_tool_calls()
