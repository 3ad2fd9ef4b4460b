"""`AgentTool`: a tool that hands its prompt to another agent and brings back the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any

from pydantic import Field

from ..errors import ConfigurationError
from ..state.execution.budget import UNLIMITED, ExecutionBudget
from ..state.execution.children import ChildFailure, JoinRule
from ..state.values.frozen import FrozenDict
from .approval import Approval
from .definition import FunctionTool, tool
from .delegation import ContextRule, Delegation, MergeRules, check_merge, check_rules
from .effect import Effect
from .protocol import Lookup

_PROMPT = "The whole task, with everything the agent has to know: it sees nothing else."


def _ask(prompt: Annotated[str, Field(description=_PROMPT)]) -> str:
    raise ConfigurationError(f"an agent works on this call; a worker starts it, and nothing else can: {prompt:.40}")


class DelegatedTool:
    """The base of tools whose calls other agents work on: a worker starts these, and never runs `call`.

    Attributes:
        definition: The name, the description and the arguments for the model.
    """

    definition: FunctionTool[..., Any]
    effect = Effect.KEYED  # the child is made once
    timeout: float | None = None  # nothing runs in the caller's worker
    lookup: Lookup | None = None  # the outcome of a call is always known
    is_async = False

    @property
    def parameters(self) -> FrozenDict:
        """JSON Schema of the arguments."""
        return self.definition.parameters

    @property
    def max_result_chars(self) -> int:
        """Characters of the answer that are stored and shown to the model."""
        return self.definition.max_result_chars

    def bind(self, args: Mapping[str, Any] | str) -> dict[str, Any]:
        """Validate the arguments."""
        return self.definition.bind(args)

    def call(self, ctx: Any, bound: Mapping[str, Any]) -> Any:
        """Refuse: a worker starts the agent instead.

        Raises:
            ConfigurationError: Always.
        """
        return self.definition.call(ctx, bound)


@dataclass(frozen=True, eq=False)
class AgentTool(DelegatedTool):
    """A tool that another agent works on, in a session of its own. `Agent.as_tool` makes one of an agent.

    Attributes:
        agent: The name of the agent, which may belong to another service.
        name: The name for the model; None: `ask_<agent>`.
        description: What the agent is good for, for the model.
        budget: Limits of each call; more than the caller has left is an error. None: a share of what is left.
        limits: Limits of the agent's definition; capped by what is left.
        context: What the agent sees of the caller's conversation.
        on_failure: What its failure does to the caller.
        join: Calls of one step whose tools say "first" race: the first that completes stops the others.
        expires: The time in which it has to end. None: no end.
        merge: How its metadata and state parts are combined with the caller's.
        approval: Whether a person approves each call.
    """

    agent: str
    name: str = ""
    description: str = ""
    budget: ExecutionBudget | None = None
    limits: ExecutionBudget = UNLIMITED
    context: ContextRule = "input"
    on_failure: ChildFailure | str = ChildFailure.TELL
    join: JoinRule | str = JoinRule.ALL
    expires: timedelta | None = None
    merge: MergeRules = field(default_factory=dict[Any, Any])
    approval: Approval = "never"
    definition: FunctionTool[..., Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        name = self.name or f"ask_{self.agent}".replace("-", "_")
        where = f"tool {name}"
        check_rules(where, self.context, self.on_failure, self.join, self.expires)
        if self.budget is not None and not isinstance(self.budget, ExecutionBudget):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"{where}: budget={self.budget!r:.60} must be an ExecutionBudget")
        described = self.description or f"Hand a task to the agent {self.agent} and get its answer."
        definition = tool(effect=Effect.KEYED, name=name, description=described, approval=self.approval)(_ask)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "description", described)
        object.__setattr__(self, "merge", check_merge(where, self.merge))
        object.__setattr__(self, "definition", definition)

    def delegate(self, bound: Mapping[str, Any]) -> Delegation:
        """The work of a call."""
        return Delegation(
            agent=self.agent,
            prompt=bound["prompt"],
            budget=self.budget,
            limits=self.limits,
            context=self.context,
            on_failure=ChildFailure(self.on_failure),
            join=JoinRule(self.join),
            timeout=self.expires,
            merge=self.merge,
        )
