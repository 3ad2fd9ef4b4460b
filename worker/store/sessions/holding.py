"""Holding a session: nothing of it begins until somebody resumes it, and the running step is committed before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...errors import ActionRefused, InvalidInput
from ...state import AgentState
from .. import fields
from ..context import SessionScope, StoreContext
from ..control import HELD_MARK, HOLD_FIELDS, LONGEST_WAIT_MS, ControlFields
from ..database import Command
from ..event_records import EventType, NewEvent
from ..events import event_commands
from ..records import ActionResult
from ..transaction_retries import LOST_REPLIES
from ..waking import resumed_event, wake
from .saving import milliseconds
from .watched_sessions import WatchedSession
from .whole_sessions import SESSION_STATUS

_LONGEST_TEXT: Final = 1000


@dataclass(frozen=True, slots=True)
class HoldRequest:
    """A wish to hold a session.

    Attributes:
        until_ms: Redis time at which the hold ends by itself; None: in 30 days.
    """

    reason: str
    by: str
    until_ms: int | None


def suspend(context: StoreContext, session_id: str, request: HoldRequest) -> ActionResult:
    """Hold a session. See `SessionActions.suspend`."""
    _check_text("reason", request.reason)
    _check_text("by", request.by)
    scope = context.session(session_id)
    return scope.retry(lambda: _suspend(scope, request), purpose="be suspended", lost_replies=LOST_REPLIES)


def _suspend(scope: SessionScope, request: HoldRequest) -> ActionResult:
    keys, reads = scope.keys, WatchedSession.reads(scope)
    with scope.database.watch("suspend.read", (keys.session, keys.ctl), reads) as watched:
        found = WatchedSession.parse(scope, watched.replies)
        control, now_ms = found.control, found.now_ms
        if control.hold is not None:
            return ActionResult("again", control.execution, found.version)
        _refuse_unless_active(scope.session_id, control)
        until_ms = _until_ms(found.load_state(watched), request, now_ms)
        data = {"reason": request.reason, "by": request.by, "until_ms": until_ms}
        event = NewEvent(
            type=EventType.EXECUTION_SUSPENDED, execution_id=control.execution, step=control.step, data=data
        )
        values = (until_ms, request.by, request.reason, now_ms)
        words = [word for pair in zip(HOLD_FIELDS, values, strict=True) for word in pair]
        commands: list[Command] = [("HSET", keys.ctl, *words, "cancel", HELD_MARK), *event_commands(scope, [event])]
        if not control.claim:  # else its commit, or the sweep when its lease has ended, puts it there
            commands.append(("ZADD", keys.shard.due, until_ms, scope.session_id))
        watched.commit("suspend.exec", commands)
        return ActionResult("changed", control.execution, found.version)


def _check_text(field: str, value: object) -> None:
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT or not fields.is_text(value):
        raise InvalidInput(field, value, f"give a text of at most {_LONGEST_TEXT} characters.")


def _refuse_unless_active(session_id: str, control: ControlFields) -> None:
    if control.phase == "parked":
        raise ActionRefused(f"session {session_id} is parked, so nothing of it runs; retry it first, then suspend it")
    if control.phase == "end":
        raise ActionRefused(f"session {session_id} has no execution that runs or waits; there is nothing to suspend")
    if control.requested_stop is not None:
        raise ActionRefused(f"session {session_id} is being stopped; it will end and cannot be suspended")


def _until_ms(state: AgentState, request: HoldRequest, now_ms: int) -> int:
    """When the hold ends by itself: as asked, in 30 days at the latest, and at the execution's deadline."""
    times = [now_ms + LONGEST_WAIT_MS]
    if request.until_ms is not None:
        times.append(request.until_ms)
    if state.execution is not None and state.execution.budget.deadline is not None:
        times.append(milliseconds(state.execution.budget.deadline))
    return max(1, min(times))


def resume(context: StoreContext, session_id: str, by: str) -> ActionResult:
    """End the hold of a session. See `SessionActions.resume`."""
    _check_text("by", by)
    scope = context.session(session_id)
    return scope.retry(lambda: _resume(scope, by), purpose="be resumed", lost_replies=LOST_REPLIES)


def _resume(scope: SessionScope, by: str) -> ActionResult:
    keys, reads = scope.keys, WatchedSession.reads(scope)
    with scope.database.watch("resume.read", (keys.session, keys.ctl), reads) as watched:
        found = WatchedSession.parse(scope, watched.replies)
        control, now_ms = found.control, found.now_ms
        if control.hold is None:
            return ActionResult("again", control.execution, found.version)
        commands: list[Command] = [("HDEL", keys.ctl, *HOLD_FIELDS), ("HDEL", keys.session, SESSION_STATUS)]
        publish, data = None, {"cause": "resume", "by": by}
        if control.requested_stop is None:
            commands.append(("HSET", keys.ctl, "cancel", ""))
        if control.claim:  # whoever has it goes on; if that worker has died, the sweep finds the step
            commands.append(("ZADD", keys.shard.due, now_ms + scope.context.due_ms, scope.session_id))
        elif control.phase in ("run", "wait"):
            if control.phase == "run" and control.not_before_ms > now_ms:  # a later start or a delay still counts
                commands.append(("ZADD", keys.shard.due, control.not_before_ms, scope.session_id))
            else:
                woken = wake(scope, control, now_ms, data)
                commands, publish = [*commands, *woken.commands], woken.publish
        if control.phase != "wait":  # waking tells of the others
            commands += resumed_event(scope, control, data)
        watched.commit("resume.exec", commands)
        return ActionResult("changed", control.execution, found.version, publish=publish)
