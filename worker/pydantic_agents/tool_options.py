"""The options of a pydantic-ai tool, from its own definition: the effect class, and whether its calls run alone.

Definitions are read twice. When an agent is found, those of its toolsets are read, so that wrong metadata are refused
at once. When its model has answered, those count that the run has of the called tools, since toolsets may rename,
prepare and add tools for a run: the answer keeps the options that differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from ..errors import ConfigurationError
from ..tools.effect import Effect

if TYPE_CHECKING:
    from pydantic_ai.tools import ToolDefinition
    from pydantic_ai.toolsets import AbstractToolset

TOOLS: Final = "tools"
"""The entry of an answer that holds the options of called tools."""

_KEY: Final = "celery"


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """The options of a tool.

    Attributes:
        effect: The effect class.
        sequential: A call of it runs while no other call of the answer runs.
    """

    effect: Effect
    sequential: bool = False

    @classmethod
    def of(cls, agent: str | None, definition: ToolDefinition, default: Effect) -> ToolOptions:
        """Read a definition.

        Raises:
            ConfigurationError: Its metadata name no effect class; the text says which tool it is.
        """
        tool = f"agent {agent!r}: tool {definition.name}"
        options: Any = (definition.metadata or {}).get(_KEY, {})
        if not isinstance(options, Mapping) or cast("Mapping[str, Any]", options).keys() - {"effect"}:
            raise ConfigurationError(f"{tool}: metadata {_KEY}={options!r:.80} must be like {{'effect': 'keyed'}}")
        effect = cast("Mapping[str, Any]", options).get("effect", default)
        return cls(checked_effect(tool, effect), definition.sequential)

    def to_json(self) -> list[Any]:
        """As JSON, to be kept with an answer."""
        return [str(self.effect), self.sequential]

    @classmethod
    def read(cls, kept: Any) -> ToolOptions:
        """Read what `to_json` wrote."""
        effect, sequential = kept
        return cls(Effect(effect), sequential)


def checked_effect(place: str, effect: Any) -> Effect:
    """The effect class of that name.

    Raises:
        ConfigurationError: A tool of pydantic-ai cannot have it, or there is none.
    """
    if effect not in (Effect.PURE, Effect.KEYED, Effect.UNSAFE):
        raise ConfigurationError(f"{place}: effect {effect!r:.80} must be 'pure', 'keyed' or 'unsafe'")
    return Effect(effect)


def definitions_in(toolsets: Iterable[AbstractToolset[Any]]) -> Iterator[ToolDefinition]:
    """The definitions that toolsets have without a run, under the names that the model gets; functions add others."""
    from pydantic_ai import toolsets as kinds

    for toolset in toolsets:
        if isinstance(toolset, kinds.FunctionToolset):
            yield from (tool.tool_def for tool in cast("Any", toolset).tools.values())
        elif isinstance(toolset, kinds.ExternalToolset):
            yield from cast("Any", toolset).tool_defs
        elif isinstance(toolset, kinds.CombinedToolset):
            yield from definitions_in(cast("Any", toolset).toolsets)
        elif isinstance(toolset, kinds.WrapperToolset):
            wrapper: Any = toolset
            yield from (_changed_by(wrapper, each) for each in definitions_in([wrapper.wrapped]))


def _changed_by(wrapper: Any, definition: ToolDefinition) -> ToolDefinition:
    """The definition as a wrapper of pydantic-ai gives it on; what a function prepares is known in a run only."""
    from pydantic_ai import toolsets as kinds

    if isinstance(wrapper, kinds.PrefixedToolset):
        return replace(definition, name=f"{cast('Any', wrapper).prefix}_{definition.name}")
    if isinstance(wrapper, kinds.RenamedToolset):
        names: dict[str, str] = {old: new for new, old in cast("Any", wrapper).name_map.items()}
        return replace(definition, name=names.get(definition.name, definition.name))
    if isinstance(wrapper, kinds.SetMetadataToolset):
        added: dict[str, Any] = cast("Any", wrapper).metadata
        return replace(definition, metadata={**(definition.metadata or {}), **added})
    return definition
