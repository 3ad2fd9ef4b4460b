"""The tools of one agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from ..errors import ConfigurationError, UnknownTool
from ..state import FrozenDict
from .definition import Tool, tool


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """What a model is told about a tool.

    Attributes:
        name: What the model calls it.
        description: What it does, for the model.
        parameters: JSON Schema of the arguments; an object schema.
    """

    name: str
    description: str
    parameters: FrozenDict


class ToolSet:
    """Tools by name, in the order they were given. Never changes."""

    __slots__ = ("_by_name", "_specs")

    def __init__(self, tools: Iterable[Tool[..., Any] | Callable[..., Any]] = ()) -> None:
        """Collect tools; a bare function becomes a tool with the default options.

        Raises:
            ConfigurationError: Two tools have the same name, or something is no tool.
        """
        by_name: dict[str, Tool[..., Any]] = {}
        for given in tools:
            each: Tool[..., Any] = cast("Tool[..., Any]", given) if isinstance(given, Tool) else tool(given)
            if each.name in by_name:
                raise ConfigurationError(f"tool {each.name}: two tools have this name; rename one with @tool(name=…)")
            by_name[each.name] = each
        self._by_name = MappingProxyType(by_name)
        self._specs = tuple(ToolSpec(each.name, each.description, each.parameters) for each in by_name.values())

    def specs(self) -> tuple[ToolSpec, ...]:
        """What drivers tell the model; the same tuple at every call."""
        return self._specs

    def names(self) -> tuple[str, ...]:
        """The names, in the order given."""
        return tuple(self._by_name)

    def get(self, name: str) -> Tool[..., Any] | None:
        """The tool of that name; None when there is none."""
        return self._by_name.get(name)

    def __getitem__(self, name: str) -> Tool[..., Any]:
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

    def __iter__(self) -> Iterator[Tool[..., Any]]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)
