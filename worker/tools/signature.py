"""Reading a tool's parameters and description from a function's signature and docstring."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, get_args, get_type_hints

from ..errors import ConfigurationError
from .context import ToolContext

_REFUSED_KINDS: Final = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional only; remove the “/”, a model names every argument",
    inspect.Parameter.VAR_POSITIONAL: "takes any number of arguments; use a list parameter",
    inspect.Parameter.VAR_KEYWORD: "takes any keyword; name the parameters, or use one dict parameter",
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument that the model gives.

    Attributes:
        name: Its name.
        annotation: Its type, `Annotated` metadata included.
        default: Its default; `inspect.Parameter.empty` when it is required.
        description: From the docstring; None when that says nothing.
    """

    name: str
    annotation: Any
    default: Any
    description: str | None


@dataclass(frozen=True, slots=True)
class ToolSignature:
    """The parameters and the description of a function.

    Attributes:
        description: The docstring without its sections.
        parameters: What the model gives, in order.
        context_parameter: Name of the parameter that gets the `ToolContext`; None when there is none.
    """

    description: str
    parameters: tuple[Parameter, ...]
    context_parameter: str | None


def read_signature(function: Callable[..., Any], local_names: Mapping[str, Any]) -> ToolSignature:
    """Read a tool's function.

    Args:
        function: What will be called; every parameter is annotated.
        local_names: Names of the place where it is defined, for annotations that are text.

    Raises:
        ConfigurationError: A parameter of a kind or without the annotation that a model needs.
    """
    description, documented = read_docstring(inspect.getdoc(_plain(function)) or "")
    context: str | None = None
    parameters: list[Parameter] = []
    annotations = _annotations(function, local_names)
    for parameter in inspect.signature(function).parameters.values():
        annotation = _annotation(function, parameter, annotations)
        if annotation is ToolContext or ToolContext in get_args(annotation):  # it may be None where a test calls it
            if context is not None:
                raise _refusal(function, f"has two ToolContext parameters, {context!r} and {parameter.name!r}")
            context = parameter.name
        else:
            parameters.append(
                Parameter(
                    name=parameter.name,
                    annotation=annotation,
                    default=parameter.default,
                    description=documented.get(parameter.name),
                )
            )
    return ToolSignature(description, tuple(parameters), context)


def read_docstring(text: str) -> tuple[str, Mapping[str, str]]:
    """Split a docstring (Google, NumPy or reST style) into its description and what it says about each parameter."""
    if not text:
        return "", {}
    from docstring_parser import parse

    docstring = parse(text)
    described = {p.arg_name: " ".join(p.description.split()) for p in docstring.params if p.description}
    return (docstring.description or "").strip(), described


def name_of(function: Callable[..., Any]) -> str:
    """The name by which messages about a function call it."""
    plain = _plain(function)
    return getattr(plain, "__name__", type(plain).__name__)


def _plain(function: Any) -> Any:
    """The function below partials; a callable object's own class documents it."""
    while hasattr(function, "func") and hasattr(function, "keywords"):
        function = function.func
    return function


def _annotations(function: Any, local_names: Mapping[str, Any]) -> Mapping[str, Any]:
    plain = _plain(function)
    if not hasattr(plain, "__annotations__") or isinstance(plain, type):
        plain = plain.__call__
    source = inspect.unwrap(getattr(plain, "__func__", plain))
    # The return type is not needed here, and is often imported for type checkers only.
    wanted = {name: value for name, value in getattr(source, "__annotations__", {}).items() if name != "return"}
    try:
        return get_type_hints(
            SimpleNamespace(__annotations__=wanted),
            globalns=getattr(source, "__globals__", {}),
            localns=dict(local_names),
            include_extras=True,
        )
    except NameError as problem:
        unknown = f"an annotation names {problem.name!r}, which is not known where the tool is defined"
        raise _refusal(function, f"{unknown}; import it at run time") from problem


def _annotation(function: Any, parameter: inspect.Parameter, annotations: Mapping[str, Any]) -> Any:
    if parameter.kind in _REFUSED_KINDS:
        raise _refusal(function, f"parameter {parameter.name!r} {_REFUSED_KINDS[parameter.kind]}")
    if parameter.name not in annotations:
        advice = "annotate it, the model must know its type"
        if parameter.name in ("self", "cls"):
            advice = "make the tool of a bound method: tool(instance.method)"
        raise _refusal(function, f"parameter {parameter.name!r} has no annotation; {advice}")
    return annotations[parameter.name]


def _refusal(function: Any, problem: str) -> ConfigurationError:
    return ConfigurationError(f"tool {name_of(function)}: {problem}")
