"""Tools: functions that a model may call.

`@tool` reads a function's signature and docstring, `Tool.bind` validates what a model gave, `Tool.call` calls it.
Running calls (records, deadlines, several at once) is the engine's.
"""

from __future__ import annotations

from .arguments import InvalidArguments
from .context import ToolContext
from .definition import Lookup, Tool, tool
from .effect import Effect
from .identity import idempotency_key
from .lookup import LookupResult, LookupStatus
from .results import DEFAULT_MAX_RESULT_CHARS, UnusableResult, to_json_value
from .stop import StopExecution
from .toolset import ToolSet, ToolSpec

__all__ = [
    "DEFAULT_MAX_RESULT_CHARS",
    "Effect",
    "InvalidArguments",
    "Lookup",
    "LookupResult",
    "LookupStatus",
    "StopExecution",
    "Tool",
    "ToolContext",
    "ToolSet",
    "ToolSpec",
    "UnusableResult",
    "idempotency_key",
    "to_json_value",
    "tool",
]
