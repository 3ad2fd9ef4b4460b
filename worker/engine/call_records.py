"""Records of tool calls: what is journaled, committed and shown to the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..hooks import HookContext, HookPoint
from ..state import ErrorInfo, ToolCall, ToolExecution, ToolExecutionId, ToolOutcome
from ..store import BeginRecord
from ..tools import Effect, Tool
from .run import CallRecord, Run, moment


@dataclass(frozen=True)
class PlannedCall:
    """A call that may be made: bound to its tool, its arguments valid.

    Attributes:
        key: Its idempotency key.
        timeout: Seconds it may take.
    """

    index: int
    call: ToolCall
    tool: Tool
    bound: Mapping[str, Any]
    key: str
    timeout: float

    @property
    def is_pure(self) -> bool:
        """Whether running it again is free."""
        return self.tool.effect is Effect.PURE


def record(
    run: Run,
    now_ms: int,
    index: int,
    call: ToolCall,
    outcome: ToolOutcome,
    value: Any = None,
    *,
    error: ErrorInfo | None = None,
    started_ms: int | None = None,
) -> CallRecord:
    """What came of a call, at Redis's time `now_ms`."""
    execution = ToolExecution(
        id=ToolExecutionId.following(run.ref.execution_id, run.ref.step, index),
        tool_call=call,
        outcome=outcome,
        value=value,
        error=error,
        started_at=moment(now_ms if started_ms is None else started_ms),
        completed_at=moment(now_ms),
        index=index,
    )
    return CallRecord(execution=execution)


def refused(run: Run, now_ms: int, index: int, call: ToolCall, kind: str, message: str) -> CallRecord:
    """A call that cannot be made; the message is for the model."""
    return record(run, now_ms, index, call, ToolOutcome.ERROR, error=ErrorInfo(kind=kind, message=message))


def not_run(run: Run, now_ms: int, each: PlannedCall) -> CallRecord:
    """A call whose turn did not come."""
    return record(run, now_ms, each.index, each.call, ToolOutcome.NOT_RUN)


def interrupted_call(run: Run, now_ms: int, index: int, call: ToolCall, begun: BeginRecord | None) -> CallRecord:
    """A call of an execution that is being ended: not run, or of unknown outcome where an effect may have begun."""
    if begun is None:
        return record(run, now_ms, index, call, ToolOutcome.NOT_RUN)
    error = ErrorInfo(kind="unknown", message="the execution was ended during the call")
    return record(run, now_ms, index, call, ToolOutcome.UNKNOWN, error=error)


def unknown(run: Run, now_ms: int, each: PlannedCall, why: str, started_ms: int | None = None) -> CallRecord:
    """A call of which nobody can tell whether it happened."""
    error = ErrorInfo(kind="unknown", message=why)
    return record(run, now_ms, each.index, each.call, ToolOutcome.UNKNOWN, error=error, started_ms=started_ms)


def with_record(run: Run, index: int, made: CallRecord) -> Run:
    """The run with a call's record, and with the stop that the tool asked for."""
    signals = (made.signal,) if made.signal is not None else ()
    return run.changed(records={**run.records, index: made}, signals=(*run.signals, *signals))


def hook_context(run: Run, point: HookPoint, call: ToolCall) -> HookContext:
    """What a hook around a call sees."""
    ref = run.ref
    return HookContext(point, ref.session_id, ref.execution_id, ref.step, run.state, tool_call=call, ask=run.ask_model)
