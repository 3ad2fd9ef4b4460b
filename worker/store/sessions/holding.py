"""Holding a session: nothing of it begins until somebody resumes it, and the running step is committed before."""

from __future__ import annotations

from typing import Final

from ...errors import ActionRefused, InvalidInput
from ...state.codec.join import read_head
from ...state.execution.execution import ExecutionState
from .. import fields
from ..context import SessionScope, StorePart
from ..control import HOLD_FIELDS, LONGEST_WAIT_MS, ControlFields, hold_commands
from ..database import Command
from ..event_records import EventType
from ..events import tell
from ..records import ActionResult, Hold
from ..transaction_retries import LOST_REPLIES
from ..waking import resumed_event, wake
from .loading import require_head
from .saving import milliseconds
from .watched_sessions import WatchedSession
from .whole_sessions import SESSION_STATUS

_LONGEST_TEXT: Final = 1000


class HoldVerbs(StorePart):
    """Holding a session, and ending the hold."""

    def suspend(self, session_id: str, *, reason: str, by: str = "", until_ms: int | None = None) -> ActionResult:
        """Hold a session: its running step is committed, and nothing begins after it until somebody resumes it.

        Answers to its requests are recorded and do not wake it. A stop ends it all the same.

        Args:
            until_ms: Redis time at which the hold ends by itself, and the execution with it. None: in 30 days. Never
                later than the deadline of the execution.
        Returns:
            "changed", or "again" when it is held already; then the first hold stays.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            ActionRefused: No execution of it runs or waits, it is parked, or it is being stopped.
            InvalidInput: `reason` or `by` is no text of at most 1000 characters.
        """
        _check_text("reason", reason)
        _check_text("by", by)
        scope = self._context.session(session_id)
        return scope.retry(
            lambda: _suspend(scope, reason, by, until_ms), purpose="be suspended", lost_replies=LOST_REPLIES
        )

    def resume(self, session_id: str, *, by: str = "") -> ActionResult:
        """End the hold of a session, and wake it; a session that waits for requests looks at them again.

        Returns:
            "changed", or "again" when it was not held.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
        """
        _check_text("by", by)
        scope = self._context.session(session_id)
        return scope.retry(lambda: _resume(scope, by), purpose="be resumed", lost_replies=LOST_REPLIES)


def _suspend(scope: SessionScope, reason: str, by: str, wanted_ms: int | None) -> ActionResult:
    keys = scope.keys
    # Its head tells the deadline; its conversation is not read.
    reads: list[Command] = [*WatchedSession.reads(scope), ("HGET", keys.session, "head")]
    with scope.database.watch("suspend.read", (keys.session, keys.ctl), reads) as watched:
        *session, head = watched.replies
        found = WatchedSession.parse(scope, session)
        control, now_ms = found.control, found.now_ms
        if control.hold is not None:
            return ActionResult("again", control.execution, found.version)
        _refuse_unless_active(scope.session_id, control)
        execution = found.check_execution(read_head(require_head(head)).state)
        until_ms = _until_ms(execution, wanted_ms, now_ms)
        commands: list[Command] = [
            *hold_commands(keys, Hold(until_ms=until_ms, by=by, reason=reason, since_ms=now_ms)),
            *tell(scope, found.step, EventType.EXECUTION_SUSPENDED, {"reason": reason, "by": by, "until_ms": until_ms}),
        ]
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


def _until_ms(execution: ExecutionState | None, wanted_ms: int | None, now_ms: int) -> int:
    """When the hold ends by itself: as asked, in 30 days at the latest, and at the execution's deadline."""
    times = [now_ms + LONGEST_WAIT_MS]
    if wanted_ms is not None:
        times.append(wanted_ms)
    if execution is not None and execution.budget.deadline is not None:
        times.append(milliseconds(execution.budget.deadline))
    return max(1, min(times))


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
