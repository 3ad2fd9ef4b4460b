"""`Subagents`: gives the model the tool `spawn_subagent`, which hands a task to one of several agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field

from ..capability import Capability, call_hooks
from ..drivers.pydantic_ai.models import Target
from ..errors import ConfigurationError, InvalidInput
from ..state.conversation.context import LLMConfig
from ..state.execution.budget import ExecutionBudget
from ..state.execution.children import ChildFailure, JoinRule
from ..tools.agent_tool import DelegatedTool
from ..tools.definition import FunctionTool, tool
from ..tools.delegation import (
    ChildLimits,
    ContextRule,
    Delegation,
    MergeRules,
    check_child_limits,
    check_merge,
    check_rules,
)
from ..tools.effect import Effect
from ..tools.protocol import Tool
from ..tools.toolset import ToolSet

if TYPE_CHECKING:
    from ..agent import Agent

SPAWN_SUBAGENT: Final = "spawn_subagent"


@dataclass(frozen=True)
class Subagent:
    """An agent that is defined for its parent alone. Workers that offer the parent offer it by its name, too.

    What the parent asks before a tool call holds for it as well: the approval rules and guardrails, the hooks around
    tool calls, the guards given to the agent, and the time limits of steps and tools.

    Attributes:
        name: Unique among the agents of a worker.
        description: What it is good for, for the parent's model.
        system_prompt: Its instructions.
        tools: Names of the parent's tools that it may use. None: all. Empty: none.
        deny: Names that are taken away from those.
        model: Its model; None: the parent's. The parent's `base_url` holds for models of the same provider.
        budget: Its limits, capped by what the parent has left.
    """

    name: str
    description: str = ""
    system_prompt: str = ""
    tools: Sequence[str] | None = None
    deny: Sequence[str] = ()
    model: str | None = None
    budget: ExecutionBudget | None = None


@dataclass(frozen=True)
class Subagents(Capability):
    """Lets the model hand tasks to other agents, each in a session of its own.

    Attributes:
        agents: Agents, or definitions for this parent alone.
        max_depth: Levels of children below the root of a tree, from 0: the agent starts none. No agent of a tree
            goes deeper than the agents above it allow.
        max_children: Children of one step that work at the same time, from 1.
        context: What a child sees of the conversation.
        on_failure: What its failure does: "tell" the model, "fail" or "fail_fast".
        join: "first": of the calls of one step, the first that completes stops the others.
        merge: Reducers by metadata key or state part.
    """

    agents: Sequence[Agent | Subagent] = ()
    max_depth: int = 3
    max_children: int = 8
    context: ContextRule = "input"
    on_failure: ChildFailure | str = ChildFailure.TELL
    join: JoinRule | str = JoinRule.ALL
    merge: MergeRules = field(default_factory=dict[Any, Any])

    def __post_init__(self) -> None:
        for each in self.agents:
            _check_agent(each)
        names = [each.name for each in self.agents]
        if not names or len(set(names)) != len(names):
            raise ConfigurationError(f"Subagents: give agents, each name once; got {', '.join(names) or 'none'}")
        check_child_limits("Subagents", self.max_children, self.max_depth)
        check_rules("Subagents", self.context, self.on_failure, self.join, None)
        check_merge("Subagents", self.merge)

    def tools(self) -> Sequence[Tool | Callable[..., Any]]:
        """The one tool `spawn_subagent`."""
        return (SpawnTool(self, _definition(self.agents)),)

    def child_limits(self) -> ChildLimits:
        """The limits of the capability, which go before the agent's."""
        return ChildLimits(self.max_children, self.max_depth)

    def derive(self, parent: Agent) -> Sequence[Agent]:
        """The agents that workers offer together with the parent."""
        return [_derive(parent, each) for each in self.agents if isinstance(each, Subagent)]


@dataclass(frozen=True, eq=False)
class SpawnTool(DelegatedTool):
    """The tool `spawn_subagent(subagent, prompt)`; whether there is such a subagent is asked after the depth."""

    capability: Subagents
    definition: FunctionTool[..., Any]
    name: str = SPAWN_SUBAGENT

    @property
    def description(self) -> str:
        """The subagents, for the model."""
        return self.definition.description

    @property
    def merge(self) -> MergeRules:
        """How what children bring is combined with what the parent has."""
        return self.capability.merge

    def delegate(self, bound: Mapping[str, Any]) -> Delegation:
        """The work of a call.

        Raises:
            InvalidInput: There is no such subagent.
        """
        wanted, known = bound["subagent"], {each.name: each for each in self.capability.agents}
        if wanted not in known:
            raise InvalidInput("subagent", wanted, f"there is no such subagent; subagents: {', '.join(known)}.")
        chosen = known[wanted]
        return Delegation(
            agent=wanted,
            prompt=bound["prompt"],
            limits=chosen.budget or ExecutionBudget.unlimited(),
            context=self.capability.context,
            on_failure=ChildFailure(self.capability.on_failure),
            join=JoinRule(self.capability.join),
            merge=self.capability.merge,
        )


def _check_agent(value: Any) -> None:
    """Refuse what is no agent of this package; one of pydantic-ai, for example, is found in its module.

    Raises:
        ConfigurationError: It is none.
    """
    if isinstance(value, Subagent) or isinstance(getattr(value, "toolset", None), ToolSet):
        return
    kind = f"{type(value).__module__.partition('.')[0]}.{type(value).__qualname__}"
    name = getattr(value, "name", None)
    raise ConfigurationError(
        f"Subagents: {name or value!r:.80} is a {kind}; give agents of this package or Subagent(…). An agent that "
        f"workers offer under its name, as one of pydantic-ai, is called by AgentTool({name or 'its name'!r})"
    )


def _definition(agents: Sequence[Agent | Subagent]) -> FunctionTool[..., Any]:
    names = [each.name for each in agents]
    lines = [f"- {each.name}: {each.description or 'no description'}{_tools_of(each)}" for each in agents]
    description = "\n".join(["Hand a task to a subagent, which works on it alone and answers. Subagents:", *lines])
    listed: Any = {"enum": list(names)}

    def spawn(
        subagent: Annotated[str, Field(description="The subagent.", json_schema_extra=listed)],
        prompt: Annotated[str, Field(description="The whole task.")],
    ) -> str:
        raise ConfigurationError(f"a worker starts {subagent}; nothing else can: {prompt:.40}")

    return tool(effect=Effect.KEYED, name=SPAWN_SUBAGENT, description=description)(spawn)


def _tools_of(agent: Agent | Subagent) -> str:
    """The tools of an agent, for the model."""
    if not isinstance(agent, Subagent):
        names = list(agent.toolset.names())
    elif agent.tools is None:
        return "" if not agent.deny else f" (all tools but {', '.join(agent.deny)})"
    else:
        names = [name for name in agent.tools if name not in agent.deny]
    return f" (tools: {', '.join(names) or 'none'})"


def _derive(parent: Agent, wanted: Subagent) -> Agent:
    """The agent of a definition: the parent's model and driver, and a part of its tools with the rules about them.

    Raises:
        ConfigurationError: It names a tool that the parent does not have.
    """
    unknown = [name for name in (*(wanted.tools or ()), *wanted.deny) if name not in parent.toolset]
    if unknown:
        known = ", ".join(parent.toolset.names())
        raise ConfigurationError(
            f"subagent {wanted.name!r}: its parent {parent.name!r} has no tool {unknown[0]!r}; it has {known}"
        )
    names = parent.toolset.names() if wanted.tools is None else wanted.tools
    takes_parents = wanted.model is None
    # Another provider is asked at its own address: the parent's would get its key.
    asked = (
        Target(parent.models[0], parent.base_url).overridden_by(LLMConfig(model=wanted.model)) if parent.model else None
    )
    return type(parent)(
        name=wanted.name,
        model=wanted.model or parent.model,
        driver=parent.driver if takes_parents else None,
        base_url=asked.base_url if asked is not None else None,
        model_settings=parent.model_settings if parent.model else None,
        price=parent.price if takes_parents else None,
        provider_group=parent.provider_group,
        description=wanted.description,
        system_prompt=wanted.system_prompt,
        tools=[parent.toolset[name] for name in names if name not in wanted.deny],
        budget=wanted.budget,
        guards=parent.guards,
        hooks=call_hooks(parent.hooks),
        capabilities=[each.for_subagent() for each in parent.capabilities],
        max_parallel_tools=parent.max_parallel_tools,
        step_timeout=parent.step_timeout,
        tool_timeout=parent.tool_timeout,
        queue=parent.queue,
        max_children=parent.max_children,
        max_depth=parent.max_depth,
        mcp=parent.mcp if wanted.tools is None else (),
        window_failed=parent.window_failed,
        background=parent.background and takes_parents,
    )
