"""The fields of an agent's state, and the version of its stored form.

`AgentState` consists of four layers, so that each can be read alone: these fields, its accessors (`agent_view`), the
changes to its context and its parts (`agent_parts`), and the changes to its execution (`agent_state`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Self, cast

from pydantic import ValidationError
from pydantic_core import from_json

from ..errors import InvalidInput, StateTooNew, StateUnreadable
from .conversation.context import AgentContext, LLMConfig
from .execution.execution import ExecutionState
from .execution.status import ExecutionStatus
from .parts.storage import StoredParts
from .values.field_types import Count, UtcDatetime, default_from, utcnow
from .values.ids import AgentId
from .values.value import Value, skip_when_reading

SCHEMA_VERSION = 3
"""The newest stored form that this package reads. Raised when an older worker could not carry the data without loss.

It is the form of a state whose execution waits: a worker that knows no requests must not run its step.
"""

PARTS_SCHEMA_VERSION = 2
"""The stored form of a state with parts."""

PLAIN_SCHEMA_VERSION = 1
"""The stored form of a state without parts, which workers from before the parts carry too."""


PACKED_SCHEMA_VERSION = 4
"""The stored form of a session whose lists may have packed entries; its head names the form of the state beside it."""


_NAMES_ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "max_iterations": "give Agent(budget=ExecutionBudget(max_steps=…)), read state.run.max_iterations",
        "token_budget": "give Agent(budget=ExecutionBudget(max_tokens=…)), read state.run.token_budget",
        "confidence": "use state.run.with_confidence(…)",
        "confidence_threshold": "give Agent(capabilities=[Reflexion(threshold=…)])",
        "tool_loop_threshold": "give Agent(capabilities=[LoopDetection(threshold=…)])",
        "terminal_tools": "give Agent(capabilities=[TerminalTools({…})])",
        "messages": "use state.run.with_messages(…)",
        "run_id": "use state.with_execution(execution_id)",
        "metadata": "use AgentState.fresh(metadata={…}), or state.with_metadata(key, value)",
    }
)
"""Names that other libraries use for what is elsewhere here, with what to write instead."""

_UNKNOWN_VERSION = 0
"""The version of stored data that name none."""


def _schema_version() -> int:
    return _UNKNOWN_VERSION


def check_schema_version(version: object, newest: int = SCHEMA_VERSION) -> None:
    """Refuse stored data of a version that this package does not read; other types than numbers are left to the parser.

    Raises:
        StateUnreadable: The data name no version.
        StateTooNew: A newer version of this package wrote them.
    """
    if isinstance(version, int) and version > newest:
        raise StateTooNew(version, newest)
    if version == _UNKNOWN_VERSION:
        raise StateUnreadable("schema_version", "it is missing; only data that to_json or to_dict wrote can be read")


def schema_version_of(parts: StoredParts | None, execution: ExecutionState | None) -> int:
    """The stored form that a state with these parts and this execution needs."""
    if execution is not None and execution.status is ExecutionStatus.WAITING:
        return SCHEMA_VERSION
    has_parts = parts is not None or (execution is not None and execution.parts is not None)
    return PARTS_SCHEMA_VERSION if has_parts else PLAIN_SCHEMA_VERSION


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

    @skip_when_reading  # so that a missing version shows
    def __init__(self, **data: Any) -> None:
        """Raises `InvalidInput`, which names the field, when the data do not fit."""
        for name in _NAMES_ELSEWHERE.keys() & data.keys():
            advice = f"there is no such field; {_NAMES_ELSEWHERE[name]}."
            raise InvalidInput(f"AgentState.{name}", cast("object", data[name]), advice)
        super().__init__(**{"schema_version": PLAIN_SCHEMA_VERSION, **data})

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read what `to_dict` gave.

        Raises:
            StateTooNew: A newer version of this package wrote it.
            StateUnreadable: It names no schema version.
            pydantic.ValidationError: A field does not fit.
        """
        try:
            state = super().from_dict(data)
        except ValidationError:
            check_schema_version(data.get("schema_version"))
            raise
        check_schema_version(state.schema_version)
        return state

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Read what `to_json` gave.

        Raises:
            StateTooNew: A newer version of this package wrote it.
            StateUnreadable: It names no schema version.
            pydantic.ValidationError: It is no JSON, or a field does not fit.
        """
        try:
            state = super().from_json(data)
        except ValidationError:
            check_schema_version(_version_in(data))
            raise
        check_schema_version(state.schema_version)
        return state

    def with_context_and_execution(self, context: AgentContext, execution: ExecutionState | None) -> Self:
        """The same state with this context and execution, as a store reads them back; no time is stamped."""
        return self._with(context=context, execution=execution)

    def stored_as(self, schema_version: int) -> Self:
        """The same state with the number of another stored form."""
        return self._with(schema_version=schema_version)

    def _change(self, now: datetime | None, **changes: Any) -> Self:
        if "execution" in changes:
            changes["schema_version"] = schema_version_of(changes.get("parts", self.parts), changes["execution"])
        return self._with(updated_at=max(now or utcnow(), self.updated_at), **changes)


def _version_in(data: bytes | str) -> object:
    try:
        return from_json(data)["schema_version"]
    except (ValueError, KeyError, TypeError):
        return None
