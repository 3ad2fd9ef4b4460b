"""`@tool`: from a function to a tool."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Generic, Literal, ParamSpec, TypeVar, cast, overload

from ..errors import ConfigurationError
from ..flow.concurrency import read_limit_names
from ..state.values.frozen import FrozenDict, freeze
from .approval import Approval, ExpiryRule, LaterResult, check_approval, check_later
from .arguments import Arguments
from .checks import check_effect, check_idempotent, check_lookup, check_max_result_chars, check_name, check_timeout
from .context import ToolContext
from .effect import Effect
from .protocol import Lookup
from .results import DEFAULT_MAX_RESULT_CHARS
from .signature import name_of, read_signature

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class FunctionTool(Generic[P, R]):
    """A tool that calls a function, by its signature. Calling the tool itself calls the function, as tests want it.

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
        approval: Whether a call needs the approval of a person.
        later: How the result comes, when it comes later; None when the function returns it.
        returns_secrets: Whether its results are stored and shown with the secrets of the worker's environment in them.
        idempotent: Whether an equal call of the same execution gives the recorded result, and the tool does not run.
        concurrency: The concurrency limits under which its calls run, by name.
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
    approval: Approval = "never"
    later: LaterResult | None = None
    returns_secrets: bool = False
    idempotent: bool = False
    concurrency: tuple[str, ...] = ()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

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
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(
    *,
    effect: Effect | str = Effect.UNSAFE,
    name: str | None = None,
    description: str | None = None,
    timeout: float | timedelta | None = None,
    lookup: Lookup | None = None,
    max_result_chars: int = DEFAULT_MAX_RESULT_CHARS,
    approval: Approval = "never",
    result: Literal["now", "later"] = "now",
    expires: timedelta | None = None,
    on_expiry: ExpiryRule = "deny",
    returns_secrets: bool = False,
    idempotent: bool = False,
    concurrency: str | Sequence[str] = (),
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


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
    approval: Approval = "never",
    result: Literal["now", "later"] = "now",
    expires: timedelta | None = None,
    on_expiry: ExpiryRule = "deny",
    returns_secrets: bool = False,
    idempotent: bool = False,
    concurrency: str | Sequence[str] = (),
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
        approval: "never", "always", `Ask(…)`, or a function of (context, args) that decides about each call: the call
            waits for a person, and no worker is kept busy meanwhile.
        result: "later" when a service brings the result: the function starts the work and hands out
            `ctx.completion_token`, and what it returns is not the result.
        expires: The time in which a later result must come. None: no end.
        on_expiry: The rule for the end of that time: "deny" (an error that the model reads), "fail" or `UseValue(…)`.
        returns_secrets: Keep secrets of the worker's environment in results; otherwise they become `[redacted]`.
        idempotent: Give the recorded result where the tool has succeeded with equal arguments in this execution.
        concurrency: The concurrency limits under which its calls run, by name. A call waits in its step until it may
            begin, and the other calls run first; what a service brings later is not counted.

    Raises:
        ConfigurationError: The function or an option cannot be a tool; the text names it and says what to do.
    """
    frame = inspect.currentframe()
    caller = frame.f_back if frame else None  # annotations of a tool defined inside a function are resolved there
    local_names = caller.f_locals if caller else {}
    options = _Options(
        effect=effect,
        name=name,
        description=description,
        timeout=timeout,
        lookup=lookup,
        max_result_chars=max_result_chars,
        approval=approval,
        result=result,
        expires=expires,
        on_expiry=on_expiry,
        returns_secrets=returns_secrets,
        idempotent=idempotent,
        concurrency=concurrency,
        local_names=local_names,
    )
    return partial(_define, options=options) if function is None else _define(function, options)


@dataclass(frozen=True, slots=True)
class _Options:
    effect: Effect | str
    name: str | None
    description: str | None
    timeout: float | timedelta | None
    lookup: Lookup | None
    max_result_chars: int
    approval: Approval
    result: str
    expires: timedelta | None
    on_expiry: ExpiryRule
    returns_secrets: bool
    idempotent: bool
    concurrency: str | Sequence[str]
    local_names: Mapping[str, Any]


def _define(function: Any, options: _Options) -> FunctionTool[..., Any]:
    if isinstance(function, FunctionTool):
        raise ConfigurationError(f"tool {function.name}: it is a tool already; decorate a function once")
    kind = cast("type[Any]", type(function))
    if not callable(function) or issubclass(kind, (type, staticmethod, classmethod)):
        raise ConfigurationError(f"tool: {function!r:.80} ({kind.__name__}) is not a function; decorate a function")
    name = check_name(options.name or name_of(function))
    signature = read_signature(function, options.local_names)
    arguments = Arguments(name, signature.parameters)
    effect = check_effect(name, options.effect)
    if options.description is None and sys.flags.optimize > 1:
        without = f"tool {name}: Python runs without docstrings (-OO, PYTHONOPTIMIZE=2), and the model reads none"
        warnings.warn(f"{without}: give description=, or run Python with -O at most", RuntimeWarning, stacklevel=2)
    return FunctionTool(
        function=function,
        name=name,
        description=signature.description if options.description is None else options.description,
        parameters=cast("FrozenDict", freeze(arguments.schema, f"tool {name}: parameters")),
        effect=effect,
        timeout=check_timeout(name, options.timeout),
        lookup=check_lookup(name, effect, options.lookup),
        max_result_chars=check_max_result_chars(name, options.max_result_chars),
        is_async=_is_async(name, function),
        context_parameter=signature.context_parameter,
        _arguments=arguments,
        approval=check_approval(name, options.approval),
        later=check_later(name, options.result, options.expires, options.on_expiry),
        returns_secrets=options.returns_secrets,
        idempotent=check_idempotent(name, options.idempotent, options.result),
        concurrency=read_limit_names(f"tool {name}: concurrency", options.concurrency),
    )


def _is_async(name: str, function: Any) -> bool:
    is_plain = inspect.isroutine(function) or isinstance(function, partial)
    called: Any = cast("Any", function if is_plain else function.__call__)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise ConfigurationError(f"tool {name}: a generator cannot be a tool; return a list")
    return inspect.iscoroutinefunction(called)
