"""The outbox of callbacks: whom to tell how an execution ended. The transaction that ends it fills the outbox."""

from __future__ import annotations

from typing import Any

from ...errors import SessionNotFound, StateUnreadable
from .. import fields
from ..context import SessionScope, StoreContext
from ..database import Command
from ..dead import DeadEntry
from ..keys import ShardKeys, callback_note
from ..records import Callback, Result
from ..sessions import reads


def due_callbacks(context: StoreContext, shard: ShardKeys, *, limit: int, hold_ms: int) -> list[Callback]:
    """Take callbacks that are due, each for `hold_ms`; it comes again unless it is finished. See `Housekeeping`."""
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
            callback = _read_callback(context, note)
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


def _read_callback(context: StoreContext, note: str) -> Callback | None:
    """Read what an entry of the outbox is about.

    None when the session has expired, or the execution was retried and has ended again, which has its own entry.
    """
    try:
        session_id, execution_id, kind, retries = note.split(" ")
    except ValueError:
        raise StateUnreadable("callbacks", "an entry is not the note of an end") from None
    try:
        result = reads.record(context, session_id, execution_id)
    except SessionNotFound:
        return None
    if result is None or str(result.retries) != retries:
        return None
    keys = context.keys(session_id)
    notify, attempts = context.database.pipeline(
        "callbacks.read", [("HGET", keys.session, "notify"), ("HGET", keys.session, _attempts_field(result, kind))]
    )
    wanted: Any = fields.read_json(notify or b"{}", "notify")
    try:
        target = wanted.get(result.operation_id or "", {}).get(kind)
    except AttributeError:
        raise StateUnreadable("notify", "it is no object of objects") from None
    if target is None:
        return None
    return Callback(kind=kind, target=target, result=result, attempts=fields.number(attempts))


def finish_callback(context: StoreContext, callback: Callback) -> None:
    """Take a callback that was made out of the outbox. See `Housekeeping.finish_callback`."""
    keys = context.keys(callback.session_id)
    context.database.pipeline(
        "callbacks.made",
        [
            ("ZREM", keys.shard.callbacks, _member(callback)),
            ("HDEL", keys.session, _attempts_field(callback.result, callback.kind)),
        ],
    )


def fail_callback(context: StoreContext, callback: Callback, *, delay_ms: int | None, reason: str) -> None:
    """Put a callback off, or give it up. See `Housekeeping.fail_callback`."""
    if delay_ms is None:
        _give_up(context, callback, reason)
        return
    (now_reply,) = context.database.pipeline("callbacks.now", [context.clock.now()])
    due_ms = context.clock.milliseconds(now_reply) + delay_ms
    scope = context.session(callback.session_id)
    scope.retry(lambda: _put_off(scope, callback, due_ms), purpose="put a callback off")


def _give_up(context: StoreContext, callback: Callback, reason: str) -> None:
    shard = context.keys(callback.session_id).shard
    entry = DeadEntry(
        kind="callback",
        reason=reason,
        session_id=callback.session_id,
        execution_id=callback.execution_id,
        step=callback.result.step_count,
    )
    gone: Command = ("ZREM", shard.callbacks, _member(callback))
    context.database.transaction("callbacks.lost", [gone, entry.command(context, shard)])


def _put_off(scope: SessionScope, callback: Callback, due_ms: int) -> None:
    session = scope.keys.session
    count: Command = ("HSET", session, _attempts_field(callback.result, callback.kind), callback.attempts + 1)
    # The session may expire at this very moment; a count must not bring its hash back to life.
    with scope.database.watch("callbacks.session", (session,), [("EXISTS", session)]) as watched:
        commands: list[Command] = [("ZADD", scope.keys.shard.callbacks, "XX", due_ms, _member(callback))]
        if watched.replies[0]:
            commands.append(count)
        watched.commit("callbacks.later", commands)


def _member(callback: Callback) -> str:
    return callback_note(callback.session_id, callback.execution_id, callback.kind, callback.result.retries)


def _attempts_field(result: Result, kind: str) -> str:
    """The field of the session's hash that counts how often an end was told in vain."""
    return f"told:{result.execution_id}:{kind}:{result.retries}"
