"""The registry that turns a definition's names of capabilities, tools and drivers into an agent."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

from ..agent import Agent
from ..capability import Capability
from ..drivers.protocol import Driver, InferenceRequest
from ..errors import ConfigurationError
from ..state.conversation.context import LLMConfig
from ..state.values.frozen import FrozenDict
from ..tools.protocol import Tool
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

    def build(self, definition: AgentDefinition, chosen: LLMConfig | None = None) -> Agent:
        """Make the agent of a definition.

        Args:
            chosen: The session's own model; what it leaves out is the definition's.
        Raises:
            ConfigurationError: It has no model, one of its names is not registered, or a registered driver is given an
                address.
        """
        config = definition.llm_config
        if chosen is not None and chosen.model is not None:
            config = chosen
        if config is None or config.model is None:
            raise ConfigurationError(
                f"agent {definition.name!r}: its definition has no llm_config with a model. Give it one, or give the "
                "runner the Agent of this name."
            )
        driver = self._drivers.get(config.model)
        if driver is not None and config.base_url is not None:
            raise ConfigurationError(
                f"agent {definition.name!r}: llm_config.base_url has no effect on the registered driver "
                f"{config.model!r}; leave it out"
            )
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
            driver=None if driver is None else cast("Driver", _NamedDriver(driver, config)),
            tools=tools,
            capabilities=capabilities,
        )


class _NamedDriver:
    """A driver under the name that it is registered by, which is no name of a model."""

    def __init__(self, driver: Driver, config: LLMConfig) -> None:
        self._driver = driver
        self._config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def infer(self, request: InferenceRequest) -> bytes | Awaitable[bytes]:
        """Ask the driver for its own model, with the settings of the definition and the session."""
        return self._driver.infer(replace(request, settings=self._settings(request.settings)))

    def knows_price(self, settings: LLMConfig | None = None) -> bool:
        """See `Driver.knows_price`."""
        return self._driver.knows_price(self._settings(settings))

    def _settings(self, given: LLMConfig | None) -> LLMConfig | None:
        if given is not None and given.model not in (None, self._config.model):
            return given
        settings = {**self._config.settings, **(given.settings if given is not None else {})}
        return LLMConfig(settings=FrozenDict(settings)) if settings else None


def _find(known: Mapping[str, T], name: str, kind: str, definition: AgentDefinition) -> T:
    if name not in known:
        names = ", ".join(sorted(known)) or "none"
        raise ConfigurationError(
            f"agent {definition.name!r}: no {kind} {name!r} is registered; registered are: {names}"
        )
    return known[name]
