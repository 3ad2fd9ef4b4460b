"""`Reasoning`: records of each iteration what was thought, called, found and made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..capability import Capability
from ..hooks import Hook, HookContext, HookPoint
from ..run_state.parts import Confidence, ReasoningStep, ReasoningSteps, ToolResult
from ..state.agent_state import AgentState
from ..state.execution.steps import AgentStep
from ..state.execution.tool_calls import ToolExecution, ToolOutcome
from .numbers import check_whole

_LAST: Final = -100  # after the hooks that reflect about the same step


@dataclass(frozen=True)
class Reasoning(Capability):
    """Records a `ReasoningStep` for each iteration; `state.run.reasoning_steps` reads them.

    Attributes:
        max_result_chars: So many characters of each tool's result are kept, from 0; the step itself has the whole.
    """

    max_result_chars: int = 500

    def __post_init__(self) -> None:
        check_whole("Reasoning(max_result_chars)", self.max_result_chars)

    def parts(self) -> Sequence[Any]:
        """The steps."""
        return (ReasoningSteps,)

    def hooks(self) -> Sequence[Hook]:
        """Records a step when it is done."""
        return (Hook(HookPoint.AFTER_STEP, self._record, priority=_LAST, name="Reasoning"),)

    def _record(self, context: HookContext) -> HookContext | None:
        step = context.state.current_step
        if step is None:
            return None
        record = self._read(context.state, step)
        return context.changed(state=context.state.run.with_reasoning_step(record, now=context.state.updated_at))

    def _read(self, state: AgentState, step: AgentStep) -> ReasoningStep:
        response, confidence = step.inference_response, state.part(Confidence)
        is_reflected = confidence.step == step.number and confidence.assessment is not None
        reflection = f"{confidence.assessment}: {confidence.findings}".rstrip(" :") if is_reflected else None
        return ReasoningStep(
            iteration=state.run.iteration,
            thought=response.thinking or response.content or None,
            tool_calls=response.tool_calls,
            tool_results=tuple(map(self._result, step.tool_executions)),
            reflection=reflection,
            confidence_delta=confidence.delta if is_reflected else 0.0,
            timestamp=state.updated_at,
        )

    def _result(self, execution: ToolExecution) -> ToolResult:
        return ToolResult(
            tool_call_id=execution.tool_call.id,
            name=execution.tool_call.name,
            success=execution.outcome is ToolOutcome.OK,
            text=execution.as_message()[: self.max_result_chars],
        )
