"""`RunState`: what Locus calls an agent's state, as a value."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from ..state.agent_state import AgentState
from ..state.conversation.messages import Message
from ..state.execution.budget import ExecutionBudget
from .view import RunFields

DEFAULT_MAX_ITERATIONS: Final = 20
"""The limit of iterations that the source document gives a state."""


class AroundAgentState:
    """A value around an `AgentState`; names of it that the value lacks are read from it, with a warning."""

    __slots__ = ()
    if TYPE_CHECKING:
        state: AgentState

    @classmethod
    def of(cls, agent_state: AgentState) -> Self:
        """Show a state under these names."""
        made = cls.__new__(cls)
        object.__setattr__(made, "state", agent_state)
        return made

    @property
    def agent_state(self) -> AgentState:
        """The state as the workers keep it."""
        return self.state

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; a change gives another one")

    def __getattr__(self, name: str) -> Any:
        """Read a name of `AgentState`, which a condition that is written for one expects."""
        kind = type(self).__name__
        if name.startswith("_") or (not hasattr(AgentState, name) and name not in AgentState.model_fields):
            raise AttributeError(f"{kind} has no {name!r}; agent_state is the whole state")
        warnings.warn(f"{kind}.{name}: read agent_state.{name}", DeprecationWarning, stacklevel=2)
        return getattr(self.state, name)


class RunState(AroundAgentState, RunFields["RunState"]):
    """One run of an agent, under the names of Locus. Immutable: every builder gives another one."""

    __slots__ = ()

    def __init__(
        self,
        *,
        agent_id: str | None = None,
        run_id: str | None = None,
        messages: Iterable[Message] = (),
        max_iterations: int | None = DEFAULT_MAX_ITERATIONS,
        token_budget: int | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin a run.

        Args:
            agent_id: The agent's id, the same in each of its runs. None: a new one.
            run_id: The id of this run. None: a new one.
            messages: The conversation so far.
            max_iterations: Limit of iterations; None is unlimited, 0 stops before the first.
            token_budget: Limit of tokens; None is unlimited.
            metadata: JSON that the application keeps with the run.
        Raises:
            InvalidInput: A value does not fit; the error names the field.
        """
        budget = ExecutionBudget(max_steps=max_iterations, max_tokens=token_budget)
        state = AgentState.fresh(agent_id=agent_id, metadata=dict(metadata or {})).with_execution(run_id, budget)
        super().__init__(state.with_messages_added(tuple(messages)))

    @classmethod
    def from_checkpoint(cls, checkpoint: Mapping[str, Any]) -> Self:
        """Read what `to_checkpoint` gave; raises as `AgentState.from_dict` does."""
        return cls.of(AgentState.from_checkpoint(dict(checkpoint)))

    def _give(self, state: AgentState) -> RunState:
        return RunState.of(state)
