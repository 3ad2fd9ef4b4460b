"""How messages of pydantic-ai, and results of its tool calls, are stored and read back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic_core import from_json

from ..state.conversation.messages import Message
from ..state.execution.tool_calls import ERROR_WORDS, as_text
from ..state.values.frozen import thaw
from .media import holds_media, limit_contents, stored_bytes

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequestPart

_PARTS: Final = "pydantic_ai_parts"

_TOO_LARGE_QUEUE: Final = "[The messages that the tool has enqueued are left out: they are too large to be stored.]"


_KIND_OF_ERROR: Final = re.compile(r"\w*(?:: status_code: \d{3})?")


def dump_messages(messages: Sequence[ModelMessage]) -> Any:
    """Messages as JSON; of what providers have said to attempts that failed, which can repeat a key, the kind alone."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    dumped: list[Any] = ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")
    for attempt in (attempt for each in dumped for attempt in each.get("failed_attempts") or ()):
        attempt["error"] = attempt["error"] and _KIND_OF_ERROR.match(attempt["error"])[0]  # type: ignore[index]
    return dumped


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
        most_bytes: The most that is stored of a result; what of its contents is beyond that is left out.
    """
    from pydantic_ai.messages import UserPromptPart

    has_media = any(holds_media(getattr(part, "content", None)) for part in result.parts)
    stored = dump_parts(result.parts)
    if not has_media and _is_value(stored) and not result.queued and dict(result.used) == {"tool_calls": 1}:
        return stored[0]["content"]
    queued = {"queued": list(result.queued)} if result.queued else {}
    parts = list(result.parts)
    if queued and stored_bytes(queued) > most_bytes // 2:  # the result has to be read in any case
        queued, parts = {}, [*parts, UserPromptPart(content=_TOO_LARGE_QUEUE)]
        stored = dump_parts(parts)
    others = {"usage": dict(result.used), **queued}
    if has_media or stored_bytes({_PARTS: stored, **others}) > most_bytes:
        stored = dump_parts(limit_contents(parts, most_bytes - stored_bytes(others)))
    return {_PARTS: stored, **others}


def _is_value(stored: Sequence[Any]) -> bool:
    """Whether the first part of a stored result is all of it, and its content can be read back from its text."""
    from pydantic_ai.messages import ToolReturnPart

    (first,) = stored[:1]
    plain = {**dump_parts([ToolReturnPart(tool_name=first["tool_name"], content=first.get("content"))])[0]}
    same = all(first.get(name) == value for name, value in plain.items() if name not in ("timestamp", "tool_call_id"))
    is_value = _value_of(_text_of(first.get("content"))) == first.get("content")
    is_value = is_value and not (isinstance(first["content"], dict) and _PARTS in first["content"])
    return len(stored) == 1 and same and set(first) == set(plain) and is_value


def _text_of(content: Any) -> str:
    """The content as text; "" where it holds half a character, which the engine replaces in what is stored."""
    try:
        return as_text(content)
    except ValueError:
        return ""


def read_result(message: Message) -> CallResult:
    """The result of a tool's message."""
    from pydantic_ai.messages import ToolReturnPart

    name, call_id = message.name or "", message.tool_call_id or ""
    if message.is_error:
        outcome = "denied" if message.metadata.get("was_blocked") else "failed"
        content = message.content.removeprefix(ERROR_WORDS)
        return CallResult([ToolReturnPart(tool_name=name, content=content, tool_call_id=call_id, outcome=outcome)])
    value = _value_of(message.content)
    is_from_outside = message.metadata.get("is_from_outside", False)
    stored = None if is_from_outside else _stored_parts(value)  # a service writes no parts, whatever it brings
    if stored is not None:
        return CallResult(load_parts(stored[_PARTS]), stored.get("usage") or {}, stored.get("queued") or ())
    used = {} if is_from_outside else {"tool_calls": 1}
    return CallResult([ToolReturnPart(tool_name=name, content=value, tool_call_id=call_id)], used)


def _stored_parts(value: Any) -> dict[str, Any] | None:
    """The form of `write_result` that has parts; None for a value alone."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) and _PARTS in value else None


def _value_of(text: str) -> Any:
    """The value of which this is the text; the text itself, where the text of that value would be another one."""
    try:
        value = from_json(text, allow_inf_nan=False)
    except (ValueError, TypeError):  # TypeError: half a surrogate pair
        return text
    return value if as_text(value) == text else text


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
