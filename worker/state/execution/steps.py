"""One step of an execution: what happened (`AgentStep`) and when (`StepExecution`).

Its messages get into the conversation here: tagged, appended once, and found again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from pydantic_core import from_json

from ...errors import StateUnreadable
from ..conversation.context import AgentContext
from ..conversation.messages import DEFAULT, Extent, Message, Role, Span
from ..values.error_info import ErrorInfo
from ..values.field_types import Count, FrozenMapField, Text, UtcDatetime, default_from
from ..values.frozen import FrozenDict, FrozenMap, Json
from ..values.ids import AgentStepId
from ..values.value import Value
from .inference import InferenceResponse
from .requests import RequestKind
from .signals import NO_CONTINUATION, ExecutionContinuation
from .tool_calls import ToolCall, ToolExecution, ToolOutcome, as_text

if TYPE_CHECKING:
    from ..agent_state import AgentState


class AgentStepType(StrEnum):
    """The kinds of steps."""

    TOOL_EXECUTION = "tool_execution"
    FINAL_RESPONSE = "final_response"
    ERROR = "error"


class AgentStep(Value):
    """One driver call and the tool calls it led to.

    Attributes:
        number: From 1 within its execution.
        inputs: Which messages the model saw: section to (generation, count).
        output_messages: What the step said, in conversation order; tagged once the step is in a state.
        outputs: Where the store has these messages; empty before the step is in a state, or when a section it wrote to
            was replaced since.
        errors: Errors of the step itself, without those of its tools; `all_errors` has both.
    """

    id: AgentStepId = default_from(AgentStepId.generate)
    number: Count = 1
    inputs: FrozenMapField[Extent] = FrozenMap[Extent]()
    output_messages: tuple[Message, ...] = ()
    outputs: tuple[Span, ...] = ()
    inference_response: InferenceResponse = InferenceResponse()
    tool_executions: tuple[ToolExecution, ...] = ()
    errors: tuple[ErrorInfo, ...] = ()
    __slots__ = ("_shown_by",)  # the state that shows it: neither stored nor compared

    @classmethod
    def from_inference(
        cls,
        response: InferenceResponse,
        tool_executions: Iterable[ToolExecution] = (),
        *,
        number: int = 1,
        inputs: Mapping[str, Extent] | None = None,
        errors: Iterable[ErrorInfo] = (),
        step_id: AgentStepId | None = None,
    ) -> AgentStep:
        """The step a model's answer and its tools make, with the messages they put into the conversation.

        The provider's data move into the assistant's message, where the next turn needs them.
        """
        executions = tuple(tool_executions)
        messages = step_messages(response, executions)
        moved = any(message.provider is not None for message in messages)
        return cls(
            id=step_id or AgentStepId.generate(),
            number=number,
            inputs=FrozenMap[Extent].of(inputs or {}),
            output_messages=messages,
            inference_response=response.without_provider() if moved else response,
            tool_executions=executions,
            errors=tuple(errors),
        )

    @property
    def step_type(self) -> AgentStepType:
        """Derived: errors beat requested tool calls, and these a final response."""
        if self.has_errors():
            return AgentStepType.ERROR
        return AgentStepType.TOOL_EXECUTION if self.has_tool_calls() else AgentStepType.FINAL_RESPONSE

    @property
    def input_messages(self) -> tuple[Message, ...]:
        """The messages that the model saw; `AgentState.input_messages` takes another compiler.

        Raises:
            StateUnreadable: No state shows the step, as `state.last_step` and `state.steps` do, or they are gone.
        """
        state: AgentState | None = getattr(self, "_shown_by", None)
        if state is None:
            raise StateUnreadable(f"inputs of step {self.number}", "the step belongs to no state; read it from one.")
        return state.input_messages(self)

    @property
    def requested_tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls that the model asks for."""
        return self.inference_response.tool_calls

    @property
    def executed_tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls that ran, or may have run."""
        skipped = (ToolOutcome.BLOCKED, ToolOutcome.NOT_RUN)
        return tuple(execution.tool_call for execution in self.tool_executions if execution.outcome not in skipped)

    @property
    def all_errors(self) -> tuple[ErrorInfo, ...]:
        """The tools' errors, then the step's own."""
        of_tools = (execution.error_info() for execution in self.tool_executions)
        return (*(error for error in of_tools if error is not None), *self.errors)

    @property
    def output_text(self) -> str:
        """The text of the assistant in this step."""
        texts = (message.content for message in self.output_messages if message.role is Role.ASSISTANT)
        return "\n".join(text for text in texts if text)

    def has_tool_calls(self) -> bool:
        """The model requested any, executed or not."""
        return bool(self.inference_response.tool_calls)

    def has_errors(self) -> bool:
        """Tell whether the step or a tool call of it has an error."""
        return bool(self.errors) or any(execution.has_error() for execution in self.tool_executions)

    def has_failed(self) -> bool:
        """As the last step it fails its execution: an error of its own or of a tool. A blocked call is none."""
        failures = (ToolOutcome.ERROR, ToolOutcome.UNKNOWN)
        return bool(self.errors) or any(execution.outcome in failures for execution in self.tool_executions)

    def has_final_response(self) -> bool:
        """It is a final response, and not a blank one."""
        return self.step_type is AgentStepType.FINAL_RESPONSE and bool(self.output_text.strip())

    def with_error(self, error: ErrorInfo) -> AgentStep:
        """Add an error."""
        return self._with(errors=(*self.errors, error))

    def shown_by(self, state: AgentState) -> AgentStep:
        """The same, as a state shows it."""
        shown = self._with()
        object.__setattr__(shown, "_shown_by", state)
        return shown

    def with_id(self, step_id: AgentStepId) -> AgentStep:
        """The same under another id."""
        return self._with(id=step_id)

    def with_tool_executions(self, calls: tuple[ToolExecution, ...]) -> AgentStep:
        """Replace the calls that were carried out."""
        return self._with(tool_executions=calls)

    def with_outputs(self, messages: tuple[Message, ...], spans: tuple[Span, ...]) -> AgentStep:
        """The same with these messages, which the store has at these spans."""
        return self._with(output_messages=messages, outputs=spans)


class StepExecution(Value):
    """A step that is done.

    Attributes:
        id: The step's.
        continuation: The signals at its end.
        claim: The claim it was committed under; empty outside a worker.
    """

    id: AgentStepId
    step: AgentStep
    continuation: ExecutionContinuation = NO_CONTINUATION
    started_at: UtcDatetime
    completed_at: UtcDatetime
    claim: Text = ""

    @property
    def duration(self) -> float:
        """Seconds since its last claim: of the driver call and the tools together where it has had no other one."""
        return (self.completed_at - self.started_at).total_seconds()

    def with_step(self, step: AgentStep) -> StepExecution:
        """Replace the step."""
        return self if step is self.step else self._with(id=step.id, step=step)

    def with_claim(self, claim: str) -> StepExecution:
        """The same under this claim."""
        return self._with(claim=claim)


def step_messages(response: InferenceResponse, executions: Iterable[ToolExecution]) -> tuple[Message, ...]:
    """The conversation a step adds: one assistant message with all its calls, then each result in call order.

    Text that only repeats the arguments of a call is left out. Calls without an execution have no result yet.
    """
    results = tuple(_tool_message(execution) for execution in sorted(executions, key=lambda each: each.index))
    content = _spoken_text(response)
    if not (content.strip() or response.tool_calls):
        return results
    assistant = Message(
        role=Role.ASSISTANT, content=content, tool_calls=response.tool_calls, provider=response.provider
    )
    return (assistant, *results)


def _spoken_text(response: InferenceResponse) -> str:
    if not response.content.strip() and response.output is not None and not response.tool_calls:
        return as_text(response.output)
    return "" if response.tool_calls and _repeats_args(response) else response.content


def _repeats_args(response: InferenceResponse) -> bool:
    text = response.content.strip()
    if not text.startswith("{"):
        return False
    try:
        said: Json = from_json(text)
    except ValueError:
        return False
    return any(call.args in (said, text) for call in response.tool_calls)


def _tool_message(execution: ToolExecution) -> Message:
    call = execution.tool_call
    return Message(
        role=Role.TOOL,
        content=execution.as_message(),
        tool_call_id=call.id,
        name=call.name,
        is_error=execution.has_error(),
        metadata=FrozenDict.of({"tool_execution_id": str(execution.id), **_origin(execution)}),
    )


def _origin(execution: ToolExecution) -> dict[str, bool]:
    """The tags of a result that is not the tool's own."""
    asked = execution.resolutions
    is_from_outside = bool(asked) and asked[-1].kind is RequestKind.EXTERNAL
    tags = {"was_blocked": execution.was_blocked(), "is_from_outside": is_from_outside}
    return {name: True for name, holds in tags.items() if holds}


def with_step_output(state: AgentState, step: AgentStep) -> tuple[AgentContext, AgentStep]:
    """The context with the step's new messages, and the step that knows where they are."""
    known, spans = _already_there(state, step)
    added = _tag_messages(state, step, step.output_messages[len(known) :])
    if not added:
        return state.context, step.with_outputs(known, spans)
    if spans or not known:
        spans = _append_span(spans, _end_of(state, len(added)))
    return state.context.with_messages_added(added), step.with_outputs(known + added, spans)


def _end_of(state: AgentState, added: int) -> Span:
    generation, length = state.store.section().extent
    return Span(section=DEFAULT, generation=generation, start=length, stop=length + added)


def _already_there(state: AgentState, step: AgentStep) -> tuple[tuple[Message, ...], tuple[Span, ...]]:
    """The messages that the same step said before; without spans where the section was replaced since."""
    current = state.current_step
    if current is None or current.id != step.id:
        return (), ()
    return current.output_messages, current.outputs


def _append_span(spans: tuple[Span, ...], span: Span) -> tuple[Span, ...]:
    if spans and spans[-1][:2] == span[:2] and spans[-1].stop == span.start:
        return (*spans[:-1], spans[-1]._replace(stop=span.stop))
    return (*spans, span)


def _tag_messages(state: AgentState, step: AgentStep, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    tags = _tags(state, step)
    return tuple(message.with_tags(tags) for message in messages)


def _tags(state: AgentState, step: AgentStep) -> dict[str, Json]:
    assert state.execution is not None
    tags: dict[str, Json] = {
        "step_id": str(step.id),
        "execution_id": str(state.execution.tag_id),
        "agent_id": str(state.agent_id),
    }
    if step.step_type is not AgentStepType.FINAL_RESPONSE:
        tags["is_trace"] = True
    return tags
