"""The fields of an agent's state, and the version of its stored form.

`AgentState` consists of five layers, so that each can be read alone: these fields, its accessors (`agent_view`),
the changes to its context (`agent_context`), its parts (`agent_parts`), and the changes to its execution
(`agent_state`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Self

from .conversation.context import AgentContext, LLMConfig
from .execution.execution import ExecutionState
from .parts.storage import StoredParts
from .values.field_types import Count, UtcDatetime, default_from, utcnow
from .values.ids import AgentId
from .values.value import Value

SCHEMA_VERSION = 2
"""The newest stored form that this package reads. Raised when an older worker could not carry the data without loss."""

PLAIN_SCHEMA_VERSION = 1
"""The stored form of a state without parts, which workers from before the parts carry too."""


def _schema_version() -> int:
    return PLAIN_SCHEMA_VERSION


def schema_version_of(parts: StoredParts | None, execution: ExecutionState | None) -> int:
    """The stored form that a state with these parts and this execution needs."""
    has_parts = parts is not None or (execution is not None and execution.parts is not None)
    return SCHEMA_VERSION if has_parts else PLAIN_SCHEMA_VERSION


class AgentFields(Value):
    """The fields of `AgentState`.

    Attributes:
        schema_version: Of the form it was stored in; newer ones are refused when it is read.
        parent_agent_id: The agent that started it as its sub-agent; None for one that runs by itself.
        updated_at: Never before the last change.
        execution_count: Executions that were started.
        llm_config: A model for this agent alone; None is its definition's.
        execution: The current or last one; None before the first, and after `for_next_execution`.
        parts: What capabilities keep for the session; None without any.
    """

    schema_version: Count = default_from(_schema_version)
    agent_id: AgentId = default_from(AgentId.generate)
    parent_agent_id: AgentId | None = None
    created_at: UtcDatetime = default_from(utcnow)
    updated_at: UtcDatetime = default_from(utcnow)
    execution_count: Count = 0
    llm_config: LLMConfig | None = None
    context: AgentContext = AgentContext()
    execution: ExecutionState | None = None
    parts: StoredParts | None = None

    def with_context_and_execution(self, context: AgentContext, execution: ExecutionState | None) -> Self:
        """The same state with this context and execution, as a store reads them back; no time is stamped."""
        return self._with(context=context, execution=execution)

    def _change(self, now: datetime | None, **changes: Any) -> Self:
        return self._with(updated_at=max(now or utcnow(), self.updated_at), **changes)
