"""What the changes of an agent's state do, and what they leave alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_agents.worker.errors import InvalidTransition, StateUnreadable
from celery_agents.worker.state import (
    AgentState,
    AgentStep,
    AgentStepType,
    ErrorInfo,
    ExecutionBudget,
    ExecutionStatus,
    InferenceUsage,
    LLMConfig,
    Message,
    ResponseFormat,
    Role,
    StopReason,
    StopSignal,
    ToolOutcome,
)

from support.states import (
    NOON,
    answer,
    at,
    call,
    executed,
    failed,
    final_step,
    is_same,
    running,
    stored_and_loaded,
    tool_step,
)

MUTATORS: dict[str, Callable[[AgentState], AgentState]] = {
    "with_user_message": lambda state: state.with_user_message("more"),
    "with_messages": lambda state: state.with_messages([Message.user("other")]),
    "with_messages_added": lambda state: state.with_messages_added([Message.system("s")], "summary"),
    "with_message_store": lambda state: state.with_message_store(AgentState.fresh().store),
    "with_context": lambda state: state.with_context(state.context.with_system_prompt("p")),
    "with_metadata": lambda state: state.with_metadata("key", {"nested": [1]}),
    "without_metadata": lambda state: state.without_metadata("tenant"),
    "with_system_prompt": lambda state: state.with_system_prompt("Be verbose."),
    "with_response_format": lambda state: state.with_response_format(ResponseFormat(type="json_object")),  # type: ignore[arg-type]
    "with_llm_config": lambda state: state.with_llm_config(LLMConfig(model="test:model")),
    "with_current_step": lambda state: state.with_current_step(final_step()),
    "with_current_step_completed": lambda state: state.with_current_step_completed(),
    "with_stop_signal": lambda state: state.with_stop_signal(StopSignal(reason=StopReason.USER_REQUESTED)),
    "with_execution_continued": lambda state: state.with_execution_continued(),
    "with_usage": lambda state: state.with_usage(InferenceUsage(input=1)),
    "with_failure": lambda state: state.with_failure(ErrorInfo(kind="boom")),
    "with_execution_status": lambda state: state.with_execution_status(ExecutionStatus.STOPPED),
    "with_execution_waiting": lambda state: state.with_execution_waiting(),
    "with_execution_completed": lambda state: state.with_execution_completed(),
    "for_next_execution": lambda state: state.for_next_execution(),
}


def busy() -> AgentState:
    return running().with_metadata("tenant", {"id": 1}, now=NOON).with_current_step(tool_step(), now=NOON)


@pytest.mark.parametrize("name", sorted(MUTATORS))
def test_s1_a_mutator_leaves_the_original_as_it_was(name: str) -> None:
    state = busy()
    before, stored = repr(state), state.to_json()
    after = MUTATORS[name](state)
    assert after != state
    assert (repr(state), state.to_json()) == (before, stored)


def test_s1_metadata_of_the_new_state_never_shows_in_the_old_one() -> None:
    given = {"list": [1], "dict": {"a": 1}}
    old = AgentState.fresh().with_metadata("key", given)
    given["list"].append(2)  # type: ignore[attr-defined]
    new = old.with_metadata("other", 1)
    with pytest.raises(TypeError):
        new.metadata["key"]["dict"]["a"] = 2  # type: ignore[index, call-overload]
    assert old.metadata == {"key": {"list": (1,), "dict": {"a": 1}}}
    assert "other" not in old.metadata


@pytest.mark.parametrize("name", sorted(MUTATORS))
def test_s2_every_mutation_moves_updated_at_and_never_created_at(name: str) -> None:
    state = busy()
    after = MUTATORS[name](state)
    assert after.updated_at > state.updated_at
    assert after.created_at == state.created_at


def test_s2_a_clock_that_goes_back_does_not_take_updated_at_with_it() -> None:
    state = AgentState.fresh(now=at(10))
    assert state.with_user_message("late", now=at(5)).updated_at == at(10)


def test_s3_two_changes_of_one_old_state_make_two_executions_and_a_chain_one() -> None:
    state = AgentState.fresh().with_user_message("hi")
    signal = StopSignal(reason=StopReason.USER_REQUESTED)
    one, other = state.with_stop_signal(signal), state.with_current_step(final_step())
    assert one.execution.execution_id != other.execution.execution_id  # type: ignore[union-attr]
    first = state.with_current_step(final_step())
    chained = first.with_stop_signal(signal)
    assert chained.execution.execution_id == first.execution.execution_id  # type: ignore[union-attr]


def test_s4_for_next_execution_keeps_the_session_and_drops_the_execution() -> None:
    config = LLMConfig(model="test:model")
    state = busy().with_llm_config(config).with_current_step_completed().with_execution_completed()
    after = state.for_next_execution()
    assert after.status is None
    assert after.execution is None
    assert after.step_count == 0
    assert after.usage == InferenceUsage()
    assert after.current_step is None
    assert after.errors == ()
    kept = ("agent_id", "created_at", "system_prompt", "store", "metadata", "llm_config", "execution_count")
    assert {name: getattr(after, name) for name in kept} == {name: getattr(state, name) for name in kept}


def test_s5_execution_count_grows_with_each_execution_and_not_with_its_steps() -> None:
    state = AgentState.fresh().with_user_message("hi")
    assert state.execution_count == 0
    state = state.with_execution()
    assert state.execution_count == 0
    for number in (1, 2, 3):
        state = stored_and_loaded(state.with_execution_started())
        state = state.with_current_step(tool_step(number=number)).with_current_step_completed()
        assert state.execution_count == 1
    state = state.with_execution_completed().for_next_execution()
    assert state.execution_count == 1
    state = state.with_execution().with_execution_started()
    assert state.execution_count == 2
    assert state.execution.number == 2  # type: ignore[union-attr]


def test_starting_again_changes_nothing_at_all() -> None:
    state = running()
    assert state.with_execution_started() is state


@pytest.mark.parametrize("end", ("waiting", "completed", "stopped", "failed"))
def test_only_a_pending_execution_is_started(end: str) -> None:
    state = running().with_execution_status(ExecutionStatus(end))
    with pytest.raises(InvalidTransition):
        state.with_execution_started()


def test_a_second_execution_is_refused_while_the_first_runs() -> None:
    with pytest.raises(InvalidTransition, match="has not ended"):
        running().with_execution()


@pytest.mark.parametrize("end", ("completed", "stopped", "failed"))
def test_the_next_execution_follows_an_ended_one(end: str) -> None:
    state = running().with_execution_status(ExecutionStatus(end))
    after = state.with_execution("second", ExecutionBudget(max_steps=2), "message-2")
    execution = after.execution
    assert execution is not None
    assert (execution.execution_id, execution.number, execution.status) == ("second", 2, ExecutionStatus.PENDING)
    assert execution.operation_id == "message-2"
    assert execution.budget.max_steps == 2
    assert after.step_count == 0


def test_s8_a_tool_error_the_agent_recovered_from_does_not_fail_the_execution() -> None:
    state = running().with_current_step(tool_step(failed())).with_current_step_completed()
    state = state.with_current_step(final_step()).with_execution_completed()
    assert state.status is ExecutionStatus.COMPLETED
    assert [error.message for error in state.errors] == ["no such city"]
    assert state.has_errors()


def test_s8_a_tool_error_in_the_last_step_fails_it() -> None:
    state = running().with_current_step(tool_step(failed())).with_execution_completed()
    assert state.status is ExecutionStatus.FAILED


@pytest.mark.parametrize("outcome", (ToolOutcome.BLOCKED, ToolOutcome.NOT_RUN))
def test_a_call_that_was_not_carried_out_does_not_fail_a_stopped_execution(outcome: ToolOutcome) -> None:
    state = running().with_current_step(tool_step(executed(outcome=outcome)))
    state = state.with_stop_signal(StopSignal(reason=StopReason.STOP_REQUESTED)).with_execution_completed()
    assert state.status is ExecutionStatus.STOPPED


def test_s9_final_response_before_and_after_completion() -> None:
    state = running()
    assert not state.has_final_response()
    assert not state.with_current_step(tool_step(content="thinking")).has_final_response()
    assert not state.with_current_step(final_step("")).has_final_response()
    assert not state.with_current_step(final_step(" \n\t")).has_final_response()
    wrong = AgentStep.from_inference(answer("text"), errors=[ErrorInfo(kind="boom")])
    assert not state.with_current_step(wrong).has_final_response()
    current = state.with_current_step(final_step("42"))
    done = current.with_execution_completed()
    assert current.has_final_response()
    assert done.has_final_response()
    assert current.final_response == done.final_response == "42"


def test_s10_a_running_execution_never_shows_the_previous_answer() -> None:
    state = running().with_current_step(final_step("first")).with_execution_completed()
    assert state.final_response == "first"
    state = state.with_user_message("again").with_execution()
    assert (state.final_response, state.current_response, state.final_output) == ("", "", None)
    state = state.with_execution_started().with_current_step(tool_step(content="looking"))
    assert not state.has_final_response()
    assert state.final_response == ""


def test_s11_the_current_response_falls_back_to_what_the_last_step_said() -> None:
    state = running().with_current_step(tool_step(content="let me look"))
    assert state.current_response == "let me look"
    assert state.with_current_step_completed().current_response == "let me look"
    assert state.final_response == ""


def test_structured_output_is_the_final_response_too() -> None:
    state = running().with_current_step(AgentStep.from_inference(answer(output={"city": "Paris"})))
    assert state.final_response == '{"city":"Paris"}'
    assert state.final_output == {"city": "Paris"}


def test_s12_a_step_that_said_nothing_leaves_the_context_the_same_object() -> None:
    state = running()
    assert state.with_current_step(AgentStep.from_inference(answer(""))).context is state.context


def test_s13_messages_of_a_tool_step_are_tagged_as_trace_and_final_ones_are_not() -> None:
    state = running()
    after = state.with_current_step(tool_step())
    tags = [message.metadata for message in after.store.section().messages[1:]]
    assert len(tags) == 2
    for tag in tags:
        assert tag["step_id"] == after.current_step.id  # type: ignore[union-attr]
        assert tag["execution_id"] == state.execution.execution_id  # type: ignore[union-attr]
        assert tag["agent_id"] == state.agent_id
        assert tag["is_trace"] is True
    (final,) = state.with_current_step(final_step()).store.section().messages[1:]
    assert {"step_id", "execution_id", "agent_id"} <= set(final.metadata)
    assert "is_trace" not in final.metadata


def test_s13_an_errored_step_is_a_trace_and_a_user_message_has_no_tags() -> None:
    state = running().with_current_step(tool_step(failed()))
    user, *said = state.store.section().messages
    assert user.metadata == {}
    assert [message.is_trace for message in said] == [True, True]
    assert [message.is_error for message in said] == [False, True]


def test_s15_two_tool_steps_make_two_messages_per_call_and_the_second_sees_the_first() -> None:
    state = running()
    for number in (1, 2):
        tool_call = call(id=f"c{number}")
        response = answer("", tool_call)
        step = AgentStep.from_inference(
            response, [executed(tool_call, value=f"result {number}")], number=number, inputs=state.store.extents
        )
        state = state.with_current_step(step).with_current_step_completed()
    assert len([message for message in state.messages if message.is_trace]) == 4
    first, second = (state.input_messages(step) for step in state.steps)
    assert [message.role for message in first] == [Role.USER]
    assert [message.content for message in second if message.role is Role.TOOL] == ["result 1"]


def test_the_inputs_of_a_step_are_what_the_store_held_then() -> None:
    state = running()
    seen = state.messages
    step = AgentStep.from_inference(answer("ok"), inputs=state.store.extents)
    state = state.with_current_step(step).with_current_step_completed().with_user_message("later")
    assert state.input_messages(state.steps[0]) == seen
    assert stored_and_loaded(state).input_messages(state.steps[0]) == seen


def test_the_inputs_of_a_step_are_gone_when_their_section_was_replaced() -> None:
    state = running()
    step = AgentStep.from_inference(answer("ok"), number=3, inputs=state.store.extents)
    state = state.with_current_step(step).with_messages([])
    with pytest.raises(StateUnreadable, match=r"step 3: only the newest generation .* Replaced since: messages"):
        state.input_messages(step)


def test_s18_step_count_and_usage_never_shrink_with_the_messages() -> None:
    state = running()
    for number in (1, 2):
        state = state.with_current_step(tool_step(number=number)).with_current_step_completed()
    usage = state.usage
    for smaller in (state.with_messages([]), state.with_message_store(AgentState.fresh().store)):
        assert smaller.step_count == 2
        assert smaller.usage == usage
        assert is_same(stored_and_loaded(smaller), smaller)


def test_step_count_and_usage_include_the_current_step_once() -> None:
    state = running().with_current_step(tool_step())
    assert (state.step_count, state.usage.total) == (1, 15)
    state = state.with_current_step_completed()
    assert (state.step_count, state.usage.total) == (1, 15)
    state = state.with_current_step(final_step())
    assert (state.step_count, state.usage.total, len(state.steps)) == (2, 42, 1)


def test_a_step_that_waited_is_not_counted_twice_and_adds_only_what_is_new() -> None:
    state = running()
    asked = call(id="c1"), call(id="c2")
    response = answer("", *asked, usage=InferenceUsage(input=10), cost=0.5)
    first = AgentStep.from_inference(response, [executed(asked[0])])
    state = state.with_current_step(first, started_at=at(0)).with_execution_waiting(now=at(5))
    state = stored_and_loaded(state).with_user_message("and hurry")
    again = AgentStep.from_inference(
        response, [executed(asked[0]), executed(asked[1], value="late", index=1)], step_id=first.id
    )
    state = state.with_execution_resumed(now=at(60)).with_current_step(again, now=at(61))
    assert (state.step_count, state.usage.input, state.cost) == (1, 10, 0.5)
    assert [message.content for message in state.store.section().messages] == [
        "What is the weather?", "", "sunny", "and hurry", "late",
    ]  # fmt: skip
    assert len(state.current_step.output_messages) == 3  # type: ignore[union-attr]
    done = state.with_current_step_completed(now=at(62))
    assert is_same(stored_and_loaded(done), done)
    assert done.execution.step_executions[0].duration == 62  # type: ignore[union-attr]


def test_cost_is_unknown_until_an_answer_has_a_price() -> None:
    state = running().with_current_step(final_step())
    assert state.cost is None
    state = state.with_usage(InferenceUsage(input=3), 0.25).with_usage(InferenceUsage(input=1))
    assert state.cost == 0.25
    assert state.usage.input == 24


def test_s19_the_duration_of_a_step_covers_the_driver_call_and_the_tools() -> None:
    state = running().with_current_step(tool_step(), started_at=at(1), now=at(9))
    done = state.with_current_step_completed(now=at(10)).execution.step_executions[0]  # type: ignore[union-attr]
    assert done.duration == 9
    assert (done.started_at, done.completed_at) == (at(1), at(10))


def test_s20_the_duration_grows_between_steps_and_freezes_at_the_end() -> None:
    assert AgentState.fresh().execution_duration() is None
    assert AgentState.fresh().with_execution().execution_duration() == 0
    state = running().with_current_step(tool_step(), now=at(1)).with_current_step_completed(now=at(2))
    assert state.execution.completed_at is None  # type: ignore[union-attr]
    assert state.execution_duration(at(5)) == 5
    assert state.execution_duration(at(9)) == 9
    done = state.with_current_step(final_step()).with_execution_completed(now=at(12))
    assert done.execution_duration(at(99)) == 12


def test_a_completed_step_without_a_current_one_changes_nothing() -> None:
    state = running()
    assert state.with_current_step_completed() is state


def test_a_step_is_archived_with_the_claim_it_was_committed_under() -> None:
    state = running().with_current_step(final_step()).with_execution_completed(claim="claim-7")
    assert state.execution.step_executions[0].claim == "claim-7"  # type: ignore[union-attr]


def test_accessors_without_an_execution() -> None:
    state = AgentState.fresh(system_prompt="p", metadata={"a": 1})
    assert (state.status, state.execution, state.current_step, state.last_step, state.last_step_type) == (None,) * 5
    assert (state.step_count, state.steps, state.errors, state.cost) == (0, (), (), None)
    assert (state.stop_signal, state.last_stop_reason, state.current_step_or_last) == (None, None, None)
    assert (state.has_errors(), state.has_final_response(), state.should_stop()) == (False, False, True)
    assert (state.system_prompt, state.metadata, state.final_response) == ("p", {"a": 1}, "")


def test_accessors_with_steps() -> None:
    state = busy().with_current_step_completed().with_current_step(final_step())
    assert state.last_step_type is AgentStepType.TOOL_EXECUTION
    assert state.current_step_or_last.step_type is AgentStepType.FINAL_RESPONSE  # type: ignore[union-attr]
    assert len(state.steps) == 1


def test_debug_tells_the_state_in_a_few_lines() -> None:
    state = running().with_current_step(final_step()).with_execution_completed()
    assert state.debug() == {
        "agent_id": state.agent_id,
        "status": "completed",
        "stop_reason": "completed",
        "execution_count": 1,
        "has_execution": True,
        "execution_id": state.execution.execution_id,  # type: ignore[union-attr]
        "steps": 1,
        "continuation": "No Stop Signals; Continuation Requested: No",
        "has_errors": False,
        "errors": [],
        "usage": {"input": 20, "output": 7, "cache_write": 0, "cache_read": 0, "reasoning": 0, "requests": 0},
        "cost": state.cost,
    }
    assert AgentState.fresh().debug()["has_execution"] is False


def test_a_subagent_knows_its_parent() -> None:
    parent = AgentState.fresh()
    child = AgentState.fresh(parent_agent_id=parent.agent_id)
    assert child.parent_agent_id == parent.agent_id
    assert stored_and_loaded(child) == child


def test_the_model_override_can_be_taken_back() -> None:
    state = AgentState.fresh(llm_config=LLMConfig(model="test:a", settings={"temperature": 0.1}))  # type: ignore[arg-type]
    assert stored_and_loaded(state).llm_config == state.llm_config
    assert state.with_llm_config(None).llm_config is None
