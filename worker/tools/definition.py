"""`@tool`: from a function to a tool."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast, overload

from ..errors import ConfigurationError
from ..state import FrozenDict
from .arguments import Arguments
from .context import ToolContext
from .effect import Effect
from .lookup import LookupResult
from .results import DEFAULT_MAX_RESULT_CHARS
from .signature import name_of, read_signature

P = ParamSpec("P")
R = TypeVar("R")

Lookup = Callable[[str, ToolContext], LookupResult | Awaitable[LookupResult]]

NAME_PATTERN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
"""What every provider accepts as the name of a function."""


@dataclass(frozen=True, eq=False)
class Tool(Generic[P, R]):
    """A function that a model may call. Calling the tool itself calls the function, as tests want it.

    Attributes:
        function: What runs.
        name: What the model calls it.
        description: What the model is told it does.
        parameters: JSON Schema of the arguments.
        effect: What happens to a call that a crash interrupted.
        timeout: Seconds a call may take; None is the agent's `tool_timeout`.
        lookup: Finds out whether the effect of an idempotency key happened; None unless `effect` is lookup.
        max_result_chars: Characters of a result that are stored and shown to the model.
        is_async: Whether the function is a coroutine function; else it runs in a thread.
        context_parameter: The parameter that gets the `ToolContext`; None when it has none.
    """

    function: Callable[P, R]
    name: str
    description: str
    parameters: FrozenDict
    effect: Effect
    timeout: float | None
    lookup: Lookup | None
    max_result_chars: int
    is_async: bool
    context_parameter: str | None
    _arguments: Arguments = field(repr=False)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @property
    def takes_context(self) -> bool:
        """Whether the function has a `ToolContext` parameter."""
        return self.context_parameter is not None

    def bind(self, args: Mapping[str, Any] | str) -> dict[str, Any]:
        """Validate a model's arguments strictly and fill in the defaults; what `call` takes.

        Args:
            args: A JSON object; or the raw text, where the model's arguments were none.

        Raises:
            InvalidArguments: They do not fit; the text is written for the model.
        """
        return self._arguments.bind(args)

    def call(self, ctx: ToolContext, bound: Mapping[str, Any]) -> Any:
        """Call the function with what `bind` returned. An awaitable when the function is async."""
        run: Callable[..., Any] = self.function
        if self.context_parameter is None:
            return run(**bound)
        return run(**bound, **{self.context_parameter: ctx})


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(
    *,
    effect: Effect | str = Effect.UNSAFE,
    name: str | None = None,
    description: str | None = None,
    timeout: float | timedelta | None = None,
    lookup: Lookup | None = None,
    max_result_chars: int = DEFAULT_MAX_RESULT_CHARS,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    effect: Effect | str = Effect.UNSAFE,
    name: str | None = None,
    description: str | None = None,
    timeout: float | timedelta | None = None,
    lookup: Lookup | None = None,
    max_result_chars: int = DEFAULT_MAX_RESULT_CHARS,
) -> Any:
    """Make a tool of a function, plain or async: `@tool`, `@tool(effect="pure")` or `tool(function)`.

    The parameters become a JSON Schema, described by the docstring's `Args:`; a parameter annotated `ToolContext` is
    filled in by the worker.

    Args:
        function: The function; None when used with options.
        effect: What may be done with a call that a crash interrupted: pure, keyed, lookup or unsafe.
        name: What the model calls it; the function's name when None.
        description: What the model is told; the docstring without its sections when None.
        timeout: Seconds (or a timedelta) a call may take; None is the agent's `tool_timeout`.
        lookup: `lookup(idempotency_key, ctx)` answers a `LookupResult`; required with effect lookup, refused otherwise.
        max_result_chars: Characters of a result that are kept; longer ones are cut, with a marker.

    Raises:
        ConfigurationError: The function or an option cannot be a tool; the text names it and says what to do.
    """
    frame = inspect.currentframe()
    caller = frame.f_back if frame else None  # annotations of a tool defined inside a function are resolved there
    local_names = caller.f_locals if caller else {}
    options = _Options(effect, name, description, timeout, lookup, max_result_chars, local_names)
    return partial(_define, options=options) if function is None else _define(function, options)


@dataclass(frozen=True, slots=True)
class _Options:
    effect: Effect | str
    name: str | None
    description: str | None
    timeout: float | timedelta | None
    lookup: Lookup | None
    max_result_chars: int
    local_names: Mapping[str, Any]


def _define(function: Any, options: _Options) -> Tool[..., Any]:
    if isinstance(function, Tool):
        raise ConfigurationError(f"tool {function.name}: it is a tool already; decorate a function once")
    kind = cast("type[Any]", type(function))
    if not callable(function) or issubclass(kind, (type, staticmethod, classmethod)):
        raise ConfigurationError(f"tool: {function!r:.80} ({kind.__name__}) is not a function; decorate a function")
    name = _name(options.name or name_of(function))
    signature = read_signature(function, options.local_names)
    arguments = Arguments(name, signature.parameters)
    effect = _effect(name, options.effect)
    return Tool(
        function=function,
        name=name,
        description=signature.description if options.description is None else options.description,
        parameters=FrozenDict(arguments.schema),
        effect=effect,
        timeout=_timeout_seconds(name, options.timeout),
        lookup=_lookup(name, effect, options.lookup),
        max_result_chars=_max_result_chars(name, options.max_result_chars),
        is_async=_is_async(name, function),
        context_parameter=signature.context_parameter,
        _arguments=arguments,
    )


def _name(name: str) -> str:
    if not NAME_PATTERN.fullmatch(name):
        raise ConfigurationError(
            f"tool name {name!r}: write 1 to 64 letters, digits, “_” or “-”, not beginning with a digit or “-”; "
            "set it with @tool(name=…)"
        )
    return name


def _effect(name: str, effect: Effect | str) -> Effect:
    try:
        return Effect(effect)
    except ValueError:
        known = ", ".join(Effect)
        raise ConfigurationError(f"tool {name}: effect {effect!r} is unknown; use one of {known}") from None


def _lookup(name: str, effect: Effect, lookup: Lookup | None) -> Lookup | None:
    if (lookup is not None) == (effect is Effect.LOOKUP):
        return lookup
    if lookup is None:
        raise ConfigurationError(f"tool {name}: effect lookup needs lookup=, a function of (idempotency_key, ctx)")
    raise ConfigurationError(f"tool {name}: lookup= is given, but effect is {effect}; set effect='lookup' or drop it")


def _timeout_seconds(name: str, timeout: Any) -> float | None:
    if timeout is None:
        return None
    seconds: Any = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not math.isfinite(seconds) or seconds <= 0:
        raise ConfigurationError(f"tool {name}: timeout {timeout!r} must be seconds above 0, a timedelta, or None")
    return float(seconds)


def _max_result_chars(name: str, chars: Any) -> int:
    if isinstance(chars, bool) or not isinstance(chars, int) or chars < 1:
        raise ConfigurationError(f"tool {name}: max_result_chars {chars!r} must be a whole number above 0")
    return chars


def _is_async(name: str, function: Any) -> bool:
    is_plain = inspect.isroutine(function) or isinstance(function, partial)
    called: Any = cast("Any", function if is_plain else function.__call__)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise ConfigurationError(f"tool {name}: a generator cannot be a tool; return a list")
    return inspect.iscoroutinefunction(called)
