"""Answers of functions and scripts in plain Python: a text, calls, or both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

from pydantic import ValidationError

from ..errors import DriverError, UnusableAnswer
from ..state.execution.inference import FinishReason, InferenceResponse
from ..state.execution.tool_calls import ToolCall
from ..state.values.frozen import FrozenDict
from .protocol import Delta, InferenceRequest


class CallTool:
    """Ask for a tool: `CallTool("search", query="redis")`. The call's id is made from its step and position.

    Attributes:
        name: The tool.
        args: Its arguments.
    """

    __slots__ = ("args", "name")

    def __init__(self, name: str, /, **args: Any) -> None:
        self.name = name
        self.args = FrozenDict(args)

    def __repr__(self) -> str:
        return f"CallTool({self.name!r}, {dict(self.args)!r})"


Answer: TypeAlias = "str | InferenceResponse | ToolCall | CallTool | Sequence[str | ToolCall | CallTool]"
"""A text, a call, several of both, or a complete response."""


def as_response(answer: Answer, step: int) -> InferenceResponse:
    """The response an answer means.

    Args:
        answer: What a function returned or a script says.
        step: Number of the step; the ids of calls without one are `call_<step>_<position>`.

    Raises:
        DriverError: It is none of the kinds of `Answer`.
    """
    if isinstance(answer, str):
        return InferenceResponse(content=answer)
    if isinstance(answer, InferenceResponse):
        return answer
    parts = cast("Sequence[object]", answer if isinstance(answer, (list, tuple)) else (answer,))
    texts = [part for part in parts if isinstance(part, str)]
    asked = [part for part in parts if isinstance(part, (ToolCall, CallTool))]
    if len(texts) + len(asked) != len(parts) or not parts:
        raise _not_an_answer(answer)
    calls = tuple(_call(part, step, position) for position, part in enumerate(asked))
    reason = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
    return InferenceResponse(content="\n".join(texts), tool_calls=calls, finish_reason=reason)


def raw_answer(answer: Answer, request: InferenceRequest, name: str) -> bytes:
    """The bytes to journal for what a function or a script answered.

    Raises:
        DriverError: It is none of the kinds of `Answer`, or too large.
    """
    # Before it is encoded: a huge text is not copied.
    if isinstance(answer, str) and len(answer) > request.max_answer_bytes:
        raise answer_too_large(name, request.max_answer_bytes)
    response = as_response(answer, request.step)
    if len(response.content) > request.max_answer_bytes:
        raise answer_too_large(name, request.max_answer_bytes)
    if request.emit is not None:
        request.emit(Delta(response.content))
    return response.to_json()


def answer_too_large(name: str, limit_bytes: int) -> DriverError:
    """The error of an answer beyond the limit. Nobody asks again: the next answer would hardly be shorter."""
    advice = "ask for less, or raise CELERY_AGENTS_MAX_ANSWER_BYTES."
    message = f"{name} gave an answer of more than {limit_bytes} bytes; {advice}"
    return DriverError("answer_too_large", message, transient=False)


def read_response(raw: bytes) -> InferenceResponse:
    """Read a response that `InferenceResponse.to_json` wrote.

    Raises:
        UnusableAnswer: It is not one.
    """
    try:
        return InferenceResponse.from_json(raw)
    except ValidationError as problem:
        where = ".".join(str(part) for part in problem.errors(include_input=False)[0]["loc"]) or "the whole"
        raise UnusableAnswer(f"The journaled answer is not a response: {where} does not fit.", permanent=True) from None


def _call(part: ToolCall | CallTool, step: int, position: int) -> ToolCall:
    if isinstance(part, ToolCall):
        return part
    return ToolCall(id=f"call_{step}_{position}", name=part.name, args=part.args)


def _not_an_answer(answer: object) -> DriverError:
    return DriverError(
        "not_an_answer",
        f"A driver's function returned {type(answer).__name__}; return text, a ToolCall, a CallTool, a list of these, "
        "or an InferenceResponse.",
        transient=False,
    )
