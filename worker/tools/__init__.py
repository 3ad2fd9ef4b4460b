"""Tools: functions that a model may call.

`Tool` is what the engine needs of a tool: `bind` validates what a model gave, `call` makes the call. `@tool` makes one
of a function, by its signature and docstring.
Running calls (records, deadlines, several at once) is the engine's.
"""

from __future__ import annotations

from .arguments import InvalidArguments
from .context import ToolContext
from .definition import FunctionTool, tool
from .effect import Effect
from .identity import idempotency_key
from .lookup import LookupResult, LookupStatus
from .protocol import Lookup, Tool
from .results import DEFAULT_MAX_RESULT_CHARS, UnusableResult, to_json_value
from .stop import StopExecution
from .toolset import ToolSet, ToolSpec

__all__ = [
    "DEFAULT_MAX_RESULT_CHARS",
    "Effect",
    "FunctionTool",
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
