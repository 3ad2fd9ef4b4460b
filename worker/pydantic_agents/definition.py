"""Reads the definition of a pydantic-ai agent when its module is imported, and refuses what cannot be durable."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ..errors import ConfigurationError
from ..state import ExecutionBudget
from ..tools import ToolSet
from ..tools.effect import Effect
from . import internals

if TYPE_CHECKING:
    from pydantic_ai import Agent

    from .driver import PydanticAgentDriver

_KEY = "celery"


@dataclass(frozen=True)
class PydanticDefinition:
    """A pydantic-ai agent as our agents are defined.

    Attributes:
        agent: The original.
        name: Its name.
        description: Its description; "" without one.
        driver: Asks its model.
        toolset: Its tools, those included that are known at run time only.
        budget: Limits of each execution.
        queue: Name of a queue of its own; None is the common queue.
    """

    agent: Agent[Any, Any]
    name: str
    description: str
    driver: PydanticAgentDriver
    toolset: ToolSet
    budget: ExecutionBudget | None
    queue: str | None


def definition_of(value: object, place: str) -> PydanticDefinition | None:
    """The definition of a pydantic-ai agent with `CeleryDurability`; None for anything else.

    Args:
        place: Where the value was found, for errors.
    Raises:
        ConfigurationError: The agent cannot be durable; the text says why.
    """
    if "pydantic_ai" not in sys.modules:
        return None
    from pydantic_ai import Agent

    if not isinstance(value, Agent):
        return None
    from .driver import PydanticAgentDriver
    from .durability import CeleryDurability
    from .tool import PydanticToolSet

    agent = cast("Agent[Any, Any]", value)
    given = [each for each in agent.root_capability.capabilities if isinstance(each, CeleryDurability)]
    if not given:
        return None
    if len(given) > 1:
        raise ConfigurationError(f"agent {place}: it has CeleryDurability {len(given)} times; leave one")
    if not agent.name:
        raise ConfigurationError(f"agent {place}: it has no name; give one, as Agent(…, name='helpdesk')")
    internals.check_installed()
    (options,) = given
    options.effect = _checked_effect(f"agent {agent.name!r}: CeleryDurability", options.effect)
    return PydanticDefinition(
        agent=agent,
        name=agent.name,
        description=agent.description or "",
        driver=PydanticAgentDriver(agent, options),
        toolset=PydanticToolSet(agent, options, _effects_of(agent, options.effect)),
        budget=options.budget,
        queue=options.queue,
    )


def _effects_of(agent: Agent[Any, Any], default: Effect) -> dict[str, Effect]:
    """The effect classes that the metadata of function tools name, by tool."""
    from pydantic_ai.toolsets import FunctionToolset

    found: dict[str, Effect] = {}
    for toolset in agent.toolsets:
        if not isinstance(toolset, FunctionToolset):
            continue
        for name, tool in toolset.tools.items():
            found[name] = _effect_of(f"agent {agent.name!r}: tool {name}", tool.metadata or {}, default)
    return found


def _effect_of(tool: str, metadata: Mapping[str, Any], default: Effect) -> Effect:
    options: Any = metadata.get(_KEY, {})
    if not isinstance(options, dict) or options.keys() - {"effect"}:
        raise ConfigurationError(f"{tool}: metadata {_KEY}={options!r:.80} must be like {{'effect': 'keyed'}}")
    return _checked_effect(tool, cast("dict[str, Any]", options).get("effect", default))


def _checked_effect(place: str, effect: Any) -> Effect:
    if effect not in (Effect.PURE, Effect.KEYED, Effect.UNSAFE):
        raise ConfigurationError(f"{place}: effect {effect!r:.80} must be 'pure', 'keyed' or 'unsafe'")
    return Effect(effect)
