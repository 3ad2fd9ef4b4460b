"""The fields of an agent's state with their accessors, and the version of its stored form.

`AgentState` consists of three layers, so that each can be read alone: these fields, the changes to its context and its
parts (`agent_parts`), and the changes to its execution (`agent_state`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, cast

from pydantic import ValidationError
from pydantic_core import from_json

from ..errors import InvalidInput, StateTooNew, StateUnreadable
from .conversation.context import AgentContext, LLMConfig
from .conversation.messages import MessageStore
from .execution.budget import UNLIMITED, ExecutionBudget
from .execution.execution import ExecutionState
from .execution.signals import StopReason, StopSignal
from .execution.status import ExecutionStatus
from .execution.steps import AgentStep, AgentStepType
from .execution.usage import NO_USAGE, InferenceUsage
from .parts.storage import StoredParts
from .values.error_info import ErrorInfo
from .values.field_types import Count, UtcDatetime, default_from, utcnow
from .values.frozen import FrozenDict, Json
from .values.ids import AgentId
from .values.value import Value, skip_when_reading

if TYPE_CHECKING:
    from .agent_state import AgentState

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
    """The fields of `AgentState`. Without an execution there are no steps, no usage, no errors and no answer.

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

    @property
    def store(self) -> MessageStore:
        """The messages by section."""
        return self.context.store

    @property
    def metadata(self) -> FrozenDict:
        """The values that the application keeps separately from the conversation."""
        return self.context.metadata

    @property
    def system_prompt(self) -> str:
        """The session's own prompt; empty where the agent's is used."""
        return self.context.system_prompt

    @property
    def budget(self) -> ExecutionBudget:
        """The limits of the execution; without one there are none."""
        return self.execution.budget if self.execution else UNLIMITED

    @property
    def status(self) -> ExecutionStatus | None:
        """The status of the execution; None without one."""
        return self.execution.status if self.execution else None

    @property
    def step_count(self) -> int:
        """Steps of the execution, the current one included."""
        return self.execution.step_count if self.execution else 0

    @property
    def steps(self) -> tuple[AgentStep, ...]:
        """The steps that are done, in order."""
        state = cast("AgentState", self)
        return tuple(each.step.shown_by(state) for each in self.execution.step_executions) if self.execution else ()

    @property
    def current_step(self) -> AgentStep | None:
        """The step being worked on; None between steps."""
        return self._show(self.execution.current_step if self.execution else None)

    @property
    def last_step(self) -> AgentStep | None:
        """The last step that is done."""
        return self._show(self.execution.last_step if self.execution else None)

    @property
    def current_step_or_last(self) -> AgentStep | None:
        """The current step, or else the last one that is done."""
        return self._show(self._latest_step)

    @property
    def last_step_type(self) -> AgentStepType | None:
        """The type of the last step that is done."""
        return self.last_step.step_type if self.last_step else None

    @property
    def stop_signal(self) -> StopSignal | None:
        """The most authoritative stop signal."""
        return self.execution.stop_signal if self.execution else None

    @property
    def last_stop_reason(self) -> StopReason | None:
        """The reason of the most authoritative signal; `COMPLETED` for a completed execution without signals."""
        return self.execution.final_reason() if self.execution else None

    @property
    def usage(self) -> InferenceUsage:
        """Tokens of the execution so far."""
        return self.execution.usage if self.execution else NO_USAGE

    @property
    def cost(self) -> float | None:
        """US dollars of the execution so far; None when no answer had a known price."""
        return self.execution.cost if self.execution else None

    @property
    def errors(self) -> tuple[ErrorInfo, ...]:
        """Every error of the execution, including those it recovered from."""
        return self.execution.all_errors() if self.execution else ()

    @property
    def final_response(self) -> str:
        """The answer; empty without one."""
        step = self._latest_step
        return step.output_text if step is not None and step.has_final_response() else ""

    @property
    def current_response(self) -> str:
        """The answer, or else the text of the latest step."""
        step = self._latest_step
        return step.output_text if step is not None else ""

    @property
    def final_output(self) -> Json:
        """The answer's structured output, when the agent asked for one; else None."""
        step = self._latest_step
        return step.inference_response.output if step is not None and step.has_final_response() else None

    def has_errors(self) -> bool:
        """Tell whether the execution has any error, recovered or not."""
        return self.execution is not None and self.execution.has_errors()

    def has_final_response(self) -> bool:
        """Tell whether the latest step is a final answer."""
        step = self._latest_step
        return step is not None and step.has_final_response()

    def should_stop(self) -> bool:
        """Tell whether no further step should run; True without an execution. See `ExecutionState.should_stop`."""
        return self.execution is None or self.execution.should_stop()

    def execution_duration(self, now: datetime | None = None) -> float | None:
        """Seconds from the execution's start to its end, or to now; None without an execution."""
        return self.execution.duration(now) if self.execution else None

    def tag_id_of(self, execution_id: str) -> str:
        """The `execution_id` in the metadata of an execution's messages; see `ExecutionState.tags`."""
        execution = self.execution
        return execution.tag_id if execution is not None and execution.execution_id == execution_id else execution_id

    @property
    def _latest_step(self) -> AgentStep | None:
        return self.execution.current_step_or_last if self.execution else None

    def _show(self, step: AgentStep | None) -> AgentStep | None:
        return None if step is None else step.shown_by(cast("AgentState", self))

    def debug(self) -> dict[str, Any]:
        """The state in a few lines, as JSON values, for logs and assertions."""
        reason = self.last_stop_reason
        return {
            "agent_id": str(self.agent_id),
            "status": self.status.value if self.status else None,
            "stop_reason": reason.value if reason else None,
            "execution_count": self.execution_count,
            "has_execution": self.execution is not None,
            "execution_id": str(self.execution.execution_id) if self.execution else None,
            "steps": self.step_count,
            "continuation": self.execution.continuation.explain() if self.execution else "No Execution",
            "has_errors": self.has_errors(),
            "errors": [error.to_dict() for error in self.errors],
            "usage": self.usage.to_dict(),
            "cost": self.cost,
        }

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
