"""One answer of a model, in the same shape whichever driver gave it."""

from __future__ import annotations

from enum import StrEnum

from ..values.field_types import Amount, JsonField, Text
from ..values.frozen import FrozenDict
from ..values.value import Value
from .tool_calls import ToolCall, unique_call_ids
from .usage import NO_USAGE, InferenceUsage


class FinishReason(StrEnum):
    """Why the model ended its answer."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"
    ERROR = "error"
    OTHER = "other"
    INTERRUPTED = "interrupted"  # not by the provider: a message came first, and the answer is what there was by then

    def is_cut_short(self) -> bool:
        """Tell whether the answer is incomplete: it ran into a limit of its length, a filter, or an error."""
        return self in (FinishReason.LENGTH, FinishReason.CONTENT_FILTER, FinishReason.ERROR)


class InferenceResponse(Value):
    """One answer.

    Attributes:
        cost: US dollars; None when the price is unknown.
        thinking: What the model let us see of its reasoning.
        output: The structured output, when the agent asked for one.
        provider: What the driver needs back on the next turn; opaque.
    """

    content: Text = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: InferenceUsage = NO_USAGE
    finish_reason: FinishReason = FinishReason.STOP
    model: Text | None = None
    request_id: Text | None = None
    cost: Amount | None = None
    thinking: Text | None = None
    output: JsonField = None
    provider: FrozenDict | None = None

    def without_provider(self) -> InferenceResponse:
        """The same answer without the provider's own data."""
        return self._with(provider=None)

    def with_unique_call_ids(self) -> InferenceResponse:
        """The same answer, in which no two calls have the same id."""
        given = tuple(call.id for call in self.tool_calls)
        ids = unique_call_ids(given)
        if ids == given:
            return self
        return self._with(tool_calls=tuple(map(ToolCall.with_id, self.tool_calls, ids)))

    def has_tool_calls(self) -> bool:
        """Tell whether the model asks for tool calls."""
        return bool(self.tool_calls)
