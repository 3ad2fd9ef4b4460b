"""The queue of a session: messages that wait for an execution of their own, behind the one that runs.

They are a list of their own, `…:next`, and not in the inbox: a step that finds the inbox empty needs no other look.
Only transactions that end an execution, and those of clients, read the list. Each of these watches it and writes it
anew, since it is short.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ..errors import ActionRefused
from . import fields
from .context import SessionScope
from .control import QUEUE_HELD
from .database import Command, Reply, Word
from .event_records import EventType
from .events import tell
from .inbox import encode_operation, parse_operations, read_inbox, recent_operations, rewrite_commands, trim_commands
from .keys import SessionKeys, forget_operations, joined_field
from .records import NO_QUEUE, InboxKind, MessageQueue, NextState, Operation, is_active

if TYPE_CHECKING:
    from .sessions.watched_sessions import WatchedSession

UNDELIVERED: Final = "!"
"""What the field of a message's execution begins with where it will never have one; the reason follows."""


def read_queue(entries: Iterable[bytes], held: str) -> MessageQueue:
    """Parse the stored queue.

    Args:
        held: The control field `QUEUE_HELD`.
    Raises:
        StateUnreadable: An entry is damaged.
    """
    return MessageQueue(parse_operations(entries), held)


def queue_commands(scope: SessionScope, queue: MessageQueue, *, ended_ms: int | None = None) -> list[Command]:
    """Commands that store a queue in place of the stored one.

    Args:
        ended_ms: How long the list lives where no execution is active; None: as long as it is not said.
    """
    keys = scope.keys
    commands: list[Command] = [("DEL", keys.next)]
    if queue.messages:
        commands.append(("RPUSH", keys.next, *map(encode_operation, queue.messages)))
        if ended_ms is not None:
            commands.append(("PEXPIRE", keys.next, ended_ms))
    held: Command = ("HSET", keys.ctl, QUEUE_HELD, queue.held) if queue.held else ("HDEL", keys.ctl, QUEUE_HELD)
    return [*commands, held]


def inbox_commands(scope: SessionScope, next_state: NextState, entries: int) -> list[Command]:
    """Commands that take what a save has applied or queued out of the inbox, and store the queue where it has changed.

    Args:
        entries: Inbox entries that were read, all that there were.
    """
    commands = trim_commands(scope.keys, entries, (*next_state.operations, *next_state.undelivered))
    if next_state.queue is not None:
        ended_ms = None if is_active(next_state.state) else scope.context.ended_ms
        commands += queue_commands(scope, next_state.queue, ended_ms=ended_ms)
    return commands


def check_room(scope: SessionScope, queue: MessageQueue, operation: Operation) -> None:
    """Refuse a message that the queue has no room for.

    Raises:
        ActionRefused: Too many wait, or too much.
    """
    settings, waiting = scope.settings, len(queue.messages)
    size = sum(len(encode_operation(each)) for each in (*queue.messages, operation))
    if waiting >= settings.max_queued or size > settings.max_inbox_bytes:
        raise ActionRefused(
            f"session {scope.session_id} has {waiting} queued messages; {settings.max_queued} messages and "
            f"{settings.max_inbox_bytes} bytes are the limits (CELERY_AGENTS_MAX_QUEUED, "
            "CELERY_AGENTS_MAX_INBOX_BYTES); withdraw some, or wait until their executions have begun"
        )


@dataclass(frozen=True, slots=True)
class WaitingMessages:
    """All that waits in a session, by one read of both lists.

    Attributes:
        inbox: The operations that wait for the running step.
        entries: How many are stored there; an entry may repeat one that was applied.
        queue: The messages that wait for an execution of their own.
    """

    inbox: tuple[Operation, ...]
    entries: int
    queue: MessageQueue

    @staticmethod
    def reads(keys: SessionKeys) -> list[Command]:
        """Two commands whose replies `parse` takes."""
        return [("LRANGE", keys.inbox, 0, -1), ("LRANGE", keys.next, 0, -1)]

    @classmethod
    def parse(cls, replies: Sequence[Reply], found: WatchedSession) -> WaitingMessages:
        """Parse the replies to `reads`.

        Raises:
            StateUnreadable: An entry is damaged.
        """
        inbox, queued = replies
        fresh = read_inbox(inbox, found.bookkeeping.operations)
        return cls(fresh, len(inbox), read_queue(queued, found.control.queue_held))

    @property
    def messages(self) -> tuple[Operation, ...]:
        """All messages that wait, those of the inbox first."""
        return (*(each for each in self.inbox if each.kind is InboxKind.MESSAGE), *self.queue.messages)

    def without_messages(self) -> WaitingMessages:
        """The rest when no message waits any more."""
        left = tuple(each for each in self.inbox if each.kind is not InboxKind.MESSAGE)
        return WaitingMessages(left, len(left), NO_QUEUE)

    def clear_commands(self, found: WatchedSession) -> list[Command]:
        """Commands that take all messages away, and tell of them."""
        gone, scope = [each.id for each in self.messages], found.scope
        # The mark in `cancel` is that of the stop which clears them.
        marks: list[Command] = [("HDEL", scope.keys.ctl, "interrupt")] if found.control.interrupt else []
        return [
            *marks,
            *rewrite_commands(scope.keys, self.without_messages().inbox, gone),
            *queue_commands(scope, NO_QUEUE),
            *undeliver(found, gone, "cleared"),
        ]

    def unmark_commands(self, found: WatchedSession) -> list[Command]:
        """Commands that take away that messages came after a stop; none where none did."""
        commands: list[Command] = []
        if any(each.is_after_stop for each in self.inbox):
            commands += rewrite_commands(found.scope.keys, [each.taken(after_stop=False) for each in self.inbox], ())
        if any(each.is_after_stop for each in self.queue.messages):
            unmarked = tuple(each.taken(after_stop=False) for each in self.queue.messages)
            commands += queue_commands(found.scope, replace(self.queue, messages=unmarked))
        return commands


def with_known(found: WatchedSession, operations: Sequence[str]) -> WatchedSession:
    """A session as it is with operations that have become known."""
    kept = recent_operations((*found.bookkeeping.operations, *operations), found.scope.settings.operations_kept)
    return replace(found, bookkeeping=replace(found.bookkeeping, operations=kept))


def undeliver(found: WatchedSession, operations: Sequence[str], reason: str, by: str = "") -> list[Command]:
    """Commands that remember messages which will never be delivered, and tell of them.

    Their ids stay known, so that none of them is delivered when it is sent again.

    Args:
        reason: "withdrawn" or "cleared".
    """
    if not operations:
        return []
    scope, before = found.scope, found.bookkeeping.operations
    known = with_known(found, operations).bookkeeping.operations
    words: list[Word] = ["ops", fields.to_json(known)]
    for operation in operations:
        words += [joined_field(operation), UNDELIVERED + reason]
    commands: list[Command] = [("HSET", scope.keys.session, *words), *forget_operations(scope.keys, before, known)]
    for operation in operations:
        data = {"operation": operation, "reason": reason, **({"by": by} if by else {})}
        commands += tell(scope, found.step, EventType.MESSAGE_UNDELIVERED, data)
    return commands
