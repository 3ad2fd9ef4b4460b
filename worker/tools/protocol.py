"""The Protocol of tools: the members that the engine and the drivers need."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, cast

from ..errors import ConfigurationError
from .context import ToolContext
from .effect import Effect, LookupResult

Lookup = Callable[[str, ToolContext], LookupResult | Awaitable[LookupResult]]


class Tool(Protocol):
    """A tool that a model may call. `@tool` makes a `FunctionTool` of a function; any object with these members is one.

    A tool whose parameters are known only at run time, such as that of a remote server, is a class of its own.
    """

    @property
    def name(self) -> str:
        """The name for the model: 1 to 64 letters, digits, `_` or `-`, not beginning with a digit or `-`."""
        ...

    @property
    def description(self) -> str:
        """The description that the model gets."""
        ...

    @property
    def effect(self) -> Effect:
        """The effect class: it decides what happens to a call that a crash interrupted."""
        ...

    @property
    def parameters(self) -> Mapping[str, Any]:
        """JSON Schema of the arguments; an object schema."""
        ...

    @property
    def timeout(self) -> float | None:
        """Seconds a call may take; None is the agent's `tool_timeout`."""
        ...

    @property
    def lookup(self) -> Lookup | None:
        """Finds out whether the effect of an idempotency key happened; None unless `effect` is lookup."""
        ...

    @property
    def max_result_chars(self) -> int:
        """Characters of a result that are stored and shown to the model."""
        ...

    @property
    def is_async(self) -> bool:
        """Whether `call` gives an awaitable, which runs on the event loop; else it runs in a thread."""
        ...

    def bind(self, args: Mapping[str, Any] | str) -> Mapping[str, Any]:
        """Validate what a model gave and fill in the defaults. Pure, and without I/O.

        Args:
            args: A JSON object; or the raw text, where the model's arguments were none.
        Raises:
            InvalidArguments: They do not fit; the text is written for the model.
        """
        ...

    def call(self, ctx: ToolContext, bound: Mapping[str, Any]) -> Any:
        """Make the call with what `bind` returned.

        Raises:
            StopExecution: The execution ends after this step.
            Exception: Anything else becomes an error that the model reads.
        """
        ...


_MEMBERS = (
    "name", "description", "effect", "parameters", "timeout", "lookup", "max_result_chars", "is_async", "bind", "call",
)  # fmt: skip


def is_tool(value: object) -> bool:
    """Whether a value is meant to be a tool, complete or not; a bare function is not."""
    return hasattr(value, "bind") and hasattr(value, "call")


def as_tool(value: object) -> Tool:
    """The value as a tool.

    Raises:
        ConfigurationError: A member is missing.
    """
    missing = [name for name in _MEMBERS if not hasattr(value, name)]
    if missing:
        name = getattr(value, "name", type(value).__name__)
        raise ConfigurationError(f"tool {name}: it has no {', '.join(missing)}; see worker/tools/protocol.py")
    return cast("Tool", value)
