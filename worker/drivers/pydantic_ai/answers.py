"""How an answer is journaled, and read.

The raw answer is a line of JSON with what only the asking worker knows (the model asked for, the price, the shape asked
for), a line break, and pydantic-ai's own JSON of the response: nothing the provider said is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from ...errors import UnusableAnswer
from ...state.execution.inference import FinishReason, InferenceResponse
from ...state.execution.tool_calls import ToolCall, as_text
from ...state.execution.usage import InferenceUsage
from ...state.values.field_types import LARGEST_COUNT
from ...state.values.frozen import Json
from .history import needs_back
from .output import OUTPUT_TOOL, OutputShape

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse, ToolCallPart
    from pydantic_ai.usage import RequestUsage

_FORMAT: Final = "pydantic-ai/1"

_FINISH_REASONS: Final = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
    "tool_call": FinishReason.TOOL_CALLS,
    "error": FinishReason.ERROR,
}
_OTHER_WORDS: Final = {
    "model_context_window_exceeded": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "model_length": FinishReason.LENGTH,  # Mistral: the model's context is full
    "error": FinishReason.ERROR,  # OpenRouter: the provider behind it broke off
    "insufficient_system_resource": FinishReason.ERROR,  # DeepSeek: interrupted
    "abort": FinishReason.ERROR,  # vLLM and SGLang
}
"""Words of servers that speak OpenAI's language, unknown to pydantic-ai, for an answer that is not whole."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with what is known about it.

    Attributes:
        response: What the provider said.
        model: What was asked, as `provider:name`.
        cost: US dollars; None when the price is unknown.
        shape: The shape that was asked for; None for text.
    """

    response: ModelResponse
    model: str
    cost: float | None
    shape: OutputShape | None

    def to_raw(self) -> bytes:
        """The bytes to journal."""
        from pydantic_ai.messages import ModelMessagesTypeAdapter

        shape = self.shape.as_dict() if self.shape else None
        head = to_json({"format": _FORMAT, "model": self.model, "cost": self.cost, "shape": shape})
        return head + b"\n" + ModelMessagesTypeAdapter.dump_json([self.response])

    @classmethod
    def from_raw(cls, raw: bytes) -> Answer:
        """Read the journaled bytes.

        Raises:
            UnusableAnswer: It was not written by this driver, or is damaged.
        """
        from pydantic_ai.messages import ModelMessagesTypeAdapter

        try:
            head, _, body = raw.partition(b"\n")
            known: Any = from_json(head)
            if known["format"] != _FORMAT:
                raise ValueError(known["format"])
            shape = OutputShape.from_dict(known["shape"]) if known["shape"] else None
            response: Any = ModelMessagesTypeAdapter.validate_json(body)[0]
            return cls(response=response, model=known["model"], cost=known["cost"], shape=shape)
        except (ValidationError, ValueError, KeyError, TypeError, IndexError):
            raise UnusableAnswer("The journaled answer is not one of this driver.", permanent=True) from None

    def read(self, check: Callable[[Json], None] | None = None) -> InferenceResponse:
        """The answer in our terms.

        Args:
            check: Looks at a structured output once it fits its schema; raises `UnusableAnswer`.

        Raises:
            UnusableAnswer: It is cut off, or does not fit the shape that was asked for.
        """
        response = self.response
        if response.state != "complete":
            raise UnusableAnswer(f"The model's answer is {response.state}, not complete.")
        calls = response.tool_calls
        given = next((call for call in calls if call.tool_name == OUTPUT_TOOL and self.shape), None)
        others = [call for call in calls if self.shape is None or call.tool_name != OUTPUT_TOOL]  # the first counts
        if given is not None and not others:
            return self._with_output(given.args_as_json_str(), check)
        if self.shape is not None and not others and not finish_reason_of(response).is_cut_short():
            return self._with_output(_text(response), check)
        # An output together with calls comes too early: the calls are carried out, and the model is asked again.
        return self._of_text(others, early=given is not None)

    def charge(self, error: UnusableAnswer) -> UnusableAnswer:
        """The error with the tokens and the price of this answer, and with what it said."""
        given = next((call for call in self.response.tool_calls if call.tool_name == OUTPUT_TOOL), None)
        text = given.args_as_json_str() if given is not None else _text(self.response)
        return error.paid(inference_usage(self.response.usage), self.cost, text, self.response.model_name)

    def _of_text(self, calls: list[ToolCallPart], *, early: bool) -> InferenceResponse:
        text = _text(self.response)
        return InferenceResponse(
            content=text,
            tool_calls=tuple(_tool_call(call, position) for position, call in enumerate(calls)),
            provider=None if early else needs_back(self.response, text),
            finish_reason=finish_reason_of(self.response),
            **self._common(),
        )

    def _with_output(self, text: str, check: Callable[[Json], None] | None) -> InferenceResponse:
        assert self.shape is not None
        output: Json = self.shape.read(text, is_checked_next=check is not None)
        if check is not None:
            check(output)
        is_text = not self.response.tool_calls and not self.shape.wrapped
        return InferenceResponse(
            content=text if is_text else as_text(output),
            output=output,
            provider=needs_back(self.response, text) if is_text else None,
            finish_reason=FinishReason.STOP,
            **self._common(),
        )

    def _common(self) -> dict[str, Any]:
        response = self.response
        thoughts = [part.content for part in response.parts if part.part_kind == "thinking" and part.content]
        return {
            "usage": inference_usage(response.usage),
            "model": response.model_name,
            "request_id": response.provider_response_id,
            "cost": self.cost,
            "thinking": "\n\n".join(thoughts) or None,
        }


def _text(response: ModelResponse) -> str:
    return "\n\n".join(part.content for part in response.parts if part.part_kind == "text" and part.content)


def _tool_call(call: ToolCallPart, position: int) -> ToolCall:
    # Some servers send calls without an id.
    call_id = call.tool_call_id or f"call_{position}"
    # As it was written: pydantic-ai's own text of arguments that are no object hides them in one.
    written = call.args if isinstance(call.args, str) else call.args_as_json_str()
    return ToolCall.from_text(call_id, call.tool_name, written)


def finish_reason_of(response: ModelResponse) -> FinishReason:
    """Why the model ended its answer, as its provider says it."""
    if response.finish_reason is not None:
        return _FINISH_REASONS.get(response.finish_reason, FinishReason.OTHER)
    otherwise = FinishReason.TOOL_CALLS if response.tool_calls else FinishReason.OTHER
    return _OTHER_WORDS.get((response.provider_details or {}).get("finish_reason", ""), otherwise)


def inference_usage(usage: RequestUsage) -> InferenceUsage:
    """Count no token twice: pydantic-ai counts cached tokens as input and reasoning as output.

    A count that no field can hold is the largest, as in sums: a provider may claim any number.
    """
    reasoning = min(usage.output_reasoning_tokens, usage.output_tokens)
    cached = usage.cache_read_tokens + usage.cache_write_tokens
    return InferenceUsage(
        input=min(max(0, usage.input_tokens - cached), LARGEST_COUNT),
        output=min(usage.output_tokens - reasoning, LARGEST_COUNT),
        cache_write=min(usage.cache_write_tokens, LARGEST_COUNT),
        cache_read=min(usage.cache_read_tokens, LARGEST_COUNT),
        reasoning=min(reasoning, LARGEST_COUNT),
        requests=1,
    )
