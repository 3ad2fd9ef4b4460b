"""A message that a caller submits, as the store takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...worker.engine import FirstExecution, first_state
from ...worker.engine.run import moment
from ...worker.state import AgentState, ExecutionBudget, FrozenDict, Message, SessionId
from ...worker.store import NextState
from .inputs import fingerprint_request


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A message that a caller hands in, checked.

    Attributes:
        execution_id: Id of the execution that it starts in a new session.
        metadata: Of a new session.
        notify: Receivers of a callback at the end; None when there is none.
    """

    session: SessionId
    message: Message
    operation_id: str
    execution_id: str = ""
    budget: ExecutionBudget | None
    metadata: FrozenDict = field(default_factory=FrozenDict)
    notify: Mapping[str, Any] | None

    def first_state(self, now_ms: int) -> NextState:
        """Build the first version of a new session."""
        now = moment(now_ms)
        state = AgentState.fresh(metadata=self.metadata, now=now)
        execution = FirstExecution(self.execution_id, self.operation_id, self.budget, notify=self.notify)
        return first_state(state, self.message, execution, now)

    def fingerprint(self, agent: str) -> str:
        """Hash what the caller asked for, to recognise another request under the same key."""
        return fingerprint_request(agent, self.message, self.budget, self.metadata)

    def payload(self) -> dict[str, Any]:
        """Write the message as the payload of an operation."""
        payload: dict[str, Any] = {"message": self.message.to_dict()}
        if self.budget is not None:
            payload["budget"] = self.budget.to_dict()
        if self.notify is not None:
            payload["notify"] = self.notify
        return payload
