"""The parts behind `state.run`. Each belongs to the execution, so that the next message begins with none of them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from ..state.execution.tool_calls import ToolCall, ToolExecution
from ..state.parts.list_part import ListPart
from ..state.parts.state_part import PartItem, PartValue, StatePart
from ..state.values.field_types import Count, Flag, Text, UtcDatetime

DEFAULT_CONFIDENCE_THRESHOLD: Final = 0.85
DEFAULT_LOOP_THRESHOLD: Final = 3

Share = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
"""A field from 0 to 1, both included."""

Change = Annotated[float, Field(strict=True, ge=-1, le=1, allow_inf_nan=False)]
"""A field from -1 to 1, both included."""


class ToolResult(PartValue):
    """The result of one call as a reasoning step keeps it.

    Attributes:
        tool_call_id: The model's id of the call.
        text: What the model reads, cut to the length that `Reasoning` allows.
    """

    tool_call_id: Text
    name: Text
    success: Flag = True
    text: Text = ""


class ReasoningStep(PartItem):
    """One iteration: what the model thought, what it called, what came back, and what was made of it.

    Attributes:
        iteration: Number of the iteration, from 1.
        thought: What the model let us see of its reasoning, or else what it said; None where it was silent.
        reflection: The verdict of `Reflexion` about the iteration; None without one.
        confidence_delta: The change of the confidence in this iteration; 0 without `Reflexion`.
        timestamp: The end of the iteration.
    """

    iteration: Count
    thought: Text | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_results: tuple[ToolResult, ...] = ()
    reflection: Text | None = None
    confidence_delta: Change = 0.0
    timestamp: UtcDatetime


class ReasoningSteps(ListPart[ReasoningStep]):
    """The reasoning steps of the execution, in order."""

    part_name = "run_reasoning"


class Assessment(StrEnum):
    """The verdict of a reflection about an iteration. If several hold, the first in this order counts."""

    LOOP_DETECTED = "loop_detected"
    STUCK = "stuck"
    NEW_FINDINGS = "new_findings"
    ON_TRACK = "on_track"


class Confidence(StatePart):
    """The confidence of the execution, and the last reflection.

    Attributes:
        value: From 0 to 1.
        threshold: The confidence that is enough.
        step: Number of the last step that was reflected about; 0 before the first.
        delta: The change that this reflection made.
        assessment: Its verdict; None before the first.
        findings: The beginning of what the tools returned in that step.
        recent: Digests of the last sets of calls, the newest last.
        seen: Number of the step whose calls stand last in `recent`.
    """

    part_name = "run_confidence"
    value: Share = 0.0
    threshold: Share = DEFAULT_CONFIDENCE_THRESHOLD
    step: Count = 0
    delta: Change = 0.0
    assessment: Assessment | None = None
    findings: Text = ""
    recent: tuple[Text, ...] = ()
    seen: Count = 0


class ConfidenceValue(PartItem):
    """One confidence of the history."""

    value: Share


class ConfidenceHistory(ListPart[ConfidenceValue]):
    """Every confidence of the execution, in order."""

    part_name = "run_confidence_history"


class RepeatedCalls(StatePart):
    """How often the same set of calls came one step after another.

    Attributes:
        threshold: Number of equal steps that make a loop.
        digest: The digest of the last step's calls; empty where it called nothing.
        streak: Steps with these calls, up to the last one.
        step: Number of the last step that was counted.
    """

    part_name = "run_repeated_calls"
    threshold: Count = DEFAULT_LOOP_THRESHOLD
    digest: Text = ""
    streak: Count = 0
    step: Count = 0


class TerminalToolNames(StatePart):
    """The tools that end the execution."""

    part_name = "run_terminal_tools"
    names: tuple[Text, ...] = ()


class IterationShift(StatePart):
    """The number that `with_iteration` adds to the number of steps."""

    part_name = "run_iteration"
    shift: Annotated[int, Field(strict=True)] = 0


class RecordedExecution(PartItem):
    """A tool's execution that no step of this execution made, such as one of an earlier transcript.

    Attributes:
        step: The number of steps when it was recorded.
    """

    step: Count
    execution: ToolExecution


class RecordedExecutions(ListPart[RecordedExecution]):
    """Executions that `with_tool_execution` has recorded, in order."""

    part_name = "run_tool_executions"


class RecordedError(PartItem):
    """An error that no step of this execution has.

    Attributes:
        step: The number of steps when it was recorded.
    """

    step: Count
    message: Text


class RecordedErrors(ListPart[RecordedError]):
    """Errors that `with_error` has recorded, in order."""

    part_name = "run_errors"
