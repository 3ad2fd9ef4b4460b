"""`Trace`: an execution as sinks get it, made of what is stored and of nothing else. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Self

from ...known_secrets import redact_known_json
from ...spans import derive_root_span_id, derive_trace_id
from ...state.agent_state import AgentState
from ...state.execution.children import ParentLink
from ...state.execution.execution import ExecutionState
from ...state.execution.status import ExecutionStatus
from ...state.execution.steps import StepExecution
from ...state.execution.tool_calls import ToolExecution
from ...state.values.field_types import Amount, Count, Text, UtcDatetime
from ...state.values.frozen import FrozenDict
from ...state.values.value import Value

MODEL_CALL = "model_call"
TOOL_CALL = "tool_call"


class TraceStatus(StrEnum):
    """How far a trace is.

    Attributes:
        IN_PROGRESS: The execution goes on.
        SUCCESS: It was completed, or stopped by a limit, a condition or a person; `stop_reason` says which.
        ERROR: It failed, whatever became of the sinks.
        PARTIAL: It has not failed, and a sink did not get everything.
    """

    IN_PROGRESS = "in_progress"
    SUCCESS = "success"
    ERROR = "error"
    PARTIAL = "partial"


class TraceEvent(Value):
    """Something that an execution has done: a call of the model, or of a tool.

    Attributes:
        id: The same whenever it is sent again, so that receivers can tell.
        type: `model_call` or `tool_call`.
        name: Of the model or the tool.
        status: `ok`, or for a model call `error`, for a tool call its outcome.
        started_at: UTC; of a model call the beginning of its step.
        attributes: Tokens, price, finish reason, ids, and the kind of an error.
        payload: What was said, given and returned; None where payloads are not logged.
    """

    id: Text
    type: Text
    step: Count
    name: Text = ""
    status: Text = "ok"
    started_at: UtcDatetime
    ended_at: UtcDatetime
    attributes: FrozenDict = FrozenDict()
    payload: FrozenDict | None = None


class Trace(Value):
    """An execution as sinks get it.

    Attributes:
        trace_id: 32 hexadecimal digits; that of a child's trace is its root's, as in OpenTelemetry.
        thread_id: Yours, or the session's id.
        parent_execution_id: Of the execution that has started this one; "" for a root.
        parent_span_id: Of the span of that execution, 16 hexadecimal digits; "" for a root.
        ended_at: None while it goes on.
        usage: Tokens by kind.
        cost: US dollars; None when the price is not known.
        error: The kind of the error that ended it; "" for none.
        failed_sinks: Why sinks did not get everything, by their names.
        payload: The message and the final answer; None where payloads are not logged.
        events: In order; none in a trace that goes along with further events.
    """

    trace_id: Text
    thread_id: Text
    session_id: Text
    execution_id: Text
    parent_execution_id: Text = ""
    parent_span_id: Text = ""
    agent: Text
    status: TraceStatus
    started_at: UtcDatetime
    ended_at: UtcDatetime | None = None
    steps: Count = 0
    retries: Count = 0
    usage: FrozenDict = FrozenDict()
    cost: Amount | None = None
    stop_reason: Text = ""
    error: Text = ""
    failed_sinks: FrozenDict = FrozenDict()
    payload: FrozenDict | None = None
    events: tuple[TraceEvent, ...] = ()

    def redacted(self) -> Self:
        """The same without the secrets that this process knows."""
        written = json.dumps(self.to_dict(), ensure_ascii=False)
        found = redact_known_json(written)
        return self if found == written else type(self).from_dict(json.loads(found))

    def with_failures(self, failed: Mapping[str, str]) -> Self:
        """The same, after these sinks have failed too; a success becomes partial."""
        if not failed:
            return self
        status = TraceStatus.PARTIAL if self.status is TraceStatus.SUCCESS else self.status
        return self._with(failed_sinks=FrozenDict({**self.failed_sinks, **failed}), status=status)

    def in_thread(self, thread_id: str | None) -> Self:
        """The same under a caller's name for its thread; None: under the session's id."""
        return self if thread_id is None else self._with(thread_id=thread_id)

    def without_events(self) -> Self:
        """The facts of the execution alone, for a sink that gets the events on their own."""
        return self._with(events=())


def make_trace(
    state: AgentState,
    session_id: str,
    agent: str,
    *,
    parent: ParentLink | None = None,
    log_data: bool = True,
    first_step: int = 1,
) -> Trace:
    """Make the trace of the session's latest execution.

    Args:
        parent: The place of the session in its tree; None for a root.
        log_data: With what was said, given and returned.
        first_step: Events of earlier steps are left out.
    Raises:
        ValueError: The session has had no execution.
    """
    execution = state.execution
    if execution is None:
        raise ValueError(f"session {session_id} has had no execution")
    has_ended = execution.status.is_terminal()
    reason = execution.final_reason() if has_ended else None
    return Trace(
        trace_id=f"{derive_trace_id(execution.execution_id if parent is None else parent.root_execution_id):032x}",
        thread_id=session_id,
        session_id=session_id,
        execution_id=execution.execution_id,
        parent_execution_id="" if parent is None else parent.execution_id,
        parent_span_id="" if parent is None else f"{derive_root_span_id(parent.execution_id, parent.retries):016x}",
        agent=agent,
        status=_status_of(execution),
        started_at=execution.started_at or execution.created_at,
        ended_at=execution.completed_at if has_ended else None,
        steps=len(execution.step_executions),
        retries=execution.retries,
        usage=FrozenDict(execution.usage.to_dict()),
        cost=execution.cost,
        stop_reason="" if reason is None else reason.value,
        error=_error_of(execution),
        payload=_texts_of(state) if log_data else None,
        events=tuple(
            event
            for each in execution.step_executions
            if each.step.number >= first_step
            for event in make_events(execution, each, log_data)
        ),
    )


def make_events(execution: ExecutionState, done: StepExecution, log_data: bool) -> Iterator[TraceEvent]:
    """The events of a step: its model call, then its tool calls in the order of the answer."""
    step, response = done.step, done.step.inference_response
    prefix = f"{execution.execution_id}:{step.number}"
    attributes: dict[str, Any] = {
        "usage": response.usage.to_dict(),
        "cost": response.cost,
        "finish_reason": response.finish_reason.value,
        "request_id": response.request_id,
        "errors": [error.kind for error in step.errors],
    }
    calls = [each.to_dict() for each in response.tool_calls]
    first_tool = min((each.started_at for each in step.tool_executions), default=done.completed_at)
    yield TraceEvent(
        id=f"{prefix}:m",
        type=MODEL_CALL,
        step=step.number,
        name=response.model or "",
        status="error" if step.errors else "ok",
        started_at=done.started_at,
        ended_at=max(done.started_at, min(first_tool, done.completed_at)),
        attributes=FrozenDict({name: value for name, value in attributes.items() if value not in (None, "", [])}),
        payload=FrozenDict({"text": response.content, "tool_calls": calls}) if log_data else None,
    )
    for each in step.tool_executions:
        yield _tool_event(f"{prefix}:t{each.index}", step.number, each, log_data)


def _tool_event(event_id: str, step: int, call: ToolExecution, log_data: bool) -> TraceEvent:
    attributes: dict[str, Any] = {"call_id": call.tool_call.id, "cached": call.idempotent_cache_hit or None}
    payload: dict[str, Any] = {"args": call.tool_call.args, "value": call.value}
    if call.error is not None:
        attributes["error"] = call.error.kind
        payload["error"] = call.error.message
    return TraceEvent(
        id=event_id,
        type=TOOL_CALL,
        step=step,
        name=call.tool_call.name,
        status=call.outcome.value,
        started_at=call.started_at,
        ended_at=call.completed_at,
        attributes=FrozenDict({name: value for name, value in attributes.items() if value is not None}),
        payload=FrozenDict(payload) if log_data else None,
    )


def _status_of(execution: ExecutionState) -> TraceStatus:
    if not execution.status.is_terminal():
        return TraceStatus.IN_PROGRESS
    return TraceStatus.ERROR if execution.status is ExecutionStatus.FAILED else TraceStatus.SUCCESS


def _error_of(execution: ExecutionState) -> str:
    if execution.status is not ExecutionStatus.FAILED:
        return ""
    errors = execution.all_errors()
    return errors[-1].kind if errors else "unknown"


def _texts_of(state: AgentState) -> FrozenDict:
    """The last message of the user that the execution has seen, and its answer so far."""
    said = [each.content for each in state.store.section().messages if each.role.value == "user"]
    return FrozenDict({"input": said[-1] if said else "", "output": state.final_response})
