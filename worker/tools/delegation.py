"""Delegation: a call that another agent works on, in a session of its own below the caller's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeGuard

from ..errors import ConfigurationError, InvalidInput
from ..state.agent_state import AgentState
from ..state.conversation.messages import Message
from ..state.execution.budget import UNLIMITED, ExecutionBudget
from ..state.execution.children import ChildFailure, JoinRule
from ..state.parts.state_part import StatePart
from ..state.reducers import Reducer
from .approval import LONGEST_EXPIRY
from .needs import NeedsReply

ContextRule = Literal["input", "last", "all"] | Callable[[AgentState, str], "str | Message | Sequence[Message]"]
"""What a child sees of its parent's conversation.

`input`: the prompt alone. `last`: the parent's last user message, then the prompt. `all`: the parent's messages without
tool calls, then the prompt. A function of the parent's state and the prompt gives the messages itself.
"""

MergeRules = Mapping["str | type[StatePart]", Reducer]
"""How what children bring is combined with what the parent has: by metadata key, or by state part."""

_RULES: Final = ("input", "last", "all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegation:
    """One piece of work for another agent.

    Attributes:
        agent: The name of the agent.
        prompt: The message that the child begins with.
        budget: Limits for this child; more than the parent has left is an error. None: a share of what is left.
        limits: Limits of the agent's definition, as far as they are known; capped by what is left.
        timeout: The time in which the child has to end; it is stopped then. None: no end.
        merge: Metadata keys and state parts that the parent takes over.
        is_declared: The agent was named where the tools were defined. False: by the model or by running code, so that a
            name that no worker has ever registered is an error.
    """

    agent: str
    prompt: str
    budget: ExecutionBudget | None = None
    limits: ExecutionBudget = UNLIMITED
    context: ContextRule = "input"
    on_failure: ChildFailure = ChildFailure.TELL
    join: JoinRule = JoinRule.ALL
    timeout: timedelta | None = None
    merge: MergeRules = field(default_factory=dict[Any, Reducer])
    is_declared: bool = True


class DelegatingTool(Protocol):
    """A tool whose calls are worked on by other agents. The worker never runs its `call`."""

    def delegate(self, bound: Mapping[str, Any]) -> Delegation:
        """The work of a call with these arguments.

        Raises:
            InvalidInput: It cannot be delegated; the model reads why.
        """
        ...


def is_delegating(tool: object) -> TypeGuard[DelegatingTool]:
    """Whether calls of a tool are worked on by other agents."""
    return hasattr(tool, "delegate")


class NeedsChildren(NeedsReply):
    """Raised by `ctx.spawn`: the tool runs again when these children have ended.

    Attributes:
        delegations: The work, one child each.
        group: The place of this `ctx.spawn` among those of one run of the tool, from 0.
    """

    def __init__(self, delegations: Sequence[Delegation], group: int) -> None:
        self.delegations = tuple(delegations)
        self.group = group
        super().__init__(f"the call goes on when {len(self.delegations)} children have ended")


def check_rules(where: str, context: object, on_failure: str, join: str, timeout: object) -> None:
    """Check the rules of a delegation.

    Raises:
        ConfigurationError: A value cannot be used; the text says what to do.
    """
    if not callable(context) and context not in _RULES:
        raise ConfigurationError(f"{where}: context={context!r:.60} must be 'input', 'last', 'all' or a function")
    if on_failure not in tuple(ChildFailure):
        raise ConfigurationError(f"{where}: on_failure={on_failure!r:.60} must be one of {', '.join(ChildFailure)}")
    if join not in tuple(JoinRule):
        raise ConfigurationError(f"{where}: join={join!r:.60} must be 'all' or 'first'")
    if timeout is not None and (not isinstance(timeout, timedelta) or not timedelta() < timeout <= LONGEST_EXPIRY):
        advice = f"must be a timedelta above 0 and up to {LONGEST_EXPIRY.days} days, or None for no end"
        raise ConfigurationError(f"{where}: timeout={timeout!r:.60} {advice}")


class ChildLimits(NamedTuple):
    """The limits of an agent's children.

    Attributes:
        max_children: Children of one step that work at the same time, from 1.
        max_depth: Levels of children below the root of a tree, from 0.
    """

    max_children: int
    max_depth: int


def check_child_limits(where: str, max_children: object, max_depth: object) -> None:
    """Check how many children an agent may have at a time, and how deep a tree may be.

    Raises:
        ConfigurationError: A value cannot be used. Without room for a child, a call of one would wait for ever.
    """
    for name, value, least in (("max_children", max_children, 1), ("max_depth", max_depth, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            advice = "" if name == "max_depth" else "; max_depth=0 forbids children"
            raise ConfigurationError(f"{where}: {name}={value!r:.60} must be a whole number from {least}{advice}")


def check_merge(where: str, merge: MergeRules | None) -> MergeRules:
    """Check how what children bring is combined.

    Raises:
        ConfigurationError: A key is no metadata key and no state part, or a rule is no function.
    """
    for key, reducer in (merge or {}).items():
        kind: Any = key
        is_part = isinstance(kind, type) and issubclass(kind, StatePart)
        if not (isinstance(key, str) or is_part) or not callable(reducer):
            raise ConfigurationError(
                f"{where}: merge={{{key!r:.40}: …}} must map a metadata key or a StatePart class to a reducer"
            )
    return dict(merge or {})


def delegations_of(agent: Any, prompts: str | Sequence[str], **options: Any) -> list[Delegation]:
    """The work of `ctx.spawn`: one child for each prompt.

    Raises:
        InvalidInput: There is no prompt, or the agent is neither a name nor an agent.
    """
    name: Any = agent if isinstance(agent, str) else getattr(agent, "name", None)
    if not isinstance(name, str):
        raise InvalidInput("agent", None, "give the name of an agent, or the agent.")
    listed: list[Any] = [prompts] if isinstance(prompts, str) else list(prompts)
    if not listed or not all(isinstance(each, str) for each in listed):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput("prompts", None, "give a text, or a list of texts, one for each child.")
    limits = UNLIMITED if isinstance(agent, str) else agent.effective_budget
    declared = not isinstance(agent, str)
    return [Delegation(agent=name, prompt=each, limits=limits, is_declared=declared, **options) for each in listed]
