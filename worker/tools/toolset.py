"""The tools of one agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from ..errors import ConfigurationError, UnknownTool
from ..state.execution.inference import InferenceResponse
from ..state.values.frozen import FrozenDict, freeze
from .checks import check_effect, check_lookup, check_max_result_chars, check_name, check_timeout
from .definition import FunctionTool, tool
from .handoff import supports_handoff
from .protocol import Tool, as_tool, is_tool


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """The description of a tool for a model.

    Attributes:
        name: What the model calls it.
        description: What it does, for the model.
        parameters: JSON Schema of the arguments; an object schema.
    """

    name: str
    description: str
    parameters: FrozenDict


class ToolSet:
    """Tools by name, in the order they were given. Never changes.

    Attributes:
        can_hand_over: Whether a call of one of the tools hands the session over to another agent.
    """

    __slots__ = ("_by_name", "_specs", "can_hand_over")

    def __init__(self, tools: Iterable[Tool | Callable[..., Any]] = ()) -> None:
        """Collect tools; a bare function becomes a tool with the default options.

        Raises:
            ConfigurationError: Two tools have the same name, or something is no tool.
        """
        by_name: dict[str, Tool] = {}
        for given in tools:
            each = _checked_tool(given)
            if each.name in by_name:
                raise ConfigurationError(f"tool {each.name}: two tools have this name; rename one with @tool(name=…)")
            by_name[each.name] = each
        self._by_name = MappingProxyType(by_name)
        self._specs = tuple(map(_spec, by_name.values()))
        self.can_hand_over = any(map(supports_handoff, by_name.values()))

    def specs(self) -> tuple[ToolSpec, ...]:
        """The descriptions that drivers give to the model; the same tuple at every call."""
        return self._specs

    def names(self) -> tuple[str, ...]:
        """The names, in the order given."""
        return tuple(self._by_name)

    def get(self, name: str) -> Tool | None:
        """The tool of that name; None when there is none."""
        return self._by_name.get(name)

    def of_answer(self, response: InferenceResponse) -> ToolSet:
        """The tools with which the calls of an answer are made: these, unless the answer says that they were others."""
        return self

    def __getitem__(self, name: str) -> Tool:
        """The tool of that name.

        Raises:
            UnknownTool: There is none; the text lists the names that exist.
        """
        found = self._by_name.get(name)
        if found is None:
            raise UnknownTool(name, self.names())
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)


def _spec(each: Tool) -> ToolSpec:
    schema = each.parameters
    if not isinstance(schema, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"tool {each.name}: parameters {schema!r:.80} must be a JSON Schema, a mapping")
    parameters = cast("FrozenDict", freeze(schema, f"tool {each.name}: parameters"))
    return ToolSpec(name=each.name, description=each.description, parameters=parameters)


def _checked_tool(given: Tool | Callable[..., Any]) -> Tool:
    """The tool itself, checked where it is no `FunctionTool`, or the tool made of a bare function."""
    if isinstance(given, FunctionTool):
        return cast("Tool", given)
    if not is_tool(given):
        return tool()(cast("Callable[..., Any]", given))  # which refuses None, too
    each = as_tool(given)
    name = check_name(each.name)
    effect = check_effect(name, each.effect)
    if effect is not each.effect:
        raise ConfigurationError(f"tool {name}: effect {each.effect!r} must be Effect.{effect.name}")
    check_lookup(name, effect, each.lookup)
    check_timeout(name, each.timeout)
    check_max_result_chars(name, each.max_result_chars)
    return each
