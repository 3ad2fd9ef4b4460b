"""Reads the definition of a pydantic-ai agent when its module is imported, and refuses what cannot be durable."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from ..drivers.pricing import TokenPrice
from ..drivers.pydantic_ai.setting_names import refuse_background
from ..errors import ConfigurationError
from ..state.values.frozen import FrozenDict, freeze
from ..tools.effect import Effect
from ..tools.toolset import ToolSet
from . import internals
from .tool_options import ToolOptions, checked_effect, definitions_in

if TYPE_CHECKING:
    from pydantic_ai import Agent

    from .durability import CeleryDurability


@dataclass(frozen=True, slots=True)
class KnownTool:
    """A tool that an agent has when it is found.

    Attributes:
        options: Its effect class and the like.
        parameters: JSON Schema of its arguments.
    """

    options: ToolOptions
    description: str
    parameters: FrozenDict


class PydanticDefinition(NamedTuple):
    """A pydantic-ai agent as our agents are defined.

    Attributes:
        agent: The original.
        fields: The fields of our agent: its name, its description, the driver that asks its model, and its limits.
        toolset: Its tools, those included that are known at run time only.
        makes_deps: Whether a function makes its dependencies of the metadata.
    """

    agent: Agent[Any, Any]
    fields: Mapping[str, Any]
    toolset: ToolSet
    makes_deps: bool


_OF_AN_AGENT: Final = (
    "budget", "guards", "queue", "provider_group", "completion_window", "window_failed", "background",
)  # fmt: skip
"""Options that mean what the fields of the same names mean for an `Agent`."""


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
    capabilities = list(_capabilities_in(agent.root_capability))
    given = [each for each in capabilities if isinstance(each, CeleryDurability)]
    if not given:
        return None
    if len(given) > 1:
        raise ConfigurationError(f"agent {place}: it has CeleryDurability {len(given)} times; leave one")
    if not agent.name:
        raise ConfigurationError(f"agent {place}: it has no name; give one, as Agent(…, name='helpdesk')")
    internals.check_installed()
    (options,) = given
    _check_options(agent.name, options)
    refuse_background(f"agent {agent.name!r}: model_settings", agent.model_settings)
    refuse_background(f"agent {agent.name!r}: settings of its model", getattr(agent.model, "settings", None))
    _check_capabilities(agent.name, options, capabilities)
    options.effect = checked_effect(f"agent {agent.name!r}: CeleryDurability", options.effect)
    known = _known_tools(agent, options.effect)
    fields = {
        "name": agent.name,
        "description": agent.description or "",
        "driver": PydanticAgentDriver(agent, options, {name: tool.options for name, tool in known.items()}),
        **{name: getattr(options, name) for name in _OF_AN_AGENT},
    }
    return PydanticDefinition(
        agent, fields, PydanticToolSet(agent, options, known), makes_deps=options.deps is not None
    )


def _capabilities_in(capability: Any) -> Iterator[Any]:
    """A capability with all that it holds: those that it combines, and the one that it wraps."""
    yield capability
    for each in (*getattr(capability, "capabilities", ()), getattr(capability, "wrapped", None)):
        if each is not None:
            yield from _capabilities_in(each)


def _check_options(agent: str, options: CeleryDurability) -> None:
    """Refuse options that are not what their names promise; the agent's budget and queue are checked with it."""
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.usage import UsageLimits

    recreated: Any = options.recreated
    is_list = isinstance(recreated, (list, tuple))
    kinds: list[Any] = list(recreated) if is_list else []  # pyright: ignore[reportUnknownArgumentType]
    expected = (
        ("deps", "a function of the session's metadata", options.deps is None or callable(options.deps)),
        ("usage_limits", "a UsageLimits", _is_kind(options.usage_limits, UsageLimits)),
        ("price", "a TokenPrice", _is_kind(options.price, TokenPrice)),
        (
            "recreated",
            "a list of classes of capabilities",
            is_list and all(isinstance(kind, type) and issubclass(kind, AbstractCapability) for kind in kinds),
        ),
    )
    for name, kind, fits in expected:
        if not fits:
            raise ConfigurationError(
                f"agent {agent!r}: CeleryDurability: {name}={getattr(options, name)!r:.80} must be {kind}"
            )


def _is_kind(value: object, kind: type[Any]) -> bool:
    return value is None or isinstance(value, kind)


def _check_capabilities(agent: str, options: CeleryDurability, capabilities: Iterable[Any]) -> None:
    """Refuse capabilities that cannot work where each step is a run of its own, in any worker."""
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.durable_exec import BaseDurabilityCapability

    for each in capabilities:
        kind = cast("type[Any]", type(each))
        if isinstance(each, BaseDurabilityCapability):
            raise ConfigurationError(
                f"agent {agent!r}: it has {kind.__name__} beside CeleryDurability; an agent has one engine"
            )
        keeps_state = kind.for_run is not AbstractCapability.for_run and not kind.__module__.startswith("pydantic_ai.")
        if keeps_state and not isinstance(each, tuple(options.recreated)):
            raise ConfigurationError(
                f"agent {agent!r}: {kind.__name__} keeps state for a run in the process (for_run), and each step "
                f"is a run of its own; keep it in a store, or allow it: CeleryDurability(recreated=[{kind.__name__}])"
            )


def _known_tools(agent: Agent[Any, Any], default: Effect) -> dict[str, KnownTool]:
    """The tools that the agent has without a run, by name."""
    definitions = {each.name: each for each in definitions_in(agent.toolsets)}
    place = f"agent {agent.name!r}: tool"
    return {
        name: KnownTool(
            options=ToolOptions.of(agent.name, each, default),
            description=each.description or "",
            parameters=cast("FrozenDict", freeze(each.parameters_json_schema, f"{place} {name}: parameters")),
        )
        for name, each in definitions.items()
    }
