"""Applying an operation to a session, or leaving it for the running step."""

from __future__ import annotations

from typing import Literal

from ...errors import ActionRefused
from .. import fields
from ..context import SessionScope, StorePart
from ..control import LONGEST_WAIT_MS, hold_commands
from ..database import Command, WatchedTransaction
from ..event_records import EventType
from ..events import tell
from ..inbox import InboxIndex, encode_operation
from ..keys import fingerprint_field
from ..records import ActionResult, Hold, InboxKind, Operation, Snapshot, Transition
from ..transaction_retries import LOST_REPLIES
from .saving import is_active
from .watched_sessions import WatchedSession
from .whole_sessions import ACTIVE, SESSION_STATUS, SUSPENDED


class ActVerbs(StorePart):
    """Applying an operation to a session."""

    def act(self, session_id: str, operation: Operation, transition: Transition) -> ActionResult:
        """Apply an operation once: now, or by the commit of the step that is running.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
            ActionRefused: The running step has too many messages waiting.
        """
        scope = self._context.session(session_id)
        return scope.retry(
            lambda: _act(scope, operation, transition), purpose="take a message", lost_replies=LOST_REPLIES
        )


def _act(scope: SessionScope, operation: Operation, transition: Transition) -> ActionResult:
    keys = scope.keys
    reads: list[Command] = [
        *WatchedSession.reads(scope),
        ("HMGET", keys.session, SESSION_STATUS, fingerprint_field(operation.id)),
        *InboxIndex.reads(keys, operation.id),
    ]
    with scope.database.watch("act.read", (keys.session, keys.ctl, keys.inbox), reads) as watched:
        *session, (status, fingerprint), own, length = watched.replies
        found, inbox = WatchedSession.parse(scope, session), InboxIndex.parse((own, length))
        # It was applied, or waits in the inbox: its reply was lost.
        if inbox.holds or operation.id in found.bookkeeping.operations:
            operation.check_fingerprint(scope.session_id, fields.text(fingerprint))
            return ActionResult("again", "", found.version)
        _refuse_budget(found, operation)
        _refuse_ended_child(found, operation)
        runs = found.control.phase == "run" and (found.control.claim or _has_journal(found, watched))
        if runs or found.control.phase == "wait":  # never before the assistant message whose calls are open
            return _queue(found, operation, inbox, watched)
        _refuse_ended_session(scope.session_id, fields.text(status), operation)
        return _apply(found, operation, transition, watched, is_suspended=fields.text(status) == SUSPENDED)


def _refuse_budget(found: WatchedSession, operation: Operation) -> None:
    """Refuse a message with a budget to an execution that runs or waits: it would join it, and change no limit."""
    if found.control.phase not in ("run", "wait") or operation.payload.get("budget") is None:
        return
    raise ActionRefused(
        f"session {found.scope.session_id}: budget= is for the execution that a message starts, and this message would "
        "join the one that runs or waits; leave the budget out, or send the message when that one has ended"
    )


def _refuse_ended_child(found: WatchedSession, operation: Operation) -> None:
    """Refuse a message to a child that has ended: its parent has its result, and pays for nothing more."""
    if found.bookkeeping.parent is None or found.control.phase != "end" or operation.kind is not InboxKind.MESSAGE:
        return
    link = found.bookkeeping.link
    assert link is not None
    raise ActionRefused(
        f"session {found.scope.session_id} is a child of {link.session_id}, which has its result; "
        "send the message to the parent"
    )


def _refuse_ended_session(session_id: str, status: str, operation: Operation) -> None:
    """Refuse a message to a session that an action has ended; one to a suspended session waits for its resume."""
    if operation.kind is InboxKind.MESSAGE and status not in ("", ACTIVE, SUSPENDED):
        raise ActionRefused(f"session {session_id} is {status}; it takes messages when it is active: resume it first")


def _has_journal(found: WatchedSession, watched: WatchedTransaction) -> bool:
    (exists,) = watched.pipeline("act.journal", [("EXISTS", found.journal)])
    return bool(exists)


def _queue(found: WatchedSession, operation: Operation, inbox: InboxIndex, watched: WatchedTransaction) -> ActionResult:
    """Leave an operation in the inbox; the running step's commit watches it and takes the operation in."""
    scope = found.scope
    data = {"operation": operation.id, "queued": True}
    commands = [*inbox.push(scope, operation), *tell(scope, found.step, EventType.MESSAGE_RECEIVED, data)]
    if operation.fingerprint:
        commands.append(("HSET", scope.keys.session, fingerprint_field(operation.id), operation.fingerprint))
    watched.commit("act.push", commands)
    return ActionResult("queued", "", found.version)


def _apply(
    found: WatchedSession,
    operation: Operation,
    transition: Transition,
    watched: WatchedTransaction,
    *,
    is_suspended: bool,
) -> ActionResult:
    """Apply an operation at once. An execution that it starts in a suspended session is held until somebody resumes."""
    session = found.load_session(watched)
    _check_room(found, session.weight, operation)
    before = session.state
    next_state = transition(Snapshot(state=before, inbox=(operation,), entries=0, now_ms=found.now_ms, cancel=None))
    starts = is_active(next_state.state) and not is_active(before)
    is_held = starts and is_suspended
    held_until_ms = found.now_ms + LONGEST_WAIT_MS if is_held else 0
    save = found.prepare_save(before, next_state, work_changed=starts, held_until_ms=held_until_ms)
    hold = Hold(until_ms=held_until_ms, by="", reason="the session is suspended", since_ms=found.now_ms)
    watched.commit("act.exec", [*save.commands, *(hold_commands(found.scope.keys, hold) if is_held else ())])
    execution = next_state.state.execution
    outcome: Literal["started", "joined", "changed"] = "started" if starts else "joined"
    if execution is None or not is_active(next_state.state):
        outcome = "changed"
    return ActionResult(
        outcome=outcome,
        execution_id=execution.execution_id if execution else "",
        version=found.version + 1,
        publish=None if save.is_published else save.next,
    )


def _check_room(found: WatchedSession, weight: int, operation: Operation) -> None:
    """Refuse an operation that a worker could hardly load with the session."""
    most = found.scope.settings.max_session_bytes
    if weight + len(encode_operation(operation)) > most:
        raise ActionRefused(
            f"session {found.scope.session_id} takes about {weight} bytes of memory, and the limit is {most} "
            "(CELERY_AGENTS_MAX_SESSION_BYTES); begin a new session"
        )
