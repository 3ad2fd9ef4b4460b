"""Sessions as rows, lines and JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from ...worker.state import AgentState, ExecutionState, Message, Role, StepExecution
from .event_lines import describe_tools
from .views import age, clean, one_line, plural, seconds

if TYPE_CHECKING:
    from ...worker.store import Header

HEAD: Final = ("SESSION", "AGENT", "STATUS", "STEP", "CHANGED")
_MAX_CHARACTERS: Final = 2_000


def row(header: Header) -> tuple[str, ...]:
    """A session as a line of a listing."""
    status = f"{header.status} ({header.problem})" if header.problem else header.status
    return (header.session_id, header.agent, status, str(header.step), f"{age(_moment(header.updated_ms))} ago")


def header_value(header: Header) -> dict[str, Any]:
    """A session without its content, as JSON."""
    return {
        "session_id": header.session_id,
        "agent": header.agent,
        "status": header.status,
        "execution_id": header.execution_id,
        "step": header.step,
        "version": header.version,
        "created_at": _moment(header.created_ms),
        "updated_at": _moment(header.updated_ms),
        "problem": header.problem,
    }


def session_value(header: Header, state: AgentState) -> dict[str, Any]:
    """A session with its whole state, as JSON."""
    return {**header_value(header), "state": json.loads(state.to_json())}


def session_lines(header: Header, state: AgentState) -> list[str]:
    """A session for people."""
    created, changed = age(_moment(header.created_ms)), age(_moment(header.updated_ms))
    lines = [
        f"session {header.session_id}  agent {header.agent}  version {header.version}",
        f"created {created} ago, changed {changed} ago, {plural(state.execution_count, 'execution')}",
    ]
    if state.execution is not None:
        lines += ["", *_execution_lines(header, state.execution)]
    return [*lines, "", *_conversation_lines(state)]


def _execution_lines(header: Header, execution: ExecutionState) -> Iterator[str]:
    numbers = [plural(execution.step_count, "step"), seconds(execution.duration())]
    numbers += [plural(execution.usage.total, "token")] if execution.usage.total else []
    numbers += [f"${execution.cost:.4f}"] if execution.cost else []
    reason = execution.final_reason()
    why = f" ({reason.value})" if reason is not None and reason.value != "completed" else ""
    yield f"execution {execution.execution_id}  {header.status}{why}: {', '.join(numbers)}"
    for done in execution.step_executions:
        yield f"  {_step_line(done)}"
    for error in execution.all_errors():
        yield f"  error: {one_line(f'{error.kind}: {error.message}')}"


def _step_line(done: StepExecution) -> str:
    executions = done.step.tool_executions
    tools = describe_tools({"name": each.tool_call.name, "outcome": each.outcome.value} for each in executions)
    return f"step {done.step.number}: {tools or 'answer'}  {seconds(done.duration)}"


def _conversation_lines(state: AgentState) -> Iterator[str]:
    """The messages of the user and of the agent, without the results of tools."""
    for message in state.store.section().messages:
        if message.role in (Role.USER, Role.ASSISTANT) and message.content.strip():
            yield f"{message.role.value}: {_shorten(message)}"


def _shorten(message: Message) -> str:
    text = clean(message.content).strip()
    rest = len(text) - _MAX_CHARACTERS
    return text if rest <= 0 else f"{text[:_MAX_CHARACTERS]} … ({plural(rest, 'character')} more)"


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
