"""The output of a run of pydantic-ai: as JSON in the worker, and again as an object of its class for the caller."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import UnionType
from typing import Any, Final, Self, Union, cast, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from ..errors import DriverError
from ..state.execution.tool_calls import as_text
from ..state.values.frozen import Json, freeze, thaw

OUTPUT: Final = "output"
"""The entry of an answer that holds the output, as JSON."""

_NAMED: Final = "output_by_name"
_CLASS: Final = "output_class"
_TOOL: Final = "output_tool"


class UnreadableOutput(Exception):
    """An output does not fit the type that the caller's agent has."""


def dump_output(agent: str | None, output: Any, tool: str | None) -> dict[str, Any]:
    """Describe the output as JSON, with the name of its class: several classes may have the same fields.

    Args:
        agent: The agent's name, for errors.
        tool: The output tool that took it; None without.
    Raises:
        DriverError: It has no form as JSON.
    """
    try:
        dumped = to_jsonable_python(output)
        # By which it is read back: an alias, or a field that is computed, can be for those who read the JSON alone.
        named = to_jsonable_python(output, by_alias=False, round_trip=True)
    except (PydanticSerializationError, ValueError) as error:
        said = f"agent {agent!r}: its output, of {type(output).__name__}, has no form as JSON: {error}"
        raise DriverError("output", said[:500], transient=False) from None
    kept = {OUTPUT: dumped, _CLASS: type(output).__qualname__, _TOOL: tool}
    return kept if named == dumped else {**kept, _NAMED: named}


def text_of_output(output: Any) -> str:
    """The output as the text of the answer; never blank, since an answer without a word is no message."""
    if isinstance(output, str) and output.strip():
        return output
    return to_json(output).decode() if output is None or isinstance(output, str) else as_text(freeze(output, OUTPUT))


def is_blank(output: Any) -> bool:
    """Whether the text and the output of an answer do not tell what was put out: it was None, or a blank text."""
    return output is None or (isinstance(output, str) and not output.strip())


def read_output(output_type: Any, kept: Mapping[str, Any], given: Json) -> Any:
    """The output as an object of its class.

    Args:
        output_type: That of the agent.
        kept: What the answer keeps of `dump_output`.
        given: The output as JSON; a text of the answer, where the output is one.
    Raises:
        UnreadableOutput: It does not fit; the text names the types.
    """
    value = thaw(kept.get(_NAMED, kept.get(OUTPUT, given)))
    kinds = list(_kinds_of(output_type))
    named = [kind for kind in kinds if _class_name(kind) == kept.get(_CLASS)] or kinds
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(cast("Any", Union)[tuple(named)])
        return adapter.validate_json(to_json(value), by_alias=_NAMED not in kept, by_name=True)
    except ValidationError as error:
        names = " or ".join(str(_class_name(kind)) for kind in named)
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise UnreadableOutput(
            f"its output, of {kept.get(_CLASS)}, cannot be read as {names}: {where}: {first['msg']}. Do the "
            "workers run the same code?"
        ) from None


def output_tool_of(kept: Mapping[str, Any]) -> str | None:
    """The output tool that took the output; None without."""
    return kept.get(_TOOL)


def _class_name(kind: Any) -> str | None:
    return getattr(get_origin(kind) or kind, "__qualname__", None)


def _kinds_of(output: Any) -> Sequence[Any]:
    """The types that an output may have: unions and lists of alternatives are taken apart."""
    from pydantic_ai.output import NativeOutput, PromptedOutput, TextOutput, ToolOutput

    given: Any = output
    if isinstance(output, (list, tuple)):
        alternatives: Sequence[Any] = given
    elif isinstance(output, ToolOutput):
        alternatives = [given.output]
    elif isinstance(output, (NativeOutput, PromptedOutput)):
        alternatives = [given.outputs]
    elif isinstance(output, TextOutput):
        alternatives = [given.output_function]
    elif get_origin(output) in (Union, UnionType):
        alternatives = get_args(output)
    elif callable(output) and get_origin(output) is None and not isinstance(output, type):
        alternatives = [_type_returned_by(given)]
    else:
        return [output]
    return [each for one in alternatives for each in _kinds_of(one)]


def _type_returned_by(function: Callable[..., Any]) -> Any:
    called = cast("Any", function).func if isinstance(function, partial) else function
    if not (inspect.isfunction(called) or inspect.ismethod(called)):
        called = cast("Any", type(called)).__call__
    returned = get_type_hints(called, include_extras=True).get("return", Any)
    if returned is not Self:
        return returned
    owner: Any = getattr(called, "__self__", cast("Any", function))
    return owner if isinstance(owner, type) else type(owner)
