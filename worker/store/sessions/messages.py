"""Messages that wait in a session: taken back, given another mode; and their queue, released when it is held."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ...errors import MessageNotOwn, MessageNotWaiting
from .. import fields
from ..context import SessionScope, StorePart
from ..control import QUEUE_HELD, forget_changes
from ..database import Command, WatchedTransaction
from ..event_records import EventType
from ..events import tell
from ..inbox import InboxIndex, new_change_id, read_inbox
from ..keys import joined_field
from ..queued_messages import (
    UNDELIVERED,
    WaitingMessages,
    check_room,
    queue_commands,
    read_queue,
    undeliver,
    with_known,
)
from ..records import ActionResult, MessageMode, MessageQueue, Operation, Placement, Transition
from ..session_records import SESSION_STATUS
from .acting import apply_now, join_commands, life_ms, mode_under, refuse_budget, refuse_mode
from .loading import missing_error
from .watched_sessions import WatchedSession


class MessageVerbs(StorePart):
    """Actions of clients on messages that wait. A transition starts an execution with the message that it is given.

    Raises:
        SessionNotFound: There is no such session, or it has expired.
    """

    def read_waiting(self, session_id: str) -> WaitingMessages:
        """Read what waits for the step that runs, and the messages that wait for executions of their own.

        Raises:
            StateUnreadable: An entry is damaged.
        """
        keys = self._context.keys(session_id)
        reads: list[Command] = [
            ("HMGET", keys.session, "version", "ops"),
            ("HGET", keys.ctl, QUEUE_HELD),
            *WaitingMessages.reads(keys),
        ]
        (version, known), held, inbox, queued = self._context.database.pipeline("waiting.read", reads)
        if version is None:
            raise missing_error(self._context, session_id)
        fresh = read_inbox(inbox, fields.strings(known))
        return WaitingMessages(fresh, len(inbox), read_queue(queued, fields.text(held)))

    def withdraw(self, session_id: str, operation_id: str, *, by: str = "", own: str | None = None) -> ActionResult:
        """Take back a message that waits for the step or in the queue. Its id stays known.

        Args:
            own: The only one whose messages are taken back. None: anybody's.
        Returns:
            "changed"; "again" when it was taken back before.
        Raises:
            MessageNotWaiting: It was delivered, or the session does not know it.
            MessageNotOwn: Somebody else has sent it, or nobody has said who.
        """
        action = _MessageAction(self._context.session(session_id), operation_id, by, own=own)
        return action.scope.act_once(action.withdraw, "take a message back")

    def set_mode(
        self,
        session_id: str,
        operation_id: str,
        mode: MessageMode,
        transition: Transition,
        *,
        by: str = "",
        own: str | None = None,
    ) -> ActionResult:
        """Give a message that waits another mode, and with it another place.

        Args:
            own: As for `withdraw`.
        Returns:
            "changed" or "started", with its place; "again" when it is there already.
        Raises:
            MessageNotWaiting, MessageNotOwn: As for `withdraw`.
            ActionRefused: There is no room where it is to go, or the session is a child.
        """
        action = _MessageAction(self._context.session(session_id), operation_id, by, own=own)
        return action.scope.act_once(lambda: action.set_mode(mode, transition), "change a message")

    def release_queue(
        self, session_id: str, operation_id: str, transition: Transition, *, by: str = ""
    ) -> ActionResult:
        """Let the queued messages follow again; in an idle session the first one starts its execution.

        Args:
            operation_id: The same when it is sent again, so that it does not release a later hold.
        Returns:
            "started", or "changed" while an execution runs; "again" when it was applied before, "idle" when the queue
            was not held.
        """
        action = _MessageAction(self._context.session(session_id), operation_id, by)
        return action.scope.act_once(lambda: action.release(transition), "release its queue")


@dataclass(frozen=True, slots=True)
class _Read:
    """A session as an action on its messages reads it.

    Attributes:
        execution: The execution that the message is part of, or the mark of one that was not delivered; "" for none.
        status: Of the session over all executions.
    """

    found: WatchedSession
    waiting: WaitingMessages
    index: InboxIndex
    execution: str
    status: str
    watched: WatchedTransaction

    def find(self, operation_id: str) -> Operation | None:
        """The message, where it waits."""
        return next((each for each in self.waiting.messages if each.id == operation_id), None)

    def is_in_inbox(self, message: Operation) -> bool:
        """Whether a message that waits does so for the running step."""
        return any(each.id == message.id for each in self.waiting.inbox)

    def take_out(self, message: Operation) -> list[Command]:
        """Commands that take a message out of the list in which it waits."""
        scope = self.found.scope
        if self.is_in_inbox(message):
            left = [each for each in self.waiting.inbox if each.id != message.id]
            commands = self.index.take_out(scope.keys, message, left)
            if any(each.mode is MessageMode.INTERRUPT for each in left):
                return commands
            return [*commands, *forget_changes(scope.keys, self.found.control, "interrupt")]
        return self.store_queue(self.waiting.queue.without(message.id))

    def store_queue(self, queue: MessageQueue) -> list[Command]:
        """Commands that store another queue."""
        return queue_commands(self.found.scope, queue, ended_ms=life_ms(self.found, self.watched))


@dataclass(slots=True)
class _MessageAction:
    """One action on a message that waits, or on the queue, and its attempts.

    Attributes:
        operation_id: Of the message; of the release, where the queue is released.
        own: The only one whose message it may be. None: anybody's.
        written: What the last attempt wrote, perhaps: its reply was lost.
        change_id: Of a change of mode, by which it is known whether it was written.
    """

    scope: SessionScope
    operation_id: str
    by: str
    own: str | None = None
    written: ActionResult | None = None
    change_id: str = field(default_factory=new_change_id)

    def withdraw(self) -> ActionResult:
        """Make one attempt to take the message back."""
        with self._read("withdraw.read") as read:
            message = read.find(self.operation_id)
            if message is None:
                if read.execution.startswith(UNDELIVERED):
                    return ActionResult("again", "", read.found.version)
                raise self._not_waiting(read)
            self._check_owner(message)
            told = undeliver(read.found, [message.id], "withdrawn", self.by)
            read.watched.commit("withdraw.exec", [*read.take_out(message), *told])
            return ActionResult("changed", "", read.found.version)

    def set_mode(self, mode: MessageMode, transition: Transition) -> ActionResult:
        """Make one attempt to change the mode."""
        with self._read("mode.read") as read:
            found, message = read.found, read.find(self.operation_id)
            if self.written is not None and self.change_id in found.bookkeeping.operations:
                return self.written
            if message is None:
                raise self._not_waiting(read)
            self._check_owner(message)
            mode = mode_under(mode, found)
            is_in_place = read.is_in_inbox(message) != (mode is MessageMode.QUEUE)
            if is_in_place and message.mode is mode:
                return ActionResult("again", "", found.version, placed=_place_of(mode, read.waiting.queue))
            is_behind = mode is not MessageMode.QUEUE and found.control.requested_stop is not None
            changed = message.taken(when=mode, after_stop=message.is_after_stop or is_behind)
            refuse_mode(found, changed)
            refuse_budget(found, changed)
            found = with_known(found, [self.change_id])
            taken = [*read.take_out(message), self._remember(found)]
            if mode is not MessageMode.QUEUE and found.control.phase == "end":
                self.written = ActionResult("started", "", found.version, placed=Placement.STARTS)
                return apply_now(found, changed, transition, read.watched, status=read.status, commands=taken)
            return self._move(read, changed, taken)

    def _move(self, read: _Read, message: Operation, taken: list[Command]) -> ActionResult:
        """Put a message that was taken out where its new mode wants it."""
        # One that an end has put there stays held, though it is the only one.
        left, publish = replace(read.waiting.queue.without(message.id), held=read.waiting.queue.held), None
        if message.mode is MessageMode.QUEUE:
            check_room(self.scope, left, message)
            commands = read.store_queue(left.with_message(message))
        else:
            commands, publish = join_commands(read.found, read.index, message, read.watched)
        placed = _place_of(message.mode, left)
        data = {"operation": message.id, "queued": True, "placed": placed, **self._whom}
        told = tell(self.scope, read.found.step, EventType.MESSAGE_RECEIVED, data)
        self.written = ActionResult("changed", "", read.found.version, publish=publish, placed=placed)
        read.watched.commit("mode.exec", [*taken, *commands, *told])
        return self.written

    def release(self, transition: Transition) -> ActionResult:
        """Make one attempt to release the queue."""
        with self._read("release_queue.read") as read:
            found, held = read.found, read.waiting.queue.held
            if self.operation_id in found.bookkeeping.operations:
                return self.written or ActionResult("again", "", found.version)
            found, queue = with_known(found, [self.operation_id]), replace(read.waiting.queue, held="")
            starts = found.control.phase == "end" and queue.next is not None
            if not (held or starts):  # a build that knows no queues leaves one that starts and is not held
                return ActionResult("idle", "", found.version)
            commands: list[Command] = [
                self._remember(found),
                *tell(self.scope, found.step, EventType.QUEUE_RELEASED, self._whom),
            ]
            self.written = ActionResult("changed", found.control.execution, found.version)
            if queue.next is None or not starts:
                read.watched.commit("release_queue.exec", [*commands, *read.store_queue(queue)])
                return self.written
            commands += read.store_queue(queue.without(queue.next.id))
            self.written = replace(self.written, outcome="started")
            return apply_now(found, queue.next, transition, read.watched, status=read.status, commands=commands)

    def _remember(self, found: WatchedSession) -> Command:
        """The command that stores the ids that a session knows."""
        return ("HSET", self.scope.keys.session, "ops", fields.to_json(found.bookkeeping.operations))

    @property
    def _whom(self) -> dict[str, str]:
        return {"by": self.by} if self.by else {}

    @contextmanager
    def _read(self, point: str) -> Generator[_Read]:
        keys = self.scope.keys
        reads: list[Command] = [
            *WatchedSession.reads(self.scope),
            *WaitingMessages.reads(keys),
            *InboxIndex.reads(keys, self.operation_id),
            ("HMGET", keys.session, joined_field(self.operation_id), SESSION_STATUS),
        ]
        with self.scope.database.watch(point, (keys.session, keys.ctl, keys.inbox, keys.next), reads) as watched:
            *session, inbox, queued, own, length, (joined, status) = watched.replies
            found = WatchedSession.parse(self.scope, session)
            yield _Read(
                found=found,
                waiting=WaitingMessages.parse((inbox, queued), found),
                index=InboxIndex.parse((own, length)),
                execution=fields.text(joined),
                status=fields.text(status),
                watched=watched,
            )

    def _check_owner(self, message: Operation) -> None:
        # A message of which nobody has said who sent it is nobody's own.
        if self.own is not None and not (message.by and message.by == self.own):
            raise MessageNotOwn(self.scope.session_id, self.operation_id, self.own)

    def _not_waiting(self, read: _Read) -> MessageNotWaiting:
        execution, why = read.execution, ""
        if execution.startswith(UNDELIVERED):
            execution, why = "", f"it was {execution.removeprefix(UNDELIVERED)}"
        elif not execution and self.operation_id in read.found.bookkeeping.operations:
            why = "it was delivered"
        return MessageNotWaiting(self.scope.session_id, self.operation_id, execution_id=execution, why=why)


def _place_of(mode: MessageMode, queue: MessageQueue) -> Placement:
    """The place in which a message with a mode waits, while an execution is active or the queue is held."""
    if mode is not MessageMode.QUEUE:
        return Placement.JOINS
    return Placement.HELD if queue.held else Placement.QUEUED
