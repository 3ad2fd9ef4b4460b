"""Handoff: another agent goes on with the session. It is no child: the conversation, the budget and the id stay."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeGuard

from ..errors import ConfigurationError
from ..state.values.frozen import FrozenDict
from .effect import Effect
from .protocol import Lookup
from .results import DEFAULT_MAX_RESULT_CHARS

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,49}")
_NO_ARGUMENTS: Final = FrozenDict({"type": "object", "properties": {}, "additionalProperties": False})


@dataclass(frozen=True, slots=True)
class Handoff:
    """A wish of an agent's definition: its model may hand the session over to another agent.

    Attributes:
        agent: The agent, or its name.
        when: When to do it, for the model.
        context: What the other agent sees of the conversation: "all", or "last" (the last user message).
    """

    agent: Any
    when: str = ""
    context: Literal["all", "last"] = "all"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"Handoff: agent={self.agent!r:.60} must be an agent, or its name of 1 to 50 letters"
            )
        if self.context not in ("all", "last"):
            raise ConfigurationError(f"Handoff to {self.name}: context={self.context!r:.40} must be 'all' or 'last'")

    @property
    def name(self) -> str:
        """The name of the other agent."""
        return self.agent if isinstance(self.agent, str) else str(getattr(self.agent, "name", ""))


class SupportsHandoff(Protocol):
    """A tool whose call hands the session over. The worker never runs its `call`."""

    @property
    def handoff(self) -> Handoff:
        """The handoff that its call carries out."""
        ...


def supports_handoff(tool: object) -> TypeGuard[SupportsHandoff]:
    """Whether the call of a tool hands the session over."""
    return hasattr(tool, "handoff")


@dataclass(frozen=True, eq=False)
class HandoffTool:
    """The tool `transfer_to_<agent>` of a handoff."""

    handoff: Handoff
    effect: Effect = Effect.PURE
    timeout: float | None = None
    lookup: Lookup | None = None
    max_result_chars: int = DEFAULT_MAX_RESULT_CHARS
    is_async: bool = False

    @property
    def name(self) -> str:
        """The name for the model."""
        return f"transfer_to_{self.handoff.name}"

    @property
    def description(self) -> str:
        """When to call it, for the model."""
        when = f" Do it when {self.handoff.when}." if self.handoff.when else ""
        return f"Hand the conversation over to the agent {self.handoff.name}, which goes on from here.{when}"

    @property
    def parameters(self) -> FrozenDict:
        """JSON Schema of no arguments."""
        return _NO_ARGUMENTS

    def bind(self, args: Mapping[str, Any] | str) -> dict[str, Any]:
        """Take no arguments; those that a model gives all the same say nothing."""
        del args
        return {}

    def call(self, ctx: Any, bound: Mapping[str, Any]) -> Any:
        """Refuse: a worker hands over instead.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(f"{self.name} hands a session over; only a worker can do that")
