"""Capabilities: what makes an agent richer than its tools and its prompt.

A capability brings tools, hooks, guards, approval policies, a message compiler and typed parts of the state, and uses
nothing that the code of a user could not use. An agent takes any number of them; their order is the order in which they
are given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import ConfigurationError
from .guards import Guard
from .hooks import Hook, HookPoint
from .state.agent_state import AgentState
from .state.conversation.compilers import MessageCompiler
from .state.conversation.messages import Message
from .state.execution.budget import ExecutionBudget
from .state.execution.children import ParentLink
from .state.parts.list_part import ListPart
from .state.parts.state_part import StatePart, check_defaults, check_part_name
from .tools.approval import CallPolicy
from .tools.delegation import ChildLimits
from .tools.protocol import Tool
from .tools.toolset import ToolSet


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedStep:
    """A step that was committed.

    Attributes:
        state: The session as it was committed, with the step's execution in it.
        parent: The place of the session in its tree; None for a root.
        weight: About the bytes of memory that the session took before the step; 0: unknown.
        note_failed_sinks: Stores why sinks did not get the trace of the execution, by their names, for the case that no
            commit follows. None: nothing stores it.
    """

    session_id: str
    execution_id: str
    step: int
    agent: str
    state: AgentState
    parent: ParentLink | None = None
    weight: int = 0
    note_failed_sinks: Callable[[Mapping[str, str]], object] | None = None


@dataclass(frozen=True)
class Capability:
    """The base class of capabilities, with empty defaults: derive a frozen dataclass and override what you bring.

    A hook changes parts by `context.changed(state=context.state.with_part(part))`. A tool returns its result, and a
    hook after the step reads it and changes the part: both follow from the journal when the step is run again.
    """

    @property
    def name(self) -> str:
        """How messages of errors call it."""
        return type(self).__name__

    def tools(self) -> Sequence[Tool | Callable[..., Any]]:
        """Tools that the agent gets besides its own."""
        return ()

    def derive(self, parent: Any) -> Sequence[Any]:
        """Further agents that workers offer together with the agent of this capability.

        Args:
            parent: The agent that has the capability.
        """
        del parent
        return ()

    def hooks(self) -> Sequence[Hook]:
        """Hooks that run with the agent's own, by their priority; equal ones after the agent's."""
        return ()

    def guards(self) -> Sequence[Guard]:
        """Guards that are asked after the agent's own."""
        return ()

    def policies(self) -> Sequence[CallPolicy]:
        """Policies that decide about calls before the tools' own `approval`; the first that decides is followed."""
        return ()

    def parts(self) -> Sequence[type[StatePart] | type[ListPart[Any]]]:
        """The kinds of parts that belong to it; no other capability of the agent may use their names."""
        return ()

    def compile(self, state: AgentState, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The messages that the model sees, from those that the compiler before it chose. Pure, and without I/O."""
        return messages

    def budget(self) -> ExecutionBudget | None:
        """Limits that hold besides the agent's, the smaller of both; None: none."""
        return None

    def parallel_tools(self) -> int | None:
        """Tool calls of a step that run side by side, for an agent that does not say; None: the setting."""
        return None

    def child_limits(self) -> ChildLimits | None:
        """Limits of children in place of the agent's, of several the smaller ones; None: the agent's."""
        return None

    def compiler(self) -> MessageCompiler | None:
        """A compiler in place of the default one, for an agent that names none. None: the default one."""
        return None

    def events(self, before: AgentState, after: AgentState) -> Sequence[Mapping[str, Any]]:
        """The events of a step, which its commit appends to the session's stream. Pure, and without I/O.

        Args:
            before: The session as the step found it.
            after: The session that is committed; its `last_step` is the step.
        Returns:
            JSON objects; each says by `type` what it is.
        """
        return ()

    def holds_live_text(self) -> bool:
        """Whether the text of the model is held back until the hooks behind its answer have seen it."""
        return False

    def committed(self, step: CommittedStep) -> None:
        """Take note that a step was committed. Return at once; what it raises is logged and changes nothing.

        A worker that is killed behind the commit takes no note: what must not be missed belongs in a hook.
        """

    def close(self, seconds: float) -> None:
        """End what was begun for `committed`, within `seconds`: the worker ends."""

    def for_subagent(self) -> Capability:
        """The part of it that holds for a `Subagent` of the agent too, because it guards the tools that both may call.

        Override it to give more; what an override leaves out does not hold for the tools of the subagent.

        Returns:
            Its policies and its hooks around tool calls. They see the state of the subagent, without this capability's
            parts.
        """
        return CallRules(of=self)

    def check_tools(self, names: Collection[str]) -> None:
        """Refuse an agent whose tools do not fit; `names` are those of the agent and of all its capabilities.

        Raises:
            ConfigurationError: A tool is missing; the text names it.
        """


@dataclass(frozen=True)
class CallRules(Capability):
    """The rules about tool calls that a capability brings, without its tools, parts and other hooks.

    Attributes:
        of: The capability.
    """

    of: Capability

    @property
    def name(self) -> str:
        """That of the capability."""
        return self.of.name

    def policies(self) -> Sequence[CallPolicy]:
        """The policies of the capability."""
        return self.of.policies()

    def hooks(self) -> Sequence[Hook]:
        """The hooks of the capability around tool calls."""
        return call_hooks(self.of.hooks())

    def for_subagent(self) -> Capability:
        """The same rules."""
        return self


def call_hooks(hooks: Iterable[Hook]) -> tuple[Hook, ...]:
    """Choose the hooks that run around tool calls."""
    return tuple(each for each in hooks if each.point in (HookPoint.BEFORE_TOOL, HookPoint.AFTER_TOOL))


@dataclass(frozen=True)
class CapableCompiler:
    """The agent's compiler, followed by those of its capabilities in order."""

    first: MessageCompiler
    capabilities: tuple[Capability, ...]

    def compile(self, state: AgentState) -> tuple[Message, ...]:
        """The messages, as the last compiler leaves them."""
        messages = self.first.compile(state)
        for capability in self.capabilities:
            messages = capability.compile(state, messages)
        return messages


def check_capabilities(agent: str, capabilities: Iterable[Any], tools: Iterable[Tool | Callable[..., Any]]) -> None:
    """Refuse what cannot work together, where the agent is defined.

    Raises:
        ConfigurationError: Something is no capability, or brings no guard or policy as one; two want the same tool name
            or part; or one misses a tool.
    """
    given = tuple(capabilities)
    parts: dict[str, str] = {}
    names = dict.fromkeys(ToolSet(tools).names(), "the agent")
    for each in given:
        if not isinstance(each, Capability):
            raise ConfigurationError(
                f"agent {agent!r}: {each!r:.80} is no Capability; derive its class from Capability"
            )
        for kind, brought, method in (("guard", each.guards(), "check"), ("policy", each.policies(), "decide")):
            for one in brought:
                if not hasattr(one, method):
                    raise ConfigurationError(f"agent {agent!r}: {each.name}: {one!r:.80} is no {kind} with {method}(…)")
        _claim_names(agent, each, ToolSet(each.tools()).names(), names, "tool")
        _claim_names(agent, each, map(_checked_part, each.parts()), parts, "part")
    for each in given:
        _check_tools(agent, each, names)


def check_compilers(agent: str, capabilities: Iterable[Capability], compiler: MessageCompiler | None) -> None:
    """Refuse an agent for which two compilers want to choose the messages.

    Raises:
        ConfigurationError: It has a compiler of its own and a capability brings one, or two capabilities do.
    """
    owners = ["compiler="] if compiler is not None else []
    owners += [each.name for each in capabilities if each.compiler() is not None]
    if len(owners) > 1:
        raise ConfigurationError(
            f"agent {agent!r}: {' and '.join(owners)} each choose the messages that the model sees; leave one out"
        )


def compiler_of(compiler: MessageCompiler, capabilities: Sequence[Capability]) -> MessageCompiler:
    """The agent's compiler with those of its capabilities behind it; the agent's own where none brings any."""
    bringing = tuple(each for each in capabilities if type(each).compile is not Capability.compile)
    return CapableCompiler(compiler, bringing) if bringing else compiler


def _check_tools(agent: str, capability: Capability, names: Collection[str]) -> None:
    try:
        capability.check_tools(tuple(names))
    except ConfigurationError as error:
        raise ConfigurationError(f"agent {agent!r}: {error}") from None


def _claim_names(agent: str, capability: Capability, wanted: Iterable[str], owners: dict[str, str], kind: str) -> None:
    for name in wanted:
        if name in owners:
            raise ConfigurationError(
                f"agent {agent!r}: {owners[name]} and {capability.name} both bring a {kind} named {name!r}; "
                f"rename one or leave one capability out"
            )
        owners[name] = capability.name


def _checked_part(kind: type[Any]) -> str:
    if issubclass(kind, StatePart):
        check_defaults(kind)
    return check_part_name(kind)
