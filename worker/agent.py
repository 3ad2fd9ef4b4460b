"""An agent: a model or a driver, a prompt, tools, limits. What users define and workers import."""

from __future__ import annotations

import copy
import hashlib
import json
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import timedelta
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..config.settings import DEFAULT_QUEUE, GROUP_MARK
from .agent_checks import check_answers, check_kinds, check_name, check_queue, check_window
from .capability import Capability, check_capabilities, check_compilers, compiler_of
from .drivers.function import FunctionDriver
from .drivers.pricing import TokenPrice
from .drivers.protocol import Driver
from .errors import ConfigurationError, InvalidInput, UnknownAgent
from .flow.concurrency import limits_of_tool, read_limit_names
from .flow.schedules import Schedule
from .guards import BudgetGuard, Guard
from .hooks import Hook, HookStack
from .mcp.server import MCPServer, check_servers
from .pydantic_agents.definition import PydanticDefinition, definition_of
from .state.conversation.compilers import ConversationWithCurrentToolTrace, MessageCompiler
from .state.execution.budget import ExecutionBudget
from .state.execution.children import ChildFailure, JoinRule
from .tools.agent_tool import AgentTool
from .tools.approval import Approval, CallPolicy
from .tools.delegation import ContextRule, MergeRules
from .tools.handoff import Handoff, HandoffTool
from .tools.protocol import Tool
from .tools.toolset import ToolSet

if TYPE_CHECKING:
    from .capabilities.smart.limits import AgentLimits
    from .capabilities.smart.profiles import RuntimeProfile
    from .capabilities.smart.reasoning_config import ReasoningConfig


@dataclass(frozen=True, eq=False)
class Agent:
    """A definition of an agent. Immutable, and the same in every worker that imports it.

    Attributes:
        name: How services and sessions refer to it.
        model: Any pydantic-ai model id, such as `openai:gpt-5-mini`; or a list of them, of which each further one is
            asked in the same step where those before may not be asked now, or have failed. None: `driver` answers.
        base_url: An OpenAI-compatible server to ask instead of the provider's own.
        model_settings: Passed to the provider: temperature and the like. Never a key.
        driver: Answers instead of a model: a `Driver`, or a plain or async function of the state.
        system_prompt: Instructions in front of every conversation.
        tools: What the agent may call; bare functions get the default (unsafe) effect class.
        budget: Limits of each execution. A submit may only lower them. None: the setting `default_max_steps` limits an
            execution whose submit gives no budget either. `ExecutionBudget.unlimited()`: no limit.
        output_type: A pydantic model the final answer must fit. None: text.
        guards: Further checks before the driver call and before the next step.
        hooks: Watch, and change what their point allows.
        compiler: Chooses the messages the model sees. None: the conversation with the current tool trace.
        max_parallel_tools: Tool calls of one step that run side by side. None: the setting.
        step_timeout: Seconds a step may take. None: the setting.
        tool_timeout: Seconds a call may take, for tools that set none. None: the setting.
        capabilities: Bring further tools, hooks, guards, compilers and parts of the state, in this order.
        max_children: Children of one step that work at the same time, from 1; the others follow as these end. The value
            of a capability `Subagents` goes first.
        max_depth: Levels of children below the root of a tree, from 0. At this depth the agent starts none, and
            neither does any agent below it. The value of a capability `Subagents` goes first.
        handoffs: Agents that may go on with a session of this one; its model calls `transfer_to_<agent>`.
        queue: Name of a queue of its own, such as `gpu`: its steps run in the workers that take this queue. None: the
            common queue.
        profile: `fast`, `balanced`, `deep`, `research`, or a `RuntimeProfile`: limits and a summarization, where the
            agent is not given its own. None: neither.
        mcp: MCP servers whose tools the agent may call, each with the server's name in front.
        reasoning: How the model thinks and reflects, as by a capability `Reflection`. None: as its provider does.
        limits: `AgentLimits`, as in `capabilities`. None: none.
        price: What the model's tokens cost, where no price list knows it; it comes before the list. None: the list's.
            Of a list of models, it is the price of the first.
        archive_days: The archive forgets a session so many days after its last change. None: the setting.
        provider_group: The name under which requests count towards limits of providers, together with those of all
            agents of this name. None: the key's own digest.
        concurrency: The concurrency limits under which its steps run, by name; see `celery_agents.flow`.
        completion_window: The time within which its model may answer, "2h", "8h" or "24h": no worker waits meanwhile,
            and the provider charges less. For one model whose provider sells it. None: it answers at once.
        background: Its answers are begun in the background of their provider: where a worker dies, the next one
            attaches to the same answer, which is not paid twice. Text streams as usual, and nothing is cheaper. For
            one model of OpenAI's responses.
        window_failed: Where a provider gives no answer within the window: "fail", the execution fails; or "live", the
            model is asked at once, at full price.
        schedules: Messages for it at the times of a cron expression. A worker stores them when it starts, where they
            are not as they were last stored so; an edit by `client.schedules` stays until they change here.
    """

    name: str
    model: str | Sequence[str] | None = None
    base_url: str | None = None
    model_settings: Mapping[str, Any] | None = None
    driver: Driver | Callable[..., Any] | None = None
    system_prompt: str = ""
    tools: Sequence[Tool | Callable[..., Any]] = ()
    budget: ExecutionBudget | None = None
    description: str = ""
    output_type: type[Any] | None = None
    guards: Sequence[Guard] = ()
    hooks: Sequence[Hook] = ()
    compiler: MessageCompiler | None = None
    max_parallel_tools: int | None = None
    step_timeout: float | None = None
    tool_timeout: float | None = None
    capabilities: Sequence[Capability] = ()
    queue: str | None = None
    max_children: int = 8
    max_depth: int = 3
    handoffs: Sequence[Handoff | Agent] = ()
    profile: str | RuntimeProfile | None = None
    mcp: Sequence[MCPServer] = ()
    price: TokenPrice | None = None
    provider_group: str | None = None
    archive_days: float | None = None
    concurrency: str | Sequence[str] = ()
    schedules: Sequence[Schedule] = ()
    completion_window: str | None = None
    window_failed: str = "fail"
    background: bool = False
    reasoning: InitVar[ReasoningConfig | None] = None
    limits: InitVar[AgentLimits | None] = None
    toolset: ToolSet = field(init=False, repr=False)
    hook_stack: HookStack = field(init=False, repr=False)
    all_guards: tuple[Guard, ...] = field(init=False, repr=False)
    policies: tuple[CallPolicy, ...] = field(init=False, repr=False)
    notice: str = field(init=False, repr=False, default="")

    def __post_init__(self, reasoning: ReasoningConfig | None, limits: AgentLimits | None) -> None:
        check_name(self.name)
        check_queue(self.name, self.queue)
        object.__setattr__(self, "concurrency", read_limit_names(f"agent {self.name!r}: concurrency", self.concurrency))
        if (self.model is None) == (self.driver is None):
            raise ConfigurationError(
                f"agent {self.name!r}: give either model='provider:name' or driver=…, "
                f"{'not both' if self.model else 'one of them is needed'}"
            )
        for name in ("base_url", "model_settings", "output_type", "price"):
            if self.driver is not None and getattr(self, name) is not None:
                raise ConfigurationError(
                    f"agent {self.name!r}: {name} belongs to model='provider:name'; with driver=… give it to "
                    "the driver, or return InferenceResponse(output=…, cost=…) where that is a function"
                )
        check_kinds(self)
        if self.profile is not None or reasoning is not None or limits is not None:
            object.__setattr__(self, "capabilities", _complete(self, reasoning, limits))
        check_capabilities(self.name, self.capabilities, self.tools)
        check_compilers(self.name, self.capabilities, self.compiler)
        given = self.capabilities
        handoffs = [each if isinstance(each, Handoff) else Handoff(each) for each in self.handoffs]
        if any(each.name == self.name for each in handoffs):
            raise ConfigurationError(f"agent {self.name!r}: a handoff to itself leads nowhere; remove it")
        tools = (*self.tools, *(tool for each in given for tool in each.tools()), *map(HandoffTool, handoffs))
        if of_children := [found for each in given if (found := each.child_limits()) is not None]:
            object.__setattr__(self, "max_children", min(each.max_children for each in of_children))
            object.__setattr__(self, "max_depth", min(each.max_depth for each in of_children))
        object.__setattr__(self, "toolset", ToolSet(tools))
        object.__setattr__(self, "mcp", check_servers(self.name, self.mcp))
        object.__setattr__(self, "hook_stack", HookStack((*self.hooks, *(h for each in given for h in each.hooks()))))
        guards = (*self.guards, *(guard for each in given for guard in each.guards()))
        object.__setattr__(self, "all_guards", (BudgetGuard(), *guards))
        if self.max_parallel_tools is None:
            wanted = [each.parallel_tools() for each in given]
            object.__setattr__(self, "max_parallel_tools", min((n for n in wanted if n is not None), default=None))
        check_answers(self)
        check_window(self)
        object.__setattr__(self, "schedules", tuple(_schedules_of(self)))
        object.__setattr__(self, "policies", tuple(policy for each in given for policy in each.policies()))

    def as_tool(
        self,
        name: str = "",
        description: str = "",
        *,
        budget: ExecutionBudget | None = None,
        context: ContextRule = "input",
        on_failure: ChildFailure | str = ChildFailure.TELL,
        join: JoinRule | str = JoinRule.ALL,
        timeout: timedelta | None = None,
        merge: MergeRules | None = None,
        approval: Approval = "never",
    ) -> AgentTool:
        """Make a tool of this agent: each call starts a child session, and its answer is the result.

        The calling step waits meanwhile and keeps no worker busy.

        Args:
            name: The name for the model; "" is `ask_<agent>`.
            description: What the agent is good for; "" is its own description.
            budget: Limits of each call, reserved from what the caller has left; more than that is an error that the
                model reads. None: what is left is split evenly among such calls of the step.
            context: What the agent sees of the caller's conversation: "input" (the prompt), "last" (the last user
                message too), "all", or a function of the caller's state and the prompt.
            on_failure: "tell" (the model reads the error), "fail" or "fail_fast" (the caller fails).
            join: "first": of the calls of one step with such tools, the first that completes stops the others.
            timeout: The time in which the agent has to end. None: no end.
            merge: Reducers by metadata key or state part: what the agent has there is combined with the caller's.
            approval: Whether a person approves each call; see `@tool`.
        Raises:
            ConfigurationError: An argument cannot be used.
        """
        return AgentTool(
            agent=self.name,
            name=name,
            description=description or self.description,
            budget=budget,
            limits=self.effective_budget,
            context=context,
            on_failure=on_failure,
            join=join,
            expires=timeout,
            merge=merge or {},
            approval=approval,
        )

    def with_remote_tools(self, tools: Sequence[Tool], away: Sequence[str] = ()) -> Agent:
        """The same agent with tools that are known at run time only; they have names that none of its own has.

        Args:
            away: Names of servers whose tools are missing; a notice behind the system prompt tells the model.
        """
        _ = self.answering, self.definition, self.stored_definition, self.definition_hash  # those of the definition
        made = copy.copy(self)
        object.__setattr__(made, "toolset", ToolSet((*self.toolset, *tools)))
        if away:
            notice = f"The MCP servers {', '.join(away)} cannot be reached: their tools are missing now."
            object.__setattr__(made, "notice", notice)
        return made

    def without_hooks(self) -> Agent:
        """The same agent without hooks and events of capabilities."""
        made = copy.copy(self)
        object.__setattr__(made, "hook_stack", HookStack())
        made.__dict__["event_sources"] = ()
        return made

    @cached_property
    def answering(self) -> Driver:
        """The driver that answers: the given one, one made of a function, or the model's.

        Raises:
            MissingExtra: The model needs the extra `llm`.
        """
        if self.driver is not None:
            return self.driver if hasattr(self.driver, "infer") else FunctionDriver(self.driver)  # pyright: ignore
        from .drivers.pydantic_ai.driver import PydanticAIDriver

        return PydanticAIDriver(
            self.models[0],
            base_url=self.base_url,
            settings=self.model_settings,
            output_type=self.output_type,
            price=self.price,
        )

    @property
    def limited_by(self) -> tuple[str, ...]:
        """The names of its concurrency limits."""
        assert isinstance(self.concurrency, tuple), "read where the agent is made"
        return self.concurrency

    @cached_property
    def named_limits(self) -> frozenset[str]:
        """The names of the concurrency limits of the agent and its tools."""
        return frozenset((*self.limited_by, *(name for each in self.toolset for name in limits_of_tool(each))))

    @cached_property
    def models(self) -> tuple[str, ...]:
        """The ids of its models, in the order in which they are asked; none where a driver answers."""
        return (self.model,) if isinstance(self.model, str) else tuple(self.model or ())

    @cached_property
    def messages_from(self) -> MessageCompiler:
        """The compiler that chooses the messages, with those of the capabilities behind it."""
        given = (self.compiler, *(each.compiler() for each in self.capabilities), ConversationWithCurrentToolTrace())
        return compiler_of(next(each for each in given if each is not None), self.capabilities)

    @cached_property
    def event_sources(self) -> tuple[Capability, ...]:
        """The capabilities that report events of their own."""
        return tuple(each for each in self.capabilities if type(each).events is not Capability.events)

    @cached_property
    def commit_listeners(self) -> tuple[Capability, ...]:
        """The capabilities that take note of commits."""
        return tuple(each for each in self.capabilities if type(each).committed is not Capability.committed)

    @cached_property
    def holds_live_text(self) -> bool:
        """Whether the text of the model is held back until the hooks behind its answer have seen it."""
        return any(each.holds_live_text() for each in self.capabilities)

    @cached_property
    def effective_budget(self) -> ExecutionBudget:
        """Limits of an execution: its own, and those of its capabilities."""
        limits = self.budget or ExecutionBudget.unlimited()
        for each in self.capabilities:
            more = each.budget()
            limits = limits if more is None else limits.capped_by(more)
        return limits

    @property
    def has_budget(self) -> bool:
        """Whether the agent is limited, or said to be unlimited. If not, the default limit of steps holds."""
        return self.budget is not None or not self.effective_budget.is_empty()

    @cached_property
    def definition(self) -> Mapping[str, Any]:
        """The definition as plain JSON."""
        more = {"mcp": [_describe_server(server) for server in self.mcp]} if self.mcp else {}
        more |= {"fallback": list(self.models[1:])} if self.models[1:] else {}
        more |= {"concurrency": list(self.limited_by)} if self.concurrency else {}
        more |= {"completion_window": self.completion_window} if self.completion_window else {}
        more |= {"archive_days": self.archive_days} if self.archive_days is not None else {}
        return {
            "name": self.name,
            "description": self.description,
            "model": self.models[0] if self.models else self.answering.name,
            "base_url": self.base_url,
            "system_prompt": self.system_prompt,
            "tools": [_describe_tool(tool) for tool in self.toolset],
            "budget": self.effective_budget.to_dict(),
            **more,
        }

    @cached_property
    def stored_definition(self) -> bytes:
        """The definition as each session keeps it: JSON without blanks, and without what is None."""
        budget = {name: limit for name, limit in self.definition["budget"].items() if limit is not None}
        kept = {name: value for name, value in {**self.definition, "budget": budget}.items() if value is not None}
        return json.dumps(kept, separators=(",", ":")).encode()

    @cached_property
    def definition_hash(self) -> str:
        """Changes when the definition does."""
        return hashlib.sha256(json.dumps(self.definition, sort_keys=True).encode()).hexdigest()[:16]


def _read_limits(agent: Agent) -> ExecutionBudget:
    warnings.warn("Agent.limits: read Agent.effective_budget", DeprecationWarning, stacklevel=2)
    return agent.effective_budget


# Given once, both are among the capabilities: `dataclasses.replace` must not give them again.
for _name in ("reasoning", "limits"):
    del Agent.__dataclass_fields__[_name]
    delattr(Agent, _name)
Agent.limits = property(_read_limits)  # type: ignore[assignment]


def _schedules_of(agent: Agent) -> Iterator[Schedule]:
    for each in agent.schedules:
        if not isinstance(each, Schedule):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"agent {agent.name!r}: schedules={each!r:.80} must be Schedule values")
        try:
            yield each.of_agent(agent.name)
        except InvalidInput as error:
            raise ConfigurationError(f"agent {agent.name!r}: {error}") from error


def _complete(agent: Agent, reasoning: Any, limits: Any) -> tuple[Capability, ...]:
    """The capabilities of an agent with those that its reasoning, its limits and its profile stand for."""
    from .capabilities.smart.limits import AgentLimits
    from .capabilities.smart.profiles import find_profile
    from .capabilities.smart.reasoning_config import ReasoningConfig
    from .capabilities.smart.reflection import Reflection

    for name, value, kind in (("reasoning", reasoning, ReasoningConfig), ("limits", limits, AgentLimits)):
        if value is not None and not isinstance(value, kind):
            advice = "; the limits of an ExecutionBudget are budget=" if isinstance(value, ExecutionBudget) else ""
            raise ConfigurationError(f"agent {agent.name!r}: {name}={value!r:.80} must be {kind.__name__}{advice}")
    further = (limits, None if reasoning is None else Reflection(reasoning))
    given = (*agent.capabilities, *(each for each in further if each is not None))
    return given if agent.profile is None else find_profile(agent.profile).capabilities(given)


def _describe_tool(tool: Tool) -> dict[str, Any]:
    """The definition of a tool; only of one that may ask does it say so."""
    described = {"name": tool.name, "effect": tool.effect.value, "parameters": tool.parameters}
    approval = getattr(tool, "approval", "never")
    if approval != "never":
        described["approval"] = approval if approval == "always" else "by policy"
    if getattr(tool, "later", None) is not None:
        described["result"] = "later"
    return described


def _describe_server(server: MCPServer) -> dict[str, Any]:
    """The definition of an MCP server, without anything that may be secret."""
    effects = {name: str(effect) for name, effect in server.effects.items()}
    return {"name": server.name, "trust": server.trust, "only": list(server.only), "effects": effects}


class AgentRegistry:
    """The agents of one worker, by name."""

    def __init__(self, agents: Iterable[Agent] = ()) -> None:
        self._agents: dict[str, Agent] = {}
        for agent in agents:
            self.add(agent)

    def add(self, agent: Agent) -> None:
        """Offer an agent.

        Raises:
            ConfigurationError: Another agent has this name.
        """
        known = self._agents.get(agent.name)
        if known is not None and known is not agent:
            raise ConfigurationError(f"two agents are named {agent.name!r}; rename one")
        self._agents[agent.name] = agent
        for capability in agent.capabilities if known is None else ():
            for derived in capability.derive(agent):
                self.add(derived)

    @classmethod
    def from_modules(cls, names: Iterable[str], queues: Collection[str] | None = None) -> AgentRegistry:
        """Import modules and take the agents at their top level.

        Args:
            queues: Take only the agents of these queues; "" is the common one. None: all.
        Raises:
            ConfigurationError: A module cannot be imported or holds no agent, or no agent has one of the queues.
        """
        registry = cls()
        for name in names:
            found = list(_agents_in(name))
            if not found:
                raise ConfigurationError(f"module {name!r} defines no Agent at its top level (CELERY_AGENTS_AGENTS)")
            for agent in found:
                registry.add(agent)
        return registry if queues is None else registry.restricted_to(queues)

    def restricted_to(self, queues: Collection[str]) -> AgentRegistry:
        """The agents of these queues; "" is the common one.

        Raises:
            ConfigurationError: No agent has one of the queues.
        """
        for queue in queues:
            if queue not in self.queues:
                known = ", ".join(sorted(name or DEFAULT_QUEUE for name in self.queues))
                raise ConfigurationError(
                    f"no agent here has the queue {queue or DEFAULT_QUEUE!r} (CELERY_AGENTS_QUEUES, or -Q); "
                    f"queues of the agents: {known}"
                )
        found = AgentRegistry()  # its agents are added already, with those that were derived of them
        found._agents = {name: agent for name, agent in self._agents.items() if (agent.queue or "") in queues}
        return found

    def __getitem__(self, name: str) -> Agent:
        """The agent of that name.

        Raises:
            UnknownAgent: This worker does not offer it.
        """
        agent = self._agents.get(name)
        if agent is None:
            raise UnknownAgent(name, tuple(self._agents))
        return agent

    def __contains__(self, name: object) -> bool:
        return name in self._agents

    def __iter__(self) -> Iterator[Agent]:
        return iter(self._agents.values())

    def __len__(self) -> int:
        return len(self._agents)

    @property
    def hashes(self) -> dict[str, str]:
        """Name to definition hash."""
        return {agent.name: agent.definition_hash for agent in self}

    @property
    def queues(self) -> frozenset[str]:
        """Names of the agents' queues; "" is the common one."""
        return frozenset(agent.queue or "" for agent in self)

    @property
    def group(self) -> str:
        """Name of the queue of the worker group: of all workers that offer exactly these agents."""
        names = "\n".join(sorted(self._agents))
        return GROUP_MARK + hashlib.sha256(names.encode()).hexdigest()[:8]


def _agents_in(module: str) -> Iterator[Agent]:
    if module.startswith("."):
        raise ConfigurationError(
            f"module {module!r} (CELERY_AGENTS_AGENTS) is a path, or a part of a name; write it like my_service.agents"
        )
    try:
        imported = import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"module {module!r} (CELERY_AGENTS_AGENTS) cannot be imported: {str(error).rstrip('.')}. "
            "Is it installed, or the worker started in the right folder?"
        ) from error
    for variable, value in vars(imported).items():
        if (found := as_agent(value, f"{module}.{variable}")) is not None:
            yield found


def as_agent(value: object, place: str) -> Agent | None:
    """The agent itself, or the one made of a pydantic-ai agent with `CeleryDurability`; None for others.

    Args:
        place: Where the value was found, for errors.
    Raises:
        ConfigurationError: The pydantic-ai agent cannot be durable; the text says why.
    """
    if isinstance(value, Agent):
        return value
    found = definition_of(value, place)
    return None if found is None else _durable_agent(found)


_durable_agents: dict[int, Agent] = {}
"""The agents made of pydantic-ai's, by the identity of the original, which they keep alive."""


def _durable_agent(found: PydanticDefinition) -> Agent:
    """The agent made of one of pydantic-ai; the same one for each name that a module gives it."""
    if id(found.agent) not in _durable_agents:
        made = Agent(**found.fields)
        object.__setattr__(made, "toolset", found.toolset)
        _durable_agents[id(found.agent)] = made
    return _durable_agents[id(found.agent)]
