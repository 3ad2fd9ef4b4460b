"""Names of tools and of their arguments that a provider refuses, and the names that are sent instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic_core import from_json, to_json

from .provider_rules import NameRule, ProviderRules, hash_of

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.tools import ToolDefinition

_REAL: Final = "celery_agents_names"
"""The entry in the metadata of a renamed tool that holds its own names; metadata is not sent."""

_FOUND: Final = "discovered_tools"

_NO_KEYS: Final[Mapping[str, str]] = {}


@dataclass(slots=True)
class SentNames:
    """The names under which the tools of a request are sent.

    Attributes:
        tools: By their own names, for the tools whose name changes.
        keys: By the tool's own name, what the names of its arguments become.
    """

    rules: ProviderRules
    tools: dict[str, str] = field(default_factory=dict[str, str])
    keys: dict[str, dict[str, str]] = field(default_factory=dict[str, "dict[str, str]"])
    _of_tool: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, parameters: ModelRequestParameters, rules: ProviderRules) -> SentNames:
        """Find the tools of a request that need other names."""
        found = cls(rules)
        tools = [*parameters.function_tools, *parameters.output_tools]
        found.tools = _renamed((tool.name for tool in tools), rules.tool_name)
        if rules.property_name is not None:
            for tool in tools:
                properties: Any = tool.parameters_json_schema.get("properties")
                keys = _renamed(properties, rules.property_name) if isinstance(properties, dict) else None  # pyright: ignore
                if keys:
                    found.keys[tool.name] = keys
        return found

    @property
    def is_empty(self) -> bool:
        """Whether every tool keeps its names."""
        return not self.tools and not self.keys

    def of_tool(self, name: str) -> str:
        """The name under which a tool is sent, also one that the model has made up."""
        sent = self._of_tool.get(name) or self.tools.get(name)
        if sent is None:
            sent = name if self.rules.tool_name.fits(name) else self.rules.tool_name.fit(name)
        self._of_tool[name] = sent
        return sent

    def parameters(self, parameters: ModelRequestParameters) -> ModelRequestParameters:
        """The request's parameters with the sent names."""
        return replace(
            parameters,
            function_tools=[self._tool(tool) for tool in parameters.function_tools],
            output_tools=[self._tool(tool) for tool in parameters.output_tools],
            introduced_tool_names={self.tools.get(name, name) for name in parameters.introduced_tool_names},
        )

    def settings(self, settings: ModelSettings | None) -> ModelSettings | None:
        """The settings with the sent names, where they say which tools may be called."""
        choice: Any = (settings or {}).get("tool_choice")
        if settings is None or choice is None or isinstance(choice, str):
            return settings
        if isinstance(choice, list):
            names: list[str] = choice  # pyright: ignore[reportUnknownVariableType]
            return {**settings, "tool_choice": [self.of_tool(name) for name in names]}
        sent = replace(choice, function_tools=[self.of_tool(name) for name in choice.function_tools])
        return {**settings, "tool_choice": sent}

    def _tool(self, tool: ToolDefinition) -> ToolDefinition:
        name, keys = self.tools.get(tool.name, tool.name), self.keys.get(tool.name, _NO_KEYS)
        if name == tool.name and not keys:
            return tool
        schema = tool.parameters_json_schema
        if keys:
            schema = {**schema, "properties": _with_keys(schema["properties"], keys)}
            if isinstance(schema.get("required"), list):
                schema["required"] = [keys.get(each, each) for each in schema["required"]]
        real = {"name": tool.name, "keys": {sent: own for own, sent in keys.items()}}
        metadata = {**(tool.metadata or {}), _REAL: real}
        return replace(tool, name=name, parameters_json_schema=schema, metadata=metadata)


def _renamed(names: Iterable[str], rule: NameRule) -> dict[str, str]:
    """New names for those that the rule refuses; no two names become one."""
    given = list(names)
    refused = [name for name in given if not rule.fits(name)]
    if not refused:
        return {}
    taken, renamed = set(given), dict[str, str]()
    for name in refused:
        fitted = rule.fit(name)
        renamed[name] = rule.fit(name, f"_{hash_of(name)}") if fitted in taken else fitted
        taken.add(renamed[name])
    return renamed


def _with_keys(items: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    return {keys.get(key, key): value for key, value in items.items()}


def rename_keys(args: Any, keys: Mapping[str, str]) -> Any:
    """The arguments of a call, an object or its text, with other names; anything else as it is."""
    given: Any = args
    if isinstance(args, str):
        try:
            given = from_json(args)
        except (ValueError, TypeError):  # TypeError: half a surrogate pair
            return args
    if not isinstance(given, dict) or keys.keys().isdisjoint(given):  # pyright: ignore
        return args
    renamed = _with_keys(given, keys)  # pyright: ignore[reportUnknownArgumentType]
    return to_json(renamed).decode() if isinstance(args, str) else renamed


def restore_names(response: ModelResponse, parameters: ModelRequestParameters) -> ModelResponse:
    """The answer with the tools' own names, where they were sent under others.

    Args:
        parameters: Those of the request, as they were sent.
    """
    sent = _sent_tools([*parameters.function_tools, *parameters.output_tools])
    if not sent:
        return response
    names = {name: real["name"] for name, real in sent.items()}
    parts = [
        replace(part, tool_name=real["name"], args=rename_keys(part.args, real["keys"]))
        if part.part_kind == "tool-call" and (real := sent.get(part.tool_name)) is not None
        else rename_found(part, names)
        for part in response.parts
    ]
    return replace(response, parts=parts)


def rename_found(part: Any, names: Mapping[str, str]) -> Any:
    """A result of a search for tools with other names of what it has found; any other part as it is."""
    content: Any = getattr(part, "content", None) if getattr(part, "tool_kind", None) == "tool-search" else None
    if not names or not isinstance(content, dict) or _FOUND not in content:
        return part
    found = cast("list[Any]", content[_FOUND])
    renamed = [{**each, "name": names.get(each["name"], each["name"])} for each in found]
    return replace(part, content={**cast("dict[str, Any]", content), _FOUND: renamed})


def _sent_tools(tools: Sequence[ToolDefinition]) -> dict[str, Any]:
    return {tool.name: tool.metadata[_REAL] for tool in tools if tool.metadata and _REAL in tool.metadata}
