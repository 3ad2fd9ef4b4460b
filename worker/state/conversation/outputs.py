"""How a step's messages get into the conversation: tagged, appended once, and found again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..execution.steps import AgentStep, AgentStepType
from ..values.frozen import Json
from .context import AgentContext
from .messages import DEFAULT, Message, Span

if TYPE_CHECKING:
    from ..agent_state import AgentState


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
