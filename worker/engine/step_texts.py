"""Texts about steps and ended executions for watchers and people: events, an error text, a summary line."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..concurrency.fibers import bounded
from ..known_secrets import redact_known
from ..redaction import describe_exception
from ..state.agent_state import AgentState
from ..state.execution.execution import ExecutionState
from ..state.execution.inference import InferenceResponse
from ..state.execution.requests import Request
from ..state.execution.status import ExecutionStatus
from ..state.values.error_info import ErrorInfo
from ..store.event_records import EventType, NewEvent
from ..store.events import attempt_of
from ..tools.results import to_json_value
from .run import Run

log = logging.getLogger(__name__)

_SHOWN_CHARS: Final = 300
# An event is kept as long as its session, and the record of the step has the whole text.
_EXCERPT_CHARS: Final = 160
_SHOWN_TOOLS: Final = 100
_SHOWN_NAME_CHARS: Final = 64


def step_event(run: Run, response: InferenceResponse) -> NewEvent:
    """The event of a committed step."""
    data: dict[str, Any] = {
        "tools": [
            {"name": record.execution.tool_call.name[:_SHOWN_NAME_CHARS], "outcome": record.execution.outcome.value}
            for _, record in sorted(run.obtained.records.items())[:_SHOWN_TOOLS]
        ],
        "tokens": response.usage.total,
        "finish_reason": response.finish_reason.value,
        "model": response.model,
        "text": redact_known(response.content[: 2 * _SHOWN_CHARS])[:_EXCERPT_CHARS],
        "worker": run.claim.worker,
        "attempt": run.claim.attempt,
    }
    if len(run.obtained.records) > _SHOWN_TOOLS:
        data["more_tools"] = len(run.obtained.records) - _SHOWN_TOOLS
    return NewEvent(type=EventType.STEP_COMMITTED, execution_id=run.ref.execution_id, step=run.ref.step, data=data)


def capability_events(run: Run, state: AgentState) -> list[NewEvent]:
    """The events that capabilities report of a step; one that raises is logged, and the step is saved."""
    events: list[NewEvent] = []
    for capability in run.agent.event_sources:
        try:
            found = bounded(capability.events, run.loaded.state, state)
            reported = [to_json_value(dict(each), limit_chars=None) for each in found]
        except Exception as error:  # noqa: BLE001 - a capability of the user's
            described = describe_exception(error).message
            log.warning(
                "capability %s: its events of step %s are dropped: %s", capability.name, run.ref.step, described
            )
            continue
        events += [
            NewEvent(type=EventType.CAPABILITY, execution_id=run.ref.execution_id, step=run.ref.step, data=data)
            for data in reported
        ]
    return events


def failed_call_event(run: Run, error: ErrorInfo, facts: Mapping[str, Any], next_try_ms: int) -> NewEvent:
    """The event of a model call that gave no usable answer and is made again within the step."""
    data = {**facts, "message": error.message[:_SHOWN_CHARS], "next_try_ms": next_try_ms}
    return NewEvent(type=EventType.MODEL_CALL_FAILED, execution_id=run.ref.execution_id, step=run.ref.step, data=data)


def end_event(run: Run, failure: ErrorInfo | None, state: AgentState) -> NewEvent:
    """The event of an execution that this run has ended."""
    execution = state.execution
    assert execution is not None
    data = end_facts(execution, failure)
    if run.obtained.response is None:  # else the event of its commit tells the attempt
        data |= {"in_step": run.ref.step, **attempt_of(run.claim), "asked": run.memory.has_asked}
    return execution_event(EventType(f"execution_{execution.status.value}"), execution, data)


def end_facts(execution: ExecutionState, failure: ErrorInfo | None = None) -> dict[str, Any]:
    """The data of the event of an execution's end, whoever has ended it."""
    reason = execution.final_reason()
    data: dict[str, Any] = {
        "status": execution.status.value,
        "reason": reason.value if reason else None,
        "steps": execution.step_count,
        "tokens": execution.usage.total,
        "cost": execution.cost,
        "error": failure_text(failure, execution),
    }
    last = execution.last_step
    if last is not None and last.inference_response.finish_reason.is_cut_short():
        data["finish_reason"] = last.inference_response.finish_reason.value
    return data


def execution_event(kind: EventType, execution: ExecutionState, data: Mapping[str, Any]) -> NewEvent:
    """An event of an execution, after as many steps as it has."""
    return NewEvent(type=kind, execution_id=execution.execution_id, step=execution.step_count, data=data)


def failure_text(failure: ErrorInfo | None, execution: ExecutionState) -> str:
    """Why an execution failed; "" when it has not."""
    if failure is not None:
        return redact_known(failure.message)
    if execution.status is not ExecutionStatus.FAILED:
        return ""
    last = execution.last_step
    errors = (*(last.all_errors if last is not None else ()), *execution.errors)
    return redact_known(errors[-1].message) if errors else ""


def summarize_step(run: Run, state: AgentState | None, next_step: int | None) -> str:
    """A step in a line: "3 tool calls · search_docs ×2, read_file · 412 tokens · next step 4"."""
    parts: list[str] = []
    names = [record.execution.tool_call.name[:_SHOWN_NAME_CHARS] for _, record in sorted(run.obtained.records.items())]
    if names:
        parts.append(f"{len(names)} tool call{'s' if len(names) != 1 else ''}")
        parts.append(", ".join(_count_names(names[:_SHOWN_TOOLS])))
    if run.obtained.response is not None and run.obtained.response.usage.total:
        parts.append(f"{run.obtained.response.usage.total} tokens")
    if next_step is not None:
        parts.append(f"next step {next_step}")
    elif state is not None and state.execution is not None:
        parts.append(state.execution.status.value)
    return " · ".join(parts)


def summarize_wait(requests: Sequence[Request]) -> str:
    """A wait in a line: "waits for 2 approvals and 1 question · refund ×2, ask_user_question"."""
    kinds = [request.kind.value for request in requests]
    plurals = {kind: "children" if kind == "child" else f"{kind}s" for kind in kinds}
    counts = [f"{(n := kinds.count(kind))} {kind if n == 1 else plurals[kind]}" for kind in plurals]
    return f"waits for {' and '.join(counts)} · {', '.join(_count_names([each.tool for each in requests]))}"


def _count_names(names: Sequence[str]) -> list[str]:
    return [f"{name} ×{names.count(name)}" if names.count(name) > 1 else name for name in dict.fromkeys(names)]
