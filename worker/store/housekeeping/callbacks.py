"""The outbox of callbacks: whom to tell how an execution ended, or what it waits for.

The transaction that ends the execution, or lets it wait, fills the outbox.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...errors import InvalidInput, SessionNotFound, StateUnreadable, StoreForbidden
from ...state.execution.requests import Request, RequestStatus
from .. import fields
from ..context import SessionScope, StoreContext, StorePart
from ..database import Command, Reply, Word
from ..events import DeadEntry
from ..keys import ShardKeys
from ..requests.listing import StoredRequests
from ..session_records import REQUEST_KINDS, Callback, Result
from ..sessions.reads import ReadVerbs

_MOST_ATTEMPTS: Final = 1_000
_FEWEST_WORDS: Final = 4


class CallbackVerbs(StorePart):
    """The outbox of callbacks."""

    def due_callbacks(self, *, limit: int, hold_ms: int, shards: Sequence[ShardKeys] | None = None) -> list[Callback]:
        """Take callbacks that are due; each comes again after `hold_ms` unless it is finished.

        Args:
            limit: Most callbacks of a server.
            shards: Of one server. None: all.
        """
        context = self._context
        if shards is None:
            options = {"limit": limit, "hold_ms": hold_ms}
            return [each for group in context.servers() for each in self.due_callbacks(shards=group, **options)]
        return [each for some in context.apart(lambda few: self._due(few, limit, hold_ms), shards) for each in some]

    def _due(self, shards: Sequence[ShardKeys], limit: int, hold_ms: int) -> list[Callback]:
        context, found = self._context, list[Callback]()
        firsts: list[Command] = [("ZRANGE", shard.callbacks, 0, 0, "WITHSCORES") for shard in shards]
        now_reply, *replies = context.database.pipeline("callbacks.now", [context.clock.now(), *firsts])
        now_ms = context.clock.milliseconds(now_reply)
        due = [shard for shard, first in zip(shards, replies, strict=True) if fields.is_due(first, now_ms)]
        for shard in random.sample(due, len(due)):  # where there is no room for all, others come first the next time
            if len(found) < limit:
                found += self._take_due(shard, limit - len(found), now_ms, hold_ms)
        return found

    def _take_due(self, keys: ShardKeys, limit: int, now_ms: int, hold_ms: int) -> list[Callback]:
        context, pipeline = self._context, self._context.database.pipeline
        due = ("ZRANGEBYSCORE", keys.callbacks, "-inf", now_ms, "LIMIT", 0, limit)
        found: list[Callback] = []
        for member in pipeline("callbacks.due", [due])[0]:
            pipeline("callbacks.hold", [("ZADD", keys.callbacks, "XX", now_ms + hold_ms, member)])
            note, callback = fields.name(member), None
            try:
                callback = _read_callback(context, note)
            except StateUnreadable as error:  # the callbacks of others are to be made
                session_id, execution_id, *_ = [*note.split(" "), ""]
                entry = DeadEntry(kind="callback", reason=str(error), session_id=session_id, execution_id=execution_id)
                pipeline("callbacks.unreadable", [entry.command(context, keys)])
            if callback is None:
                pipeline("callbacks.gone", [("ZREM", keys.callbacks, member)])
            else:
                found.append(callback)
        return found

    def send_callback(self, callback: Callback, queue: str, message: str) -> None:
        """Push the message of a callback's task over a connection of the store, and confirm it where that is on.

        Args:
            queue: The list of the receiver's queue.
        Raises:
            NotConfirmed: A failover may forget the message; the callback must stay in the outbox.
            InvalidInput: This user may not write to the list, or it is no list.
        """
        context = self._context
        try:
            with context.confirming(context.keys(callback.session_id).shard):
                context.database.pipeline("callbacks.send", [("LPUSH", queue, message)])
        except StoreForbidden as error:
            raise InvalidInput("queue", queue, f"let the workers' user write to it: {error}") from error
        except StateUnreadable as error:
            raise InvalidInput("queue", queue, "its key holds another type than a list; rename it.") from error

    def finish_callback(self, callback: Callback) -> None:
        """Record that a callback was made; it does not come again."""
        keys = self._context.keys(callback.session_id)
        self._context.database.pipeline(
            "callbacks.made",
            [
                ("ZREM", keys.shard.callbacks, callback.note),
                ("HDEL", keys.session, _attempts_field(callback.note)),
            ],
        )

    def delay_callback(self, callback: Callback, *, delay_ms: int) -> None:
        """Let a callback come again after `delay_ms` without counting an attempt."""
        shard = self._context.keys(callback.session_id).shard
        due_ms = self._context.now_ms("callbacks.now") + delay_ms
        self._context.database.pipeline("callbacks.delay", [("ZADD", shard.callbacks, "XX", due_ms, callback.note)])

    def fail_callback(self, callback: Callback, *, delay_ms: int | None, reason: str) -> None:
        """Record that a callback failed: again after `delay_ms`, or never (None), with an entry in the dead list."""
        if delay_ms is None:
            _give_up(self._context, callback, reason)
            return
        due_ms = self._context.now_ms("callbacks.now") + delay_ms
        scope = self._context.session(callback.session_id)
        scope.retry(lambda: _delay(scope, callback, due_ms), "delay a callback")

    def failing_callbacks(self) -> list[FailingCallback]:
        """Read the callbacks that have failed and come again, those that failed most often first.

        In each shard it looks at the thousand whose next attempt is the furthest.
        """
        context = self._context
        window: list[Word] = ["+inf", "-inf", "WITHSCORES", "LIMIT", 0, 1000]
        read = context.read_shards("callbacks.waiting", lambda shard: [("ZREVRANGEBYSCORE", shard.callbacks, *window)])
        waiting = {
            fields.name(member): fields.score_ms(score)
            for (flat,) in read.values()
            for member, score in zip(flat[::2], flat[1::2], strict=True)
        }
        notes = [(name, note) for name in waiting if (note := read_note(name)) is not None]
        counts = context.read_apart(
            "callbacks.attempts",
            [[("HGET", context.keys(note.session_id).session, _attempts_field(name))] for name, note in notes],
        )
        found = [
            FailingCallback(session_id=note.session_id, kind=note.kind, attempts=failed, next_try_ms=waiting[name])
            for (name, note), replies in zip(notes, counts, strict=True)
            if (failed := _attempts(replies)) > 0
        ]
        return sorted(found, key=lambda each: each.attempts, reverse=True)


@dataclass(frozen=True, slots=True)
class FailingCallback:
    """A callback that has failed and comes again.

    Attributes:
        kind: See `Callback`.
        attempts: How often it has failed, from 1.
        next_try_ms: Redis time.
    """

    session_id: str
    kind: str
    attempts: int
    next_try_ms: int


@dataclass(frozen=True, slots=True)
class Note:
    """An entry of the outbox, as `keys.callback_note` and `keys.request_note` write it.

    Attributes:
        about: The number of retries before an end; or the id of a request.
        operation: The operation that started the execution of a request; "" for an end.
    """

    session_id: str
    execution_id: str
    kind: str
    about: str
    operation: str = ""


def read_note(name: str) -> Note | None:
    """Read an entry of the outbox; None for one in a form that this package does not write."""
    words = name.split(" ")
    if len(words) < _FEWEST_WORDS or not all(words):
        return None
    expected = _FEWEST_WORDS + (words[2] in REQUEST_KINDS)
    return Note(*words) if len(words) == expected else None


def _read_callback(context: StoreContext, note: str) -> Callback | None:
    """Read what an entry of the outbox is about; None when no receiver needs it any more."""
    read = read_note(note)
    if read is None:
        raise StateUnreadable("callbacks", "an entry is not the note of an end or a request")
    session_id, kind = read.session_id, read.kind
    about: Result | Request | None
    if read.operation:
        about, operation = _read_request(context, session_id, read.about), read.operation
    else:
        about = _read_end(context, session_id, read.execution_id, read.about)
        operation = about.operation_id if about is not None else None
    if about is None:
        return None
    keys = context.keys(session_id)
    notify, attempts = context.database.pipeline(
        "callbacks.read", [("HGET", keys.session, "notify"), ("HGET", keys.session, _attempts_field(note))]
    )
    wanted: Any = fields.read_json(notify or b"{}", "notify")
    try:
        target = wanted.get(operation or "", {}).get(kind)
    except AttributeError:
        raise StateUnreadable("notify", "it is no object of objects") from None
    if target is None:
        raise StateUnreadable("notify", "its receiver is not kept any more: the session has had many others since")
    failed = fields.number(attempts)
    if not 0 <= failed <= _MOST_ATTEMPTS:  # the delay doubles with each
        raise StateUnreadable("callbacks", "its number of attempts is none")
    return Callback(kind=kind, target=target, about=about, attempts=failed, note=note)


def _attempts(replies: Sequence[Reply] | StateUnreadable) -> int:
    """How often a callback has failed; 0 where that cannot be read."""
    try:
        return 0 if isinstance(replies, StateUnreadable) else fields.number(replies[0])
    except StateUnreadable:
        return 0


def _read_end(context: StoreContext, session_id: str, execution_id: str, retries: str) -> Result | None:
    """Read how an execution ended.

    None when the session has expired, or the execution was retried and has ended again, which has its own entry.
    """
    try:
        result = ReadVerbs(context).record(session_id, execution_id)
    except SessionNotFound:
        return None
    return result if result is not None and str(result.retries) == retries else None


def _read_request(context: StoreContext, session_id: str, request_id: str) -> Request | None:
    """Read a request; None when it is not open any more."""
    try:
        stored = StoredRequests.read(context.session(session_id))
    except SessionNotFound:
        return None
    open_ones = (each for each in stored.of_step() if each.status is RequestStatus.OPEN)
    return next((each.request for each in open_ones if each.summary.id == request_id), None)


def _give_up(context: StoreContext, callback: Callback, reason: str) -> None:
    shard = context.keys(callback.session_id).shard
    entry = DeadEntry(
        kind="callback",
        reason=reason,
        session_id=callback.session_id,
        execution_id=callback.execution_id,
        step=callback.step,
    )
    gone: Command = ("ZREM", shard.callbacks, callback.note)
    context.database.transaction("callbacks.lost", [gone, entry.command(context, shard)])


def _delay(scope: SessionScope, callback: Callback, due_ms: int) -> None:
    session = scope.keys.session
    count: Command = ("HSET", session, _attempts_field(callback.note), callback.attempts + 1)
    # The session may expire or be deleted at this very moment; a count must not bring its hash back to life.
    with scope.database.watch("callbacks.session", (session,), [("HGET", session, "version")]) as watched:
        commands: list[Command] = [("ZADD", scope.keys.shard.callbacks, "XX", due_ms, callback.note)]
        if watched.replies[0]:
            commands.append(count)
        watched.commit("callbacks.later", commands)


def _attempts_field(note: str) -> str:
    """The field of the session's hash that counts the failed attempts of a callback."""
    _, execution_id, kind, about, *_ = note.split(" ")
    return f"told:{execution_id}:{kind}:{about}"
