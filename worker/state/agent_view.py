"""The accessors of an agent's state."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from .agent_fields import AgentFields
from .conversation.messages import MessageStore
from .execution.budget import UNLIMITED, ExecutionBudget
from .execution.execution import ExecutionStatus
from .execution.signals import StopReason, StopSignal
from .execution.steps import AgentStep, AgentStepType
from .execution.usage import NO_USAGE, InferenceUsage
from .values.error_info import ErrorInfo
from .values.frozen import FrozenDict, Json

if TYPE_CHECKING:
    from .agent_state import AgentState


class AgentView(AgentFields):
    """The accessors of `AgentState`. Without an execution there are no steps, no usage, no errors and no answer."""

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
