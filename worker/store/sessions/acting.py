"""Applying an operation to a session, or leaving it for the running step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ...errors import ActionRefused
from .. import decoding
from ..context import SessionScope, StoreContext
from ..database import Command, WatchedTransaction
from ..events import event_commands
from ..records import ActionResult, NewEvent, Operation, Snapshot, Transition
from ..retrying import LOST_REPLIES
from .saving import SessionSave, is_active
from .watched_sessions import WatchedSession


def act(context: StoreContext, session_id: str, operation: Operation, transition: Transition) -> ActionResult:
    """Apply an operation, or leave it for the running step. See `SessionActions.act`."""
    scope = context.session(session_id)
    return scope.retry(lambda: _act(scope, operation, transition), purpose="take a message", lost_replies=LOST_REPLIES)


def _act(scope: SessionScope, operation: Operation, transition: Transition) -> ActionResult:
    keys = scope.keys
    reads: list[Command] = [*WatchedSession.reads(scope), ("LRANGE", keys.inbox, 0, -1)]
    with scope.database.watch("act.read", (keys.session, keys.ctl, keys.inbox), reads) as watched:
        *session, entries = watched.replies
        found = WatchedSession.parse(scope, session)
        if _is_known(found, operation, entries):
            return ActionResult("again", "", found.version)
        if found.control.phase == "run" and (found.control.claim or _has_journal(found, watched)):
            return _queue(found, operation, len(entries), watched)
        return _apply(found, operation, transition, watched)


def _is_known(found: WatchedSession, operation: Operation, entries: Sequence[bytes]) -> bool:
    """Whether the operation was applied, or waits in the inbox: its reply was lost."""
    known = found.bookkeeping.operations
    return operation.id in known or any(entry.id == operation.id for entry in decoding.inbox(entries, known))


def _has_journal(found: WatchedSession, watched: WatchedTransaction) -> bool:
    (exists,) = watched.pipeline("act.journal", [("EXISTS", found.journal)])
    return bool(exists)


def _queue(found: WatchedSession, operation: Operation, waiting: int, watched: WatchedTransaction) -> ActionResult:
    """Leave an operation in the inbox; the running step's commit watches it and takes the operation in."""
    scope, control = found.scope, found.control
    if waiting >= scope.settings.inbox_limit:
        raise ActionRefused(
            f"session {scope.session_id} has {waiting} messages waiting for its running step, which is the limit; "
            "wait until the step has committed"
        )
    event = NewEvent(
        type="message_received",
        execution_id=control.execution,
        step=control.step,
        data={"operation": operation.id, "queued": True},
    )
    push: Command = ("RPUSH", scope.keys.inbox, decoding.inbox_entry(operation))
    watched.commit("act.push", [push, *event_commands(scope, [event])])
    return ActionResult("queued", "", found.version)


def _apply(
    found: WatchedSession, operation: Operation, transition: Transition, watched: WatchedTransaction
) -> ActionResult:
    """Apply an operation at once."""
    before = found.load_state(watched)
    next_state = transition(Snapshot(state=before, inbox=(operation,), entries=0, now_ms=found.now_ms, cancel=None))
    starts = is_active(next_state.state) and not is_active(before)
    save = SessionSave(
        scope=found.scope,
        before=before,
        next_state=next_state,
        bookkeeping=found.bookkeeping,
        version=found.version + 1,
        now_ms=found.now_ms,
        work_changed=starts,
    ).prepare()
    watched.commit("act.exec", save.commands)
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
