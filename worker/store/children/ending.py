"""The end of a child is the answer to its parent's request: both are written in one transaction.

    WATCH …, parent's ctl and journal → asks it still? → MULTI …, HSETNX t<i>:a<r>, wake · EXEC

A parent that has gone, or does not ask any more, is left alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from pydantic import ValidationError

from ...errors import StateUnreadable
from ...redaction import redact
from ...state.agent_state import AgentState
from ...state.execution.answers import AnswerRecord, AnswerVerb
from ...state.execution.children import MAX_TREE_SESSIONS, ChildEnd, ParentLink
from ...state.execution.requests import Request
from ...state.execution.signals import StopReason
from ...state.values.frozen import FrozenDict
from ...tools.results import to_json_value
from .. import fields
from ..context import SessionScope
from ..control import ControlFields, control_command
from ..database import Command, WatchedTransaction
from ..event_records import EventType, NewEvent
from ..events import event_commands
from ..records import NextState
from ..requests.index import closed_event
from ..waking import WakeUp, wake

_NOTHING: Final = WakeUp([])
_COUNT_DIGITS: Final = 3
_MESSAGE_CHARS: Final = 4_000


def ended_state(next_state: NextState) -> AgentState | None:
    """The state in which an execution ends with this save; None where none does."""
    for state in (next_state.ended, next_state.state):
        if state is not None and state.execution is not None and state.execution.status.is_terminal():
            return state
    return None


def answer_parent(
    scope: SessionScope, link: ParentLink, state: AgentState, now_ms: int, watched: WatchedTransaction
) -> WakeUp:
    """Make the commands that tell a parent how its child has ended, under the child's WATCH.

    Args:
        scope: Of the child.
        state: The child with its execution ended.
    """

    def complete(request: Request) -> tuple[AnswerRecord, list[NewEvent]]:
        end = describe_end(scope, link, state)
        return AnswerRecord(verb=AnswerVerb.COMPLETE, value=end.to_dict(), at_ms=now_ms), [_event(request, end)]

    return tell_parent(scope, link, complete, now_ms, watched)


def tell_parent(
    scope: SessionScope,
    link: ParentLink,
    make_answer: Callable[[Request], tuple[AnswerRecord, list[NewEvent]]],
    now_ms: int,
    watched: WatchedTransaction,
) -> WakeUp:
    """Make the commands that answer the request of a child's parent, where it is still open.

    Args:
        scope: Of the child.
        make_answer: Makes the answer to the request, and events for the watchers of the parent.
    """
    parent = scope.context.session(link.session_id)
    key = parent.keys.journal(link.execution_id, link.step)
    asked, answered = f"t{link.index}:q{link.round}", f"t{link.index}:a{link.round}"
    reads: list[Command] = [
        control_command(parent.keys),
        ("HMGET", key, asked, answered),
        ("HGET", parent.keys.ctl, "rest"),
    ]
    try:
        control_reply, (raw, record), rest = watched.pipeline("child.parent", reads, also=(parent.keys.ctl, key))
        control = ControlFields.read(control_reply)
        is_there = (control.execution, control.step) == (link.execution_id, link.step)
        if not is_there or control.phase == "end" or raw is None or record is not None:
            return _NOTHING
        request = Request.from_json(raw)
    except (StateUnreadable, ValidationError):  # the parent cannot continue; the child ends all the same
        return _NOTHING
    if request.id != link.request_id:
        return _NOTHING
    answer, events = make_answer(request)
    events = [closed_event(request, answer), *events]
    commands: list[Command] = [("HSETNX", key, answered, answer.to_json()), *event_commands(parent, events)]
    if control.phase != "wait" or control.is_held(now_ms):
        return WakeUp(commands)
    if _is_count(rest):  # it can do nothing before the last of its children has ended
        return WakeUp([*commands, ("HSET", parent.keys.ctl, "rest", int(rest) - 1)])
    woken = wake(parent, control, now_ms, {"cause": "child", "by": scope.session_id})
    return replace(woken, commands=[*commands, *woken.commands])


def _is_count(rest: bytes | None) -> bool:
    return rest is not None and rest.isdigit() and len(rest) <= _COUNT_DIGITS and 0 < int(rest) < MAX_TREE_SESSIONS


def describe_end(scope: SessionScope, link: ParentLink, state: AgentState) -> ChildEnd:
    """How a child has ended, as its parent needs it: of bounded size."""
    execution = state.execution
    assert execution is not None
    last, signal = execution.last_step, execution.stop_signal
    most = scope.settings.max_result_bytes
    output: Any = last.inference_response.output if last is not None else None
    response, left_out = _response(state), list[str]()
    if output is not None and len(fields.to_json(output)) > most:
        response, output, left_out = json.dumps(output, ensure_ascii=False), None, ["output"]
    metadata, parts = state.context.metadata, _parts(state, link.merge_parts)
    brought = {name: metadata[name] for name in link.merge if name in metadata}
    left_out += _limit([brought, parts], most)
    errors = execution.all_errors()
    message = errors[-1].message if execution.status.value == "failed" and errors else signal.message if signal else ""
    reason = execution.final_reason()
    return ChildEnd(
        session_id=scope.session_id,
        status=execution.status,
        response=to_json_value(response, None, limit_bytes=most),
        output=output,
        reason=None if reason is StopReason.COMPLETED else reason,
        message=redact(message)[:_MESSAGE_CHARS],
        steps=execution.steps_used,
        usage=execution.usage,
        cost=execution.cost,
        seconds=execution.elapsed_seconds(),
        metadata=FrozenDict.of(brought),
        parts=FrozenDict.of(parts),
        left_out=tuple(left_out),
    )


def _response(state: AgentState) -> str:
    """The final response, or what a stopped child said last."""
    if state.final_response:
        return state.final_response
    execution = state.execution
    steps = execution.step_executions if execution is not None else ()
    said = (each.step.inference_response.content for each in reversed(steps))
    return next((text for text in said if text.strip()), "")


def _parts(state: AgentState, names: tuple[str, ...]) -> dict[str, Any]:
    """The stored values of these state parts; parts that grow are not taken over."""
    found: dict[str, Any] = {}
    execution = state.execution
    for stored in (state.parts, execution.parts if execution is not None else None):
        if stored is not None:
            found |= {name: stored.values[name] for name in names if name in stored.values}
    return found


def _limit(groups: Sequence[dict[str, Any]], most_bytes: int) -> list[str]:
    """Remove the values that do not fit with those before them; give their names."""
    left, removed = most_bytes, list[str]()
    for group in groups:
        for name in list(group):
            size = len(fields.to_json(group[name]))
            if size > left:
                removed.append(name)
                del group[name]
            else:
                left -= size
    return removed


def _event(request: Request, end: ChildEnd) -> NewEvent:
    data: dict[str, Any] = {
        "session": end.session_id,
        "tool": request.tool,
        "status": end.status.value,
        "reason": end.reason.value if end.reason else None,
        "steps": end.steps,
        "tokens": end.usage.total,
        "cost": end.cost,
    }
    if end.left_out:
        data["left_out"] = list(end.left_out)
    return NewEvent(type=EventType.CHILD_ENDED, execution_id=request.execution_id, step=request.step, data=data)
