"""How messages of pydantic-ai, and results of its tool calls, are stored and read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic_core import from_json

from ..state.conversation.messages import Message
from ..state.execution.tool_calls import ERROR_WORDS, as_text
from ..state.values.frozen import freeze, thaw
from .media import holds_media, limit_media

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequestPart

_PARTS: Final = "pydantic_ai_parts"


def dump_messages(messages: Sequence[ModelMessage]) -> Any:
    """Messages as JSON."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    return ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")


def load_messages(stored: Any) -> list[ModelMessage]:
    """The messages of `dump_messages`."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    return ModelMessagesTypeAdapter.validate_python(thaw(stored))


@dataclass(slots=True)
class CallResult:
    """The result of a call.

    Attributes:
        parts: What the model gets.
        used: The usage that the call has added, without what is 0.
        queued: Messages that the tool has enqueued, as JSON.
    """

    parts: list[ModelRequestPart]
    used: Mapping[str, Any] = field(default_factory=dict[str, Any])
    queued: Sequence[Any] = ()


def write_result(result: CallResult, most_bytes: int) -> Any:
    """A result as the step stores it: the value alone where that says everything, or else all of it.

    Args:
        most_bytes: The most that is stored of a result; media beyond it are left out.
    """
    has_media = any(holds_media(getattr(part, "content", None)) for part in result.parts)
    parts = limit_media(result.parts, most_bytes) if has_media else result.parts
    stored = dump_parts(parts)
    queued = {"queued": list(result.queued)} if result.queued else {}
    if not has_media and _is_value(stored) and not queued and dict(result.used) == {"tool_calls": 1}:
        return stored[0]["content"]
    return {_PARTS: stored, "usage": dict(result.used), **queued}


def _is_value(stored: Sequence[Any]) -> bool:
    """Whether the first part of a stored result is all of it, and its content can be read back from its text."""
    from pydantic_ai.messages import ToolReturnPart

    (first,) = stored[:1]
    plain = {**dump_parts([ToolReturnPart(tool_name=first["tool_name"], content=first.get("content"))])[0]}
    same = all(first.get(name) == value for name, value in plain.items() if name not in ("timestamp", "tool_call_id"))
    is_value = _value_of(as_text(freeze(first.get("content"), "result"))) == first.get("content")
    is_value = is_value and not (isinstance(first["content"], dict) and _PARTS in first["content"])
    return len(stored) == 1 and same and set(first) == set(plain) and is_value


def read_result(message: Message) -> CallResult:
    """The result of a tool's message."""
    from pydantic_ai.messages import ToolReturnPart

    name, call_id = message.name or "", message.tool_call_id or ""
    if message.is_error:
        outcome = "denied" if message.metadata.get("was_blocked") else "failed"
        content = message.content.removeprefix(ERROR_WORDS)
        return CallResult([ToolReturnPart(tool_name=name, content=content, tool_call_id=call_id, outcome=outcome)])
    value = _value_of(message.content)
    stored = _stored_parts(value)
    if stored is not None:
        return CallResult(load_parts(stored[_PARTS]), stored.get("usage") or {}, stored.get("queued") or ())
    used = {} if message.metadata.get("is_from_outside") else {"tool_calls": 1}
    return CallResult([ToolReturnPart(tool_name=name, content=value, tool_call_id=call_id)], used)


def _stored_parts(value: Any) -> dict[str, Any] | None:
    """The form of `write_result` that has parts; None for a value alone."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) and _PARTS in value else None


def _value_of(text: str) -> Any:
    try:
        return from_json(text)
    except ValueError:
        return text


def dump_parts(parts: Sequence[ModelRequestPart]) -> list[Any]:
    """Parts of a request as JSON."""
    from pydantic_ai.messages import ModelRequest

    return dump_messages([ModelRequest(parts=list(parts))])[0]["parts"] if parts else []


def load_parts(stored: Any) -> list[ModelRequestPart]:
    """The parts of `dump_parts`."""
    if not stored:
        return []
    (request,) = load_messages([{"kind": "request", "parts": thaw(stored)}])
    return list(request.parts)  # type: ignore[arg-type]
