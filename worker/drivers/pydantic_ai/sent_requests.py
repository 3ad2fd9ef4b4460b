"""Describes the request that goes to a provider, so that people can read later what the model saw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic_core import from_json, to_json

from ...recent import KeptWith
from ...state.conversation.messages import Message, Role
from ...state.execution.tool_calls import ToolCall
from ..protocol import SentRequest

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequestPart, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters

    from .acceptable import AcceptableRequest

_LEFT_OUT: Final = frozenset({"timeout", "extra_headers"})
"""Settings that differ in each request, or that can hold keys."""

_PLAIN: Final = frozenset({"system-prompt", "user-prompt", "tool-return"})


def describe_sent(model: Model, sent: AcceptableRequest, *, with_messages: bool) -> SentRequest:
    """Describe a request.

    Args:
        with_messages: The messages are not those of the question; describe them, too.
    """
    parameters = sent.parameters
    prompts, messages = _split(_prepare(model, sent)) if with_messages else ([], None)
    return SentRequest(
        model=model.model_name,
        prompt="\n\n".join(text for text in (*prompts, _instructions(sent)) if text),
        tools=tuple(_describe_tools(parameters)),
        settings=_as_json({name: value for name, value in (sent.settings or {}).items() if name not in _LEFT_OUT}),
        response_format=_describe_format(parameters),
        messages=messages,
    )


def _prepare(model: Model, sent: AcceptableRequest) -> Sequence[ModelMessage]:
    """The messages in parts that every provider knows; pydantic-ai does the same after its hooks."""
    parts = (part.part_kind for message in sent.messages if message.kind == "request" for part in message.parts)
    if _PLAIN.issuperset(parts):
        return sent.messages
    return model.prepare_messages(list(sent.messages), sent.parameters)


def _as_json(value: Any) -> Any:
    """As JSON; of what has no form there, the type's name."""
    return from_json(to_json(value, fallback=lambda each: f"<{type(each).__name__}>", inf_nan_mode="strings"))


def _instructions(sent: AcceptableRequest) -> str:
    parts = sent.parameters.instruction_parts
    if parts is not None:
        return "\n\n".join(part.content for part in parts)
    newest: Any = next((each for each in reversed(sent.messages) if each.kind == "request"), None)
    return (newest.instructions if newest is not None else None) or ""


def _describe_tools(parameters: ModelRequestParameters) -> Iterator[Mapping[str, Any]]:
    for each in (*parameters.function_tools, *parameters.output_tools):
        yield {"name": each.name, "description": each.description or "", "parameters": each.parameters_json_schema}
    for native in parameters.native_tools:
        yield {"name": native.kind, "description": "A tool of the provider's own.", "parameters": {}}


def _describe_format(parameters: ModelRequestParameters) -> Mapping[str, Any] | None:
    wanted = parameters.output_object
    if wanted is None or parameters.output_tools:
        return None
    return {"mode": parameters.output_mode, "name": wanted.name, "json_schema": wanted.json_schema}


def _split(messages: Iterable[ModelMessage]) -> tuple[list[str], tuple[Message, ...]]:
    """The prompts with which the history begins, and the messages behind them."""
    shown = [each for message in messages for each in _show(message)]
    first = next((place for place, each in enumerate(shown) if each.role is not Role.SYSTEM), len(shown))
    return [each.content for each in shown[:first]], tuple(shown[first:])


def _show(message: ModelMessage) -> tuple[Message, ...]:
    """The messages that show one of pydantic-ai's."""
    known = _SHOWN.get(message)
    if known is not None and message.parts == known.parts and known.contents == list(map(_content, known.parts)):
        return known.shown
    if message.kind == "response":
        shown = (_show_answer(message),)
    else:
        shown = tuple(each for part in message.parts for each in _show_part(part))
    parts: Any = list(message.parts)
    return _SHOWN.keep(message, _Shown(parts, list(map(_content, parts)), shown)).shown


def _content(part: Any) -> Any:
    values = cast("dict[str, Any]", vars(part))
    return values["content"] if "content" in values else values.get("args")


@dataclass(frozen=True, slots=True)
class _Shown:
    """The messages that show one of pydantic-ai's, with the parts that it had, and their contents."""

    parts: list[Any]
    contents: list[Any]
    shown: tuple[Message, ...]


def _show_answer(answer: ModelResponse) -> Message:
    calls = [
        ToolCall.from_text(
            call.tool_call_id or "call",
            call.tool_name,
            call.args if isinstance(call.args, str) else call.args_as_json_str(),
        )
        for call in answer.tool_calls
    ]
    return Message.assistant(answer.text or "", calls)


def _show_part(part: ModelRequestPart) -> Iterator[Message]:
    """The messages of a part; none for a record of pydantic-ai's own, which no model reads."""
    kept: Any = part
    if kept.part_kind == "system-prompt":
        yield Message.system(kept.content)
    elif kept.part_kind == "user-prompt":
        yield from (Message.user(text) for text in _texts(kept.content))
    elif kept.part_kind == "tool-return":
        yield _result(kept, kept.model_response_str())
    elif kept.part_kind == "retry-prompt":
        yield _result(kept, kept.model_response()) if kept.tool_name else Message.user(kept.model_response())


def _result(part: Any, text: str) -> Message:
    return Message(role=Role.TOOL, content=text, tool_call_id=part.tool_call_id, name=part.tool_name)


def _texts(content: Any) -> Iterator[str]:
    """The texts of a prompt; media by their kinds."""
    pieces: list[Any] = [content] if isinstance(content, str) else list(cast("Iterable[Any]", content))
    for piece in pieces:
        yield piece if isinstance(piece, str) else getattr(piece, "content", None) or f"({piece.kind})"


# A worker that keeps a session keeps its history: each of its messages is shown once, as long as nobody changes it.
_SHOWN: Final = KeptWith["ModelMessage", _Shown]()
