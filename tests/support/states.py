"""States to test with: a few built by hand, and hypothesis strategies for every value of the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from celery_agents.worker.state import (
    AgentContext,
    AgentId,
    AgentState,
    AgentStep,
    AgentStepId,
    ErrorInfo,
    ExecutionBudget,
    ExecutionContinuation,
    ExecutionId,
    ExecutionState,
    ExecutionStatus,
    FinishReason,
    FrozenDict,
    InferenceResponse,
    InferenceUsage,
    LLMConfig,
    Message,
    MessageStore,
    ResponseFormat,
    ResponseFormatType,
    Role,
    Section,
    StepExecution,
    StopReason,
    StopSignal,
    StopSignals,
    ToolCall,
    ToolExecution,
    ToolExecutionId,
    ToolOutcome,
    freeze,
    join,
    message_json,
    split,
    step_json,
)

NOON = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """So many seconds after noon."""
    return NOON + timedelta(seconds=seconds)


def call(name: str = "weather", args: Mapping[str, Any] | str | None = None, id: str = "call_1") -> ToolCall:
    return ToolCall(id=id, name=name, args={"city": "Paris"} if args is None else args)


def executed(
    tool_call: ToolCall | None = None,
    outcome: ToolOutcome = ToolOutcome.OK,
    value: Any = "sunny",
    error: ErrorInfo | None = None,
    index: int = 0,
) -> ToolExecution:
    return ToolExecution(
        tool_call=tool_call or call(),
        outcome=outcome,
        value=value if outcome is ToolOutcome.OK else None,
        error=error,
        started_at=at(1),
        completed_at=at(2),
        index=index,
    )


def failed(message: str = "no such city", kind: str = "tool_error") -> ToolExecution:
    return executed(outcome=ToolOutcome.ERROR, error=ErrorInfo(kind=kind, message=message))


def answer(content: str = "", *tool_calls: ToolCall, **fields: Any) -> InferenceResponse:
    return InferenceResponse(content=content, tool_calls=tool_calls, **fields)


def tool_step(*executions: ToolExecution, content: str = "", number: int = 1) -> AgentStep:
    """A step that asked for tools."""
    done = executions or (executed(),)
    response = answer(content, *(each.tool_call for each in done), usage=InferenceUsage(input=10, output=5))
    return AgentStep.from_inference(response, done, number=number)


def final_step(content: str = "It is sunny.", number: int = 1) -> AgentStep:
    """A step that answered."""
    return AgentStep.from_inference(answer(content, usage=InferenceUsage(input=20, output=7)), number=number)


def running(message: str = "What is the weather?", budget: ExecutionBudget | None = None) -> AgentState:
    """An agent with an execution in progress since noon."""
    state = AgentState.fresh(system_prompt="Be brief.", now=NOON).with_user_message(message, now=NOON)
    return state.with_execution(budget=budget or ExecutionBudget(), now=NOON).with_execution_started(now=NOON)


def stored_and_loaded(state: AgentState) -> AgentState:
    """The state after a store has had it."""
    parts = split(state)
    sections = {name: [message_json(each) for each in section.messages] for name, section in parts.sections.items()}
    return join(parts.head, sections, [step_json(each) for each in parts.steps])


def is_same(one: Any, other: Any) -> bool:
    """Equal, of the same types all the way down (`1 == True == 1.0`), and stored alike."""
    return one == other and repr(one) == repr(other) and one.to_json() == other.to_json()


texts = st.text(max_size=20)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}", fullmatch=True)
moments = st.datetimes(timezones=st.just(UTC))
counts = st.integers(0, 2**63 - 1)
small_counts = st.integers(0, 10**6)
amounts = st.floats(0, 1e9, allow_nan=False)
json_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
json_values = st.recursive(
    json_scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)
frozen_values = json_values.map(freeze)
frozen_dicts = st.dictionaries(texts, json_values, max_size=3).map(FrozenDict)


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


def tuples(strategy: st.SearchStrategy[Any], size: int = 3) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(strategy, max_size=size).map(tuple)


usages = st.builds(InferenceUsage, *(), **dict.fromkeys(InferenceUsage.model_fields, small_counts))
errors = st.builds(ErrorInfo, kind=texts, message=texts, retryable=st.booleans(), details=frozen_dicts)
budgets = st.builds(
    ExecutionBudget,
    max_steps=optional(small_counts),
    max_tokens=optional(small_counts),
    max_seconds=optional(amounts),
    max_cost=optional(amounts),
    deadline=optional(moments),
)
signals = st.builds(
    StopSignal, reason=st.sampled_from(StopReason), message=texts, context=frozen_dicts, source=optional(texts)
)
continuations = st.builds(
    ExecutionContinuation,
    stop_signals=st.lists(signals, max_size=3).map(StopSignals),
    is_continuation_requested=st.booleans(),
)
tool_calls = st.builds(ToolCall, id=names, name=texts, args=frozen_dicts | texts)
tool_executions = st.builds(
    ToolExecution,
    id=names.map(ToolExecutionId),
    tool_call=tool_calls,
    outcome=st.sampled_from(ToolOutcome),
    value=frozen_values,
    error=optional(errors),
    started_at=moments,
    completed_at=moments,
    index=small_counts,
)
messages = st.builds(
    Message,
    role=st.sampled_from(Role),
    content=texts,
    tool_calls=tuples(tool_calls, 2),
    tool_call_id=optional(texts),
    name=optional(texts),
    is_error=st.booleans(),
    metadata=frozen_dicts,
    provider=optional(frozen_dicts),
)
responses = st.builds(
    InferenceResponse,
    content=texts,
    tool_calls=tuples(tool_calls, 2),
    usage=usages,
    finish_reason=st.sampled_from(FinishReason),
    model=optional(texts),
    request_id=optional(texts),
    cost=optional(amounts),
    thinking=optional(texts),
    output=frozen_values,
    provider=optional(frozen_dicts),
)
steps = st.builds(
    AgentStep,
    id=names.map(AgentStepId),
    number=small_counts,
    output_messages=tuples(messages, 2),
    inference_response=responses,
    tool_executions=tuples(tool_executions, 2),
    errors=tuples(errors, 2),
)
step_executions = st.builds(
    StepExecution,
    id=names.map(AgentStepId),
    step=steps,
    continuation=continuations,
    started_at=moments,
    completed_at=moments,
    claim=texts,
)
executions = st.builds(
    ExecutionState,
    execution_id=names.map(ExecutionId),
    number=small_counts,
    status=st.sampled_from(ExecutionStatus),
    budget=budgets,
    created_at=moments,
    started_at=optional(moments),
    completed_at=optional(moments),
    waited_seconds=amounts,
    waiting_since=optional(moments),
    step_executions=tuples(step_executions, 2),
    step_count=small_counts,
    usage=usages,
    cost=optional(amounts),
    continuation=continuations,
    current_step_started_at=optional(moments),
    current_step=optional(steps),
    errors=tuples(errors, 2),
    operation_id=optional(texts),
    retries=small_counts,
    steps_before_retry=small_counts,
    steps_generation=small_counts,
)
stores = st.dictionaries(names, st.builds(Section, generation=small_counts, messages=tuples(messages)), max_size=3).map(
    lambda sections: MessageStore(sections=sections)
)
formats = st.builds(
    ResponseFormat,
    type=st.sampled_from(ResponseFormatType),
    json_schema=optional(frozen_dicts),
    name=texts,
    strict=st.booleans(),
)
contexts = st.builds(
    AgentContext, store=stores, metadata=frozen_dicts, system_prompt=texts, response_format=optional(formats)
)
states = st.builds(
    AgentState,
    agent_id=names.map(AgentId),
    parent_agent_id=optional(names.map(AgentId)),
    created_at=moments,
    updated_at=moments,
    execution_count=small_counts,
    llm_config=optional(st.builds(LLMConfig, model=optional(texts), base_url=optional(texts))),
    context=contexts,
    execution=optional(executions),
)
values: Mapping[str, st.SearchStrategy[Any]] = {
    "AgentContext": contexts,
    "AgentState": states,
    "AgentStep": steps,
    "ErrorInfo": errors,
    "ExecutionBudget": budgets,
    "ExecutionContinuation": continuations,
    "ExecutionState": executions,
    "InferenceResponse": responses,
    "InferenceUsage": usages,
    "Message": messages,
    "MessageStore": stores,
    "ResponseFormat": formats,
    "StepExecution": step_executions,
    "StopSignal": signals,
    "ToolCall": tool_calls,
    "ToolExecution": tool_executions,
}

Change = Callable[[AgentState], AgentState]


def _replaced(sections: list[Message]) -> Change:
    return lambda state: state.with_messages(sections)


def _completed(state: AgentState) -> AgentState:
    return state.with_current_step_completed(claim="claim")


def _next(state: AgentState) -> AgentState:
    return state.for_next_execution().with_execution().with_execution_started()


def _same_step_again(state: AgentState) -> AgentState:
    """What a step that waited for an answer does: the same step, with a message more."""
    step = state.current_step
    if step is None:
        return state
    return state.with_current_step(step.with_outputs((*step.output_messages, Message.assistant("more")), step.outputs))


changes_of_state: st.SearchStrategy[list[Change]] = st.lists(
    st.one_of(
        texts.map(lambda text: lambda state: state.with_user_message(text)),
        st.tuples(names, st.lists(messages, max_size=2)).map(
            lambda given: lambda state: state.with_messages_added(given[1], given[0])
        ),
        st.lists(messages, max_size=2).map(_replaced),
        stores.map(lambda store: lambda state: state.with_message_store(store)),
        st.tuples(texts, json_values).map(lambda given: lambda state: state.with_metadata(*given)),
        steps.map(lambda step: lambda state: state.with_current_step(step.with_outputs(step.output_messages, ()))),
        st.just(_completed),
        st.just(_same_step_again),
        signals.map(lambda signal: lambda state: state.with_stop_signal(signal)),
        st.just(lambda state: state.with_execution_continued()),
        st.just(_next),
    ),
    max_size=12,
)
"""What may happen to a state with an execution in progress, in any order."""
