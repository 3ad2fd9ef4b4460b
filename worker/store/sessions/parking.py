"""Putting aside what nobody can carry on: steps, and messages that are malformed."""

from __future__ import annotations

from ...errors import StateUnreadable
from ..context import SessionScope, StoreContext
from ..control import ControlFields, control_command
from ..database import Command, Reply
from ..dead import DeadEntry
from ..events import event_commands
from ..records import NewEvent, StepRef
from ..retrying import LOST_REPLIES


def park(context: StoreContext, ref: StepRef, reason: str, *, any_step: bool = False) -> None:
    """Take a step that nobody can carry on out of the due index. See `StepStore.park`.

    Args:
        any_step: The session's control fields cannot be read, so nobody knows which step it waits for.
    """
    scope = context.session(ref.session_id)
    entry = DeadEntry(
        kind="step", reason=reason, session_id=ref.session_id, execution_id=ref.execution_id, step=ref.step
    )
    commands: list[Command] = [
        ("ZREM", scope.keys.shard.due, scope.session_id),
        entry.command(context, scope.keys.shard),
    ]
    event = NewEvent(type="parked", execution_id=ref.execution_id, step=ref.step, data={"reason": reason})
    try:
        scope.retry(
            lambda: _park(scope, None if any_step else ref, event, commands),
            purpose="be parked",
            lost_replies=LOST_REPLIES,
        )
    except StateUnreadable:  # a key of another type: the session stays as it is, and nobody takes it up again
        context.database.pipeline("park.broken", commands)


def _park(scope: SessionScope, ref: StepRef | None, event: NewEvent, commands: list[Command]) -> None:
    """
    Args:
        ref: The step that the session has to wait for; None: any.
    """
    keys = scope.keys
    reads: list[Command] = [control_command(keys), ("HGET", keys.session, "version")]
    with scope.database.watch("park.read", (keys.ctl,), reads) as watched:
        control, version = watched.replies
        if ref is not None and not _waits_for(control, ref):
            return
        parked: list[Command] = [("HSET", keys.ctl, "phase", "parked", "claim", "", "worker", "")]
        if version:
            parked += [("HSET", keys.session, "status", "parked"), *event_commands(scope, [event])]
        watched.commit("park.exec", [*commands, *parked])


def _waits_for(control: Reply, ref: StepRef) -> bool:
    """Whether the session waits for this step, as far as its control fields can be read at all."""
    try:
        found = ControlFields.read(control)
    except StateUnreadable:
        return True
    return found.is_at(ref) and found.phase == "run"


def quarantine(context: StoreContext, payload: str, reason: str) -> None:
    """Keep a malformed message for whoever looks for its sender."""
    entry = DeadEntry(kind="message", reason=reason, payload=payload)
    context.database.pipeline("quarantine", [entry.command(context, context.shards[0])])
