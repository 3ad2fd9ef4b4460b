"""The document "State And Public Types" (Cognipeer): its types in Python, field by field.

What the document passes to `agent.resolveUserQuestion` is answered by workers in `integration/test_people.py`.
"""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from celery_agents import Agent, AgentClient, AsyncAgentClient
from celery_agents.tasks.client.pending import (
    PendingUserQuestion,
    ToolApprovalResolution,
    UserQuestionEvent,
    UserQuestionResolution,
)
from celery_agents.testing import script
from celery_agents.worker.capabilities import (
    AgentLimits,
    NativeReasoning,
    PlanEvent,
    Planning,
    PlanStepRecord,
    ReasoningConfig,
    Reflection,
    ReflectionConfig,
    ReflectionEvent,
    ReflectionRecord,
    ReflectionUsage,
    RuntimeProfile,
    SmartState,
    Tracing,
)
from celery_agents.worker.errors import ConfigurationError
from celery_agents.worker.requests import UserQuestionAnswer, UserQuestionItem, UserQuestionOption
from celery_agents.worker.session import (
    InlineRunner,
    InMemorySessionStore,
    SendMessage,
    SessionRepository,
    SessionRuntime,
)
from celery_agents.worker.state import AgentState, ExecutionBudget, Message

TYPES: dict[type, str] = {
    SmartState: """messages tool_history tool_history_archived summaries summary_records memory_facts plan plan_version
        reflections pending_approvals pending_user_questions ctx""",
    UserQuestionOption: "label value description preview",
    UserQuestionItem: "question header multi_select placeholder options required",
    PendingUserQuestion: """id tool_call_id tool_name questions status requested_at answered_at answered_by answers
        cancelled notes allow_free_text metadata""",
    UserQuestionAnswer: "values free_text notes",
    UserQuestionResolution: "id answers answered_by notes cancelled",
    UserQuestionEvent: "type status id tool_call_id questions answers answered_by allow_free_text",
    ReasoningConfig: "enabled level native reflection",
    NativeReasoning: "effort budget_tokens include_thoughts provider_extras",
    ReflectionConfig: """enabled cadence mode max_tokens max_chars keep_last summarize prompt_template emit_events
        max_per_run every_n_turns""",
    ReflectionRecord: "id turn text created_at duration_ms anchor_message_index trigger usage tool_call_ids",
    ReflectionUsage: "input_tokens output_tokens cached_input_tokens total_tokens reasoning_tokens",
    ReflectionEvent: "type id turn text trigger duration_ms usage tool_call_ids",
    PlanStepRecord: "id step owner exit_criteria evidence status title description",
    PlanEvent: "type source operation todo_list version adherence_score",
    AgentLimits: """max_tool_calls max_parallel_tools max_context_tokens max_total_output_tokens max_cost_usd
        max_wall_clock_ms token_counter cost_estimator""",
    Tracing: "enabled mode thread_id log_data sinks",
}


def names_of(kind: type) -> set[str]:
    listed = {each.name for each in fields(kind)} if is_dataclass(kind) else set(getattr(kind, "model_fields", ()))
    return listed | {name for name, _ in inspect.getmembers(kind, lambda each: isinstance(each, property))}


@pytest.mark.parametrize(("kind", "names"), TYPES.items())
def test_every_field_of_the_document_is_there(kind: type, names: str) -> None:
    assert set(names.split()) - names_of(kind) == set()


# --- SmartState -----------------------------------------------------------------------------------------------


def test_a_smart_state_is_made_shown_and_given_back() -> None:
    state = SmartState(messages=[Message.user("hi")], ctx={"customer": 7})
    assert ([each.content for each in state.messages], state.ctx, state.plan) == (["hi"], {"customer": 7}, None)
    assert isinstance(state.agent_state, AgentState)
    assert SmartState.of(state.agent_state) == state
    assert state.agent_state.smart.ctx == state.ctx


def test_a_name_of_the_stored_state_is_read_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="SmartState.step_count: read agent_state.step_count"):
        assert SmartState().step_count == 0
    with pytest.raises(AttributeError, match="agent_state is the whole state"):
        _ = SmartState().nonsense


@pytest.mark.parametrize("name", ["messages", "state", "other"])
def test_a_smart_state_takes_no_change(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(SmartState(), name, ())


def run(agent: Agent) -> SmartState:
    runtime = SessionRuntime(SessionRepository(InMemorySessionStore()))
    session = runtime.create(agent)
    return SmartState.of(runtime.execute(session.session_id, SendMessage("hi", InlineRunner([agent]))).state)


def test_a_smart_state_shows_what_an_agent_did() -> None:
    state = run(Agent("a", driver=script("done"), capabilities=[Planning()]))
    assert [each.content for each in state.messages] == ["hi", "done"]
    assert (state.tool_history, state.reflections, state.pending_user_questions) == ((), (), ())


# --- options of an agent --------------------------------------------------------------------------------------

REASONING = ReasoningConfig(
    enabled=True,
    level="medium",
    native=NativeReasoning(effort="low", budget_tokens=2_000, include_thoughts=True),
    reflection=ReflectionConfig(cadence="after_tool", mode="separate", max_per_run=3, every_n_turns=2),
)
LIMITS = AgentLimits(max_tool_calls=5, max_parallel_tools=2, max_wall_clock_ms=60_000)


def found(agent: Agent, kind: type) -> Any:
    (one,) = [each for each in agent.capabilities if isinstance(each, kind)]
    return one


def test_reasoning_and_limits_are_options_of_an_agent() -> None:
    agent = Agent("a", driver=script("done"), reasoning=REASONING, limits=LIMITS)
    assert found(agent, AgentLimits) is LIMITS
    assert found(agent, Reflection).config == REASONING
    assert (agent.max_parallel_tools, agent.effective_budget) == (2, ExecutionBudget(max_seconds=60))
    assert run(agent).messages[-1].content == "done"


def test_options_are_the_same_as_the_capabilities() -> None:
    listed = Agent("a", driver=script("done"), capabilities=[LIMITS, Reflection(REASONING)])
    given = Agent("a", driver=script("done"), limits=LIMITS, reasoning=REASONING)
    assert given.capabilities == tuple(listed.capabilities)
    assert given.definition == listed.definition


def test_limits_complete_a_profile() -> None:
    agent = Agent("a", driver=script("done"), profile=RuntimeProfile.custom("deep"), limits=LIMITS)
    assert found(agent, AgentLimits).max_tool_calls == 5


def test_a_replaced_agent_keeps_its_options_once() -> None:
    agent = Agent("a", driver=script("done"), reasoning=REASONING, limits=LIMITS)
    other = replace(agent, budget=ExecutionBudget(max_steps=9))
    assert other.capabilities == agent.capabilities
    assert other.effective_budget == ExecutionBudget(max_steps=9, max_seconds=60)


def test_the_limits_of_an_agent_are_read_by_another_name() -> None:
    agent = Agent("a", driver=script("done"), budget=ExecutionBudget(max_steps=9))
    with pytest.warns(DeprecationWarning, match="read Agent.effective_budget"):
        assert agent.limits == ExecutionBudget(max_steps=9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limits": ExecutionBudget(max_steps=1)}, "limits=.* must be AgentLimits; .* budget="),
        ({"reasoning": "high"}, "reasoning='high' must be ReasoningConfig"),
        ({"limits": LIMITS, "capabilities": [AgentLimits()]}, "AgentLimits and AgentLimits"),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_its_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Agent("a", driver=script("done"), **options)


# --- resolutions ----------------------------------------------------------------------------------------------


def test_both_clients_resolve_with_the_types_of_the_document() -> None:
    for client in (AgentClient, AsyncAgentClient):
        for verb, kind in (
            ("resolve_user_question", UserQuestionResolution),
            ("resolve_tool_approval", ToolApprovalResolution),
        ):
            parameters = inspect.signature(getattr(client, verb), eval_str=True).parameters
            assert list(parameters)[-2:] == ["session_id", "resolution"]
            assert parameters["resolution"].annotation is kind
