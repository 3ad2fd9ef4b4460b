"""An execution that a fork goes on with: its messages stay those of one execution."""

from __future__ import annotations

from celery_agents.worker.state import AgentState, ConversationWithCurrentToolTrace
from celery_agents.worker.state.values.ids import ExecutionId

from support.states import final_step, running, tool_step


def forked(state: AgentState, name: str) -> AgentState:
    assert state.execution is not None
    return state.with_context_and_execution(state.context, state.execution.as_fork(ExecutionId(name), idle=0.0))


def stepped(state: AgentState, number: int) -> AgentState:
    return state.with_current_step(tool_step(content=f"step {number}", number=number)).with_current_step_completed()


def test_calls_and_results_from_before_a_fork_are_shown_to_the_model_with_those_behind_it() -> None:
    source = stepped(running(), 1)
    state = stepped(forked(stepped(forked(source, "b"), 2), "c"), 3)
    assert ConversationWithCurrentToolTrace().compile(state) == state.store.section().messages
    assert len({each.metadata["execution_id"] for each in state.messages[1:]}) == 1
    assert state.execution is not None
    assert state.execution.execution_id == "c"
    assert state.tag_id_of("c") == source.execution.execution_id  # type: ignore[union-attr]
    assert state.tag_id_of("b") == "b"


def test_the_execution_behind_a_forked_one_has_tags_of_its_own_and_does_not_show_what_that_has_called() -> None:
    state = forked(stepped(running(), 1), "b").with_current_step(final_step(number=2)).with_execution_completed()
    state = state.for_next_execution().with_user_message("And then?").with_execution("d").with_execution_started()
    assert state.tag_id_of("d") == "d"
    assert [each.content for each in ConversationWithCurrentToolTrace().compile(state)] == [
        "What is the weather?", "It is sunny.", "And then?",
    ]  # fmt: skip
