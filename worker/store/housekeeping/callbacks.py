"""Executions whose end somebody wants to hear of: an outbox, filled by the transaction that ends them."""

from __future__ import annotations

from typing import Any

from ...errors import SessionNotFound, StateUnreadable
from .. import fields
from ..context import StoreContext
from ..database import Command
from ..dead import DeadEntry
from ..keys import ShardKeys, callback_note
from ..records import Callback, ExecutionRecord
from ..sessions import reads


def due_callbacks(context: StoreContext, shard: ShardKeys, *, limit: int, hold_ms: int) -> list[Callback]:
    """Callbacks to be made now; each is out of sight of others for `hold_ms`, and comes again unless it is ended."""
    (now_reply,) = context.database.pipeline("callbacks.now", [context.clock.now()])
    now_ms = context.clock.milliseconds(now_reply)
    (members,) = context.database.pipeline(
        "callbacks.due", [("ZRANGEBYSCORE", shard.callbacks, "-inf", now_ms, "LIMIT", 0, limit)]
    )
    found: list[Callback] = []
    for member in members:
        context.database.pipeline("callbacks.hold", [("ZADD", shard.callbacks, "XX", now_ms + hold_ms, member)])
        note = member.decode("utf-8", "backslashreplace")
        try:
            callback = _callback(context, note)
        except StateUnreadable as error:  # the callbacks of others are to be made
            session_id, execution_id, *_ = [*note.split(" "), ""]
            entry = DeadEntry(kind="callback", reason=str(error), session_id=session_id, execution_id=execution_id)
            context.database.pipeline("callbacks.unreadable", [entry.command(context, shard)])
            callback = None
        if callback is None:
            context.database.pipeline("callbacks.gone", [("ZREM", shard.callbacks, member)])
        else:
            found.append(callback)
    return found


def _callback(context: StoreContext, note: str) -> Callback | None:
    """None when the session has expired, or the execution was retried and has ended again, which has its own note."""
    try:
        session_id, execution_id, kind, retries = note.split(" ")
    except ValueError:
        raise StateUnreadable("callbacks", "an entry is not the note of an end") from None
    try:
        record = reads.record(context, session_id, execution_id)
    except SessionNotFound:
        return None
    if record is None or str(record.retries) != retries:
        return None
    keys = context.keys(session_id)
    notify, attempts = context.database.pipeline(
        "callbacks.read", [("HGET", keys.session, "notify"), ("HGET", keys.session, _count(record, kind))]
    )
    wanted: Any = fields.read_json(notify or b"{}", "notify")
    try:
        target = wanted.get(record.operation_id or "", {}).get(kind)
    except AttributeError:
        raise StateUnreadable("notify", "it is no object of objects") from None
    if target is None:
        return None
    return Callback(
        session_id=session_id,
        execution_id=execution_id,
        kind=kind,
        target=target,
        record=record,
        attempts=fields.number(attempts),
    )


def callback_made(context: StoreContext, callback: Callback) -> None:
    """It was heard; it does not come again."""
    keys = context.keys(callback.session_id)
    context.database.pipeline(
        "callbacks.made",
        [
            ("ZREM", keys.shard.callbacks, _member(callback)),
            ("HDEL", keys.session, _count(callback.record, callback.kind)),
        ],
    )


def callback_failed(context: StoreContext, callback: Callback, *, delay_ms: int | None, reason: str) -> None:
    """It was not heard: again after `delay_ms`; None gives it up, with an entry among the dead."""
    keys = context.keys(callback.session_id)
    if delay_ms is None:
        entry = DeadEntry(
            kind="callback",
            reason=reason,
            session_id=callback.session_id,
            execution_id=callback.execution_id,
            step=callback.record.step_count,
        )
        gone: Command = ("ZREM", keys.shard.callbacks, _member(callback))
        context.database.transaction("callbacks.lost", [gone, entry.command(context, keys.shard)])
        return
    (now_reply,) = context.database.pipeline("callbacks.now", [context.clock.now()])
    due = context.clock.milliseconds(now_reply) + delay_ms
    tried = ("HSET", keys.session, _count(callback.record, callback.kind), callback.attempts + 1)
    # The session may expire at this very moment; a count must not bring its hash back to life.
    with context.database.watch("callbacks.session", (keys.session,), [("EXISTS", keys.session)]) as watched:
        commands: list[Command] = [("ZADD", keys.shard.callbacks, "XX", due, _member(callback))]
        if watched.replies[0]:
            commands.append(tried)
        watched.commit("callbacks.later", commands)


def _member(callback: Callback) -> str:
    record = callback.record
    return callback_note(callback.session_id, record.execution_id, callback.kind, record.retries)


def _count(record: ExecutionRecord, kind: str) -> str:
    """The field of the session that counts how often an end was told in vain."""
    return f"told:{record.execution_id}:{kind}:{record.retries}"
