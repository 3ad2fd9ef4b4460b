"""Parks sessions whose step no worker can run, and quarantines malformed messages."""

from __future__ import annotations

from ...errors import StateUnreadable
from .. import decoding
from ..context import SessionScope, StoreContext
from ..control import ControlFields, control_command, read_unoffered
from ..database import Command, Reply, WatchedTransaction
from ..dead import DeadEntry
from ..event_records import EventType, NewEvent
from ..events import event_commands
from ..records import StepRef
from ..requests.index import read_entry, remove_commands
from ..transaction_retries import LOST_REPLIES
from .parked_keys import end_command


def park(
    context: StoreContext, ref: StepRef, reason: str, *, any_step: bool = False, only_unoffered: bool = False
) -> None:
    """Take a step that nobody can carry on out of the due index. See `StepStore.park`.

    Args:
        any_step: The session's control fields cannot be read, so nobody knows which step it waits for.
        only_unoffered: Only if the session still waits for a worker that offers its agent. It stays in the index of
            such sessions, where a worker that registers the agent finds it.
    """
    scope = context.session(ref.session_id)
    entry = DeadEntry(
        kind="step", reason=reason, session_id=ref.session_id, execution_id=ref.execution_id, step=ref.step
    )
    commands: list[Command] = [
        ("ZREM", scope.keys.shard.due, scope.session_id),
        entry.command(context, scope.keys.shard),
    ]
    event = NewEvent(type=EventType.PARKED, execution_id=ref.execution_id, step=ref.step, data={"reason": reason})
    try:
        scope.retry(
            lambda: _park(scope, None if any_step else ref, event, commands, only_unoffered=only_unoffered),
            purpose="be parked",
            lost_replies=LOST_REPLIES,
        )
    except StateUnreadable:  # a key of another type: the session stays as it is, and nobody takes it up again
        context.database.pipeline("park.broken", commands)


def _park(
    scope: SessionScope, ref: StepRef | None, event: NewEvent, commands: list[Command], *, only_unoffered: bool
) -> None:
    """
    Args:
        ref: The step that the session has to wait for; None: any.
    """
    keys = scope.keys
    reads: list[Command] = [control_command(keys), ("HGET", keys.session, "version"), scope.clock.now()]
    with scope.database.watch("park.read", (keys.ctl,), reads) as watched:
        control, version, now = watched.replies
        if version is None and not any(control):  # deleted meanwhile; an entry of the due index is all there is
            watched.commit("park.gone", [("ZREM", keys.shard.due, scope.session_id)])
            return
        if ref is not None and not _waits_for(control, ref):
            return
        if only_unoffered and not _is_unoffered(control):
            return
        parked: list[Command] = [
            ("HSET", keys.ctl, "phase", "parked", "claim", "", "worker", ""),
            *_unlist_requests(scope, control, watched),
        ]
        if version:
            parked += [("HSET", keys.session, "status", "parked"), *event_commands(scope, [event])]
            parked += end_command(scope, now)
        watched.commit("park.exec", [*commands, *parked])


def _unlist_requests(scope: SessionScope, control: Reply, watched: WatchedTransaction) -> list[Command]:
    """Take the requests of a step that has waited out of the index: nobody may ever go on with it.

    They can be answered all the same. When the session goes on, its next wait lists those that are open.
    """
    shard = scope.keys.shard
    try:
        found = ControlFields.read(control)
        if not found.has_waited:
            return []
        key = scope.keys.journal(found.execution, found.step)
        (journal,) = watched.pipeline("park.journal", [("HGETALL", key)])
        return remove_commands(shard, decoding.journal(journal).all_requests)
    except StateUnreadable:
        (entries,) = watched.pipeline("park.index", [("ZRANGEBYSCORE", shard.requests, "-inf", "+inf")])
        own = [entry for entry in entries if (read := read_entry(entry)) and read.session_id == scope.session_id]
        return [("ZREM", shard.requests, *own)] if own else []


def _waits_for(control: Reply, ref: StepRef) -> bool:
    """Whether the session waits for this step, as far as its control fields can be read at all."""
    try:
        found = ControlFields.read(control)
    except StateUnreadable:
        return True
    return found.is_at(ref) and found.phase in ("run", "wait")


def _is_unoffered(control: Reply) -> bool:
    """Whether no worker has claimed the step or registered its agent meanwhile."""
    found = ControlFields.read(control)
    return not found.claim and bool(read_unoffered(found.unoffered)[1])


def quarantine(context: StoreContext, payload: str, reason: str) -> None:
    """Keep a malformed message for whoever looks for its sender."""
    entry = DeadEntry(kind="message", reason=reason, payload=payload)
    context.database.pipeline("quarantine", [entry.command(context, context.shards[0])])
