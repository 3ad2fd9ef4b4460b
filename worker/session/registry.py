"""The registry that turns a definition's names of capabilities, tools and drivers into an agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from ..agent import Agent
from ..capability import Capability
from ..drivers import Driver
from ..errors import ConfigurationError
from ..tools import Tool
from .values import AgentDefinition

T = TypeVar("T")


class CapabilityRegistry:
    """Capabilities, tools and drivers by the names that definitions use."""

    def __init__(self) -> None:
        self._capabilities: dict[str, Capability] = {}
        self._tools: dict[str, Tool] = {}
        self._drivers: dict[str, Driver] = {}

    def register(self, name: str, capability: Capability) -> None:
        """Offer a capability; the last one of a name counts."""
        self._capabilities[name] = capability

    def register_tool(self, tool: Tool) -> None:
        """Offer a tool under its own name."""
        self._tools[tool.name] = tool

    def register_driver(self, model: str, driver: Driver) -> None:
        """Let a driver answer for the definitions whose model has this name, instead of a provider."""
        self._drivers[model] = driver

    def build(self, definition: AgentDefinition) -> Agent:
        """Make the agent of a definition.

        Raises:
            ConfigurationError: It has no model, or one of its names is not registered.
        """
        config = definition.llm_config
        if config is None or config.model is None:
            raise ConfigurationError(
                f"agent {definition.name!r}: its definition has no llm_config with a model. Give it one, or give the "
                "runner the Agent of this name."
            )
        driver = self._drivers.get(config.model)
        tools = [_find(self._tools, name, "tool", definition) for name in definition.tools]
        capabilities = [_find(self._capabilities, name, "capability", definition) for name in definition.capabilities]
        return Agent(
            name=definition.name,
            description=definition.description,
            system_prompt=definition.system_prompt,
            budget=definition.budget,
            model=config.model if driver is None else None,
            base_url=config.base_url if driver is None else None,
            model_settings=dict(config.settings) or None if driver is None else None,
            driver=driver,
            tools=tools,
            capabilities=capabilities,
        )


def _find(known: Mapping[str, T], name: str, kind: str, definition: AgentDefinition) -> T:
    if name not in known:
        names = ", ".join(sorted(known)) or "none"
        raise ConfigurationError(
            f"agent {definition.name!r}: no {kind} {name!r} is registered; registered are: {names}"
        )
    return known[name]
