"""Reads from a journaled answer which calls it asks for, in a process that does not have the driver which wrote it.

A driver alone can read its answers for a step. This is for people who look at a step that runs: it knows the forms of
the drivers of this package, and leaves out what it does not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from pydantic import ValidationError
from pydantic_core import from_json

from ..errors import InvalidInput
from ..state.execution.inference import InferenceResponse
from ..state.execution.tool_calls import ToolCall, as_text

_CALL: Final = "tool-call"


def read_calls(raw: bytes) -> tuple[ToolCall, ...]:
    """The calls of a journaled answer, in their order; none where its form is not known."""
    try:
        return tuple(_calls_of(raw))
    except (ValidationError, ValueError, TypeError, KeyError, InvalidInput):
        return ()


def _calls_of(raw: bytes) -> Iterator[ToolCall]:
    head, _, body = raw.partition(b"\n")
    kept: Any = from_json(head)
    if "format" not in kept:
        yield from InferenceResponse.from_json(raw).tool_calls
        return
    # pydantic-ai: a line of facts with the messages behind it, or an object that holds these.
    messages: Any = from_json(body) if body else kept["messages"]
    wanted: Any = None if body else kept.get("calls")
    answer = next((message for message in reversed(messages) if message["kind"] == "response"), {"parts": ()})
    parts = [part for part in answer["parts"] if part["part_kind"] == _CALL]
    for position, part in enumerate(parts):
        call_id = part.get("tool_call_id") or f"call_{position}"
        if wanted is None or call_id in wanted:
            yield _read_call(call_id, part)


def _read_call(call_id: str, part: Mapping[str, Any]) -> ToolCall:
    args: object = part.get("args")
    if isinstance(args, str) or args is None:
        return ToolCall.from_text(call_id, part["tool_name"], args or "")
    return ToolCall.from_text(call_id, part["tool_name"], as_text(cast("Any", args)))
