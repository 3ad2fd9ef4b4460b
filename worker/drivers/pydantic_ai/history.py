"""Convert session messages to pydantic-ai's, with the parts of its own answers that a provider must see again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ...state.conversation.messages import Message, Role
from ...state.execution.tool_calls import ToolCall
from ...state.values.frozen import FrozenDict, thaw

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequestPart, ModelResponse, ModelResponsePart

_FORMAT: Final = "pydantic-ai/1"
_KEPT_OF_RESPONSE: Final = (
    "provider_name",
    "provider_url",
    "canonical_system",
    "model_name",
    "provider_response_id",
    "provider_details",
    "history_digest",
)
"""What adapters look at when they decide whether the parts may go back to the provider."""

_KEPT_ELSEWHERE: Final = frozenset({"finish_reason", "timestamp"})
"""Details of a response that are in the step already."""

_IN_MESSAGE: Final = frozenset({"part_kind", "content", "tool_name", "args", "tool_call_id"})
"""Fields of texts and calls that our message has; all others go back with it: ids, details, citations."""

_OF_PLAIN: Final = _IN_MESSAGE | {"provider_name", "otel_metadata"}


def model_messages(messages: Iterable[Message], *, marks_errors: bool) -> list[ModelMessage]:
    """The conversation as pydantic-ai takes it.

    The same messages give the same request, whichever worker builds it: all that a provider must see again is in them.

    Args:
        messages: What the model is to read, calls and results in pairs.
        marks_errors: The provider has a mark for failed tool calls; elsewhere the result's text says it.
    """
    from pydantic_ai.messages import ModelRequest

    history: list[ModelMessage] = []
    asked: list[ModelRequestPart] = []
    for message in _without_open_end(messages):
        if message.role is Role.ASSISTANT:
            if asked:
                history.append(ModelRequest(parts=asked))
                asked = []
            history.append(_response(message))
        else:
            asked.append(_request_part(message, marks_errors))
    if asked or not history:
        history.append(ModelRequest(parts=asked))
    return history


def _without_open_end(messages: Iterable[Message]) -> list[Message]:
    """Leave out answers at the end that a message has interrupted and that it does not follow, as it was taken back.

    The model is asked as it was before. Some refuse a request that ends with an answer, others would go on with it.
    """
    left = [*messages]
    while len(left) > 1 and left[-1].role is Role.ASSISTANT and not left[-1].tool_calls:
        del left[-1]
    return left


def _request_part(message: Message, marks_errors: bool) -> ModelRequestPart:
    from pydantic_ai.messages import SystemPromptPart, ToolReturnPart, UserPromptPart

    if message.role is Role.SYSTEM:
        return SystemPromptPart(message.content)
    if message.role is Role.USER:
        return UserPromptPart(message.content)
    return ToolReturnPart(
        tool_name=message.name or "",
        content=message.content,
        tool_call_id=message.tool_call_id or "",
        outcome="failed" if message.is_error and marks_errors else "success",
    )


def _response(message: Message) -> ModelResponse:
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

    if message.provider is not None and message.provider.get("format") == _FORMAT:
        restored = _restore_response(message, message.provider)
        if restored is not None:
            return restored
    texts: list[ModelResponsePart] = [TextPart(message.content)] if message.content else []
    return ModelResponse(parts=[*texts, *(ToolCallPart(c.name, c.args_json(), c.id) for c in message.tool_calls)])


def needs_back(response: ModelResponse, content: str) -> FrozenDict | None:
    """Collect what this response's message must hold for the next turn beyond text and calls; None when nothing.

    Thinking and its signatures, ids and details of parts, the order of parts. Text and calls are not repeated: they are
    named by their place in the message.

    Args:
        response: The provider's answer.
        content: The text of our message, in which the texts of the answer follow each other.
    """
    if _is_plain(response.parts) and response.history_digest is None:
        return None
    dumped = _dump(response)
    parts = _kept_parts(response.parts, dumped["parts"], content)
    return FrozenDict(
        {
            "format": _FORMAT,
            "chars": len(content),
            "calls": len(response.tool_calls),
            "response": _kept_of_response(dumped),
            "parts": parts,
        }
    )


def _kept_parts(parts: Iterable[ModelResponsePart], dumped: Iterable[dict[str, Any]], content: str) -> list[Any]:
    kept: list[Any] = []
    at, calls = 0, 0
    for part, data in zip(parts, dumped, strict=True):
        extra = {name: value for name, value in data.items() if value is not None and name not in _IN_MESSAGE}
        if part.part_kind == "text":
            start = content.index(part.content, at)
            at = start + len(part.content)
            kept.append({"text": [start, at], **extra})
        elif part.part_kind == "tool-call":
            kept.append({"call": calls, **extra})
            calls += 1
        else:
            kept.append({name: value for name, value in data.items() if value is not None and name != "timestamp"})
    return kept


def _kept_of_response(dumped: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: dumped[name] for name in _KEPT_OF_RESPONSE if dumped.get(name)}
    details: dict[str, Any] = kept.pop("provider_details", {})
    other = {name: value for name, value in details.items() if name not in _KEPT_ELSEWHERE}
    return {**kept, "provider_details": other} if other else kept


def _is_plain(parts: Iterable[ModelResponsePart]) -> bool:
    """At most one text, then calls, and nothing on them: exactly what our message says."""
    allowed = ["text", "tool-call"]
    for part in parts:
        kind = part.part_kind
        if kind not in allowed or any(value for name, value in vars(part).items() if name not in _OF_PLAIN):
            return False
        allowed = ["tool-call"]
    return True


def _dump(response: ModelResponse) -> dict[str, Any]:
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    return ModelMessagesTypeAdapter.dump_python([response], mode="json")[0]


def _restore_response(message: Message, kept: FrozenDict) -> ModelResponse | None:
    """The provider's answer; None when the message has other calls now, or what was kept cannot be read any more."""
    from pydantic import ValidationError
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    data = thaw(kept)
    if data["calls"] != len(message.tool_calls):
        return None
    same_text = data["chars"] == len(message.content)
    parts = [_part(part, message, same_text) for part in data["parts"]]
    found = [part for part in parts if part is not None]
    if not same_text and message.content:
        found.append({"part_kind": "text", "content": message.content})
    raw = {"kind": "response", **data["response"], "parts": found}
    try:
        response: Any = ModelMessagesTypeAdapter.validate_python([raw])[0]
    except ValidationError:
        return None
    return response


def _part(kept: Mapping[str, Any], message: Message, same_text: bool) -> dict[str, Any] | None:
    extra = {name: value for name, value in kept.items() if name not in ("text", "call")}
    if "text" in kept:
        start, stop = kept["text"]
        return {"part_kind": "text", "content": message.content[start:stop], **extra} if same_text else None
    if "call" in kept:
        call: int = kept["call"]
        return {"part_kind": "tool-call", **_call(message.tool_calls[call]), **extra}
    return dict(kept)


def _call(call: ToolCall) -> dict[str, Any]:
    return {"tool_name": call.name, "args": call.args_json(), "tool_call_id": call.id}
