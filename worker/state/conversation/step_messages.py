"""The messages that a step adds to the conversation."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic_core import from_json

from ..execution.inference import InferenceResponse
from ..execution.requests import RequestKind
from ..execution.tool_calls import ToolExecution, as_text
from ..values.frozen import FrozenDict, Json
from .messages import Message, Role


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
