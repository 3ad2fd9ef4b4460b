"""The verbs of a client for messages that wait: what is queued, taken back, given another mode, and released."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pydantic import Field

from ...worker.engine.arrivals import in_delivery_order
from ...worker.engine.transitions import operation_transition
from ...worker.errors import InvalidInput
from ...worker.moments import moment
from ...worker.state.values.ids import read_session_id
from ...worker.store.inbox import new_change_id
from ...worker.store.queued_messages import WaitingMessages
from ...worker.store.records import InboxKind, MessageMode, Operation, Placement
from .connection import ClientConnection
from .inputs import check_caller, check_text, derive_id
from .verbs import BY, Scope, verb

_ID_BYTES: Final = 200
_OF_WAITING: Final = (MessageMode.STEER, MessageMode.QUEUE, MessageMode.INTERRUPT)
WHEN: Final = Field(
    description="steer: in front of the next model call; queue: an execution of its own, behind the one that runs; "
    "interrupt: as steer, and the running step is left off for it; refuse: only if no execution runs or waits."
)
SENT_BY: Final = Field(
    max_length=200,
    description="Who sends it. A token of a session need not say: it is its subject. Without one it is nobody's own.",
)
INTERRUPTING: Final = {("when", MessageMode.INTERRUPT): Scope.STOP}
"""What a token must allow beside the scope of the operation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingMessage:
    """A message that has not been delivered.

    Attributes:
        operation_id: By which it is taken back.
        text: What it says.
        when: Its mode: `steer`, `queue` or `interrupt`.
        placed: `joins`: it waits for the running step; `queued` or `held`: for an execution of its own.
        at: When it was sent; None: an earlier version has taken it.
        by: Who has sent it; "" where nobody has said so.
    """

    operation_id: str
    text: str
    when: str
    placed: str
    at: datetime | None
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesInLine:
    """The messages that wait in a session, in the order in which they will be delivered.

    Attributes:
        held: Why the queued ones do not follow by themselves: how the last execution has ended (`failed`, `stopped`).
            None: the queue is not held.
    """

    messages: tuple[WaitingMessage, ...] = ()
    held: str | None = None

    @classmethod
    def of(cls, waiting: WaitingMessages) -> MessagesInLine:
        """The messages of what waits in a session."""
        queue, inbox = waiting.queue, in_delivery_order(waiting.inbox)
        placed = Placement.HELD if queue.held else Placement.QUEUED
        messages = [
            *(_waiting(each, Placement.JOINS) for each in inbox if each.kind is InboxKind.MESSAGE),
            *(_waiting(each, placed) for each in queue.messages),
        ]
        return cls(messages=tuple(messages), held=queue.held or None)

    def to_dict(self) -> dict[str, Any]:
        """The messages as JSON values."""
        shown = [
            {
                "operation_id": each.operation_id,
                "text": each.text,
                "when": each.when,
                "placed": each.placed,
                "at": None if each.at is None else each.at.isoformat(),
                "by": each.by,
            }
            for each in self.messages
        ]
        return {"messages": shown, "held": self.held}


class MessageVerbs(ClientConnection):
    """Lists, withdraws and moves messages that wait."""

    @verb("GET", "/v1/sessions/{session_id}/queue", "list_queue", scope=Scope.READ, reads_session=False)
    def queued(self, session_id: str) -> MessagesInLine:
        """The messages that wait for the running step, and those that wait for executions of their own.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
        """
        return MessagesInLine.of(self.store.sessions.read_waiting(read_session_id(session_id)))

    @verb(
        "DELETE", "/v1/sessions/{session_id}/messages/{operation_id}", "withdraw_message", scope=Scope.SUBMIT,
        http={"by": BY}, reads_session=False, task=("session_id", "operation_id", "by"), for_chat=True, own="own",
    )  # fmt: skip
    def withdraw_message(
        self, session_id: str, operation_id: str, *, by: str | None = None, own: str | None = None
    ) -> bool:
        """Take a message back that waits. Sent again under its idempotency key, it is not delivered either.

        Args:
            operation_id: Of the message: `Job.operation_id`, or as `queued` lists it.
            by: Who asks; kept in the event `message_undelivered`.
            own: Take it back only if it was sent `by` this one. None: whoever has sent it.
        Returns:
            False when it was taken back before.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            MessageNotWaiting: It was delivered, or the session does not know it.
            MessageNotOwn: It was not sent by `own`; nothing was written.
        """
        check_caller(by)
        check_caller(own, "own")
        check_text("operation_id", operation_id, _ID_BYTES)
        applied = self.store.sessions.withdraw(read_session_id(session_id), operation_id, by=by or "", own=own)
        return applied.outcome == "changed"

    @verb(
        "PUT", "/v1/sessions/{session_id}/messages/{operation_id}/mode", "set_message_mode", scope=Scope.SUBMIT,
        body=("MessageMode", "Another mode of a message that waits."), http={"when": WHEN, "by": BY},
        needs=INTERRUPTING, task=("session_id", "operation_id", "when", "by"), for_chat=True, own="own",
    )  # fmt: skip
    def set_message_mode(
        self, session_id: str, operation_id: str, when: str, *, by: str | None = None, own: str | None = None
    ) -> Placement:
        """Give a message that waits another mode, and with it another place.

        One that becomes `queue` goes where it would be had it been sent so; one that becomes `steer` or `interrupt` is
        delivered with the next step, or starts an execution where none runs and leaves the others held.

        Args:
            operation_id: Of the message: `Job.operation_id`, or as `queued` lists it.
            when: `steer`, `queue` or `interrupt`.
            by: Who asks, for the event.
            own: As for `withdraw_message`.
        Returns:
            Where it is now.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            MessageNotWaiting: It was delivered, or the session does not know it.
            MessageNotOwn: It was not sent by `own`; nothing was written.
            InvalidInput: There is no such mode for a message that waits.
            ActionRefused: There is no room where it is to go, the session is a child and has no queue, or the message
                has a budget and would join an execution.
        """
        check_caller(by)
        check_caller(own, "own")
        check_text("operation_id", operation_id, _ID_BYTES)
        mode = read_mode(when, _OF_WAITING)
        applied = self.store.sessions.set_mode(
            read_session_id(session_id), operation_id, mode, operation_transition, by=by or "", own=own
        )
        self._publish(applied.publish)
        assert applied.placed is not None
        return applied.placed

    @verb(
        "POST", "/v1/sessions/{session_id}/queue/release", "release_queue", scope=Scope.SUBMIT,
        headers=("idempotency_key",), body=("ReleaseQueue", "Who lets the queued messages follow again."),
        http={"by": BY}, task=("session_id", "by"),
    )  # fmt: skip
    def release_queue(self, session_id: str, *, by: str | None = None, idempotency_key: str | None = None) -> bool:
        """Let the queued messages of a session follow again, of which an execution has failed or was stopped.

        Where no execution runs, the first one starts. A retry of that execution releases them, too.

        Args:
            by: Who asks; kept in the event `queue_released`.
            idempotency_key: The same release with the same key happens once, and releases no later hold.
        Returns:
            False when the queue was not held, or was released under this key before.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
        """
        check_caller(by)
        operation_id = new_change_id() if idempotency_key is None else derive_id(idempotency_key, "release")
        applied = self.store.sessions.release_queue(
            read_session_id(session_id), operation_id, operation_transition, by=by or ""
        )
        self._publish(applied.publish)
        return applied.outcome in ("started", "changed")


def read_mode(when: object, modes: Collection[MessageMode] = tuple(MessageMode)) -> MessageMode:
    """Read the mode of a message, one of these.

    Raises:
        InvalidInput: It is none of them.
    """
    if isinstance(when, str) and when in modes:
        return MessageMode(when)
    raise InvalidInput("when", when, f"give one of {', '.join(modes)}.")


def _waiting(operation: Operation, placed: Placement) -> WaitingMessage:
    return WaitingMessage(
        operation_id=operation.id,
        text=operation.text,
        when=operation.mode.value,
        placed=placed.value,
        at=moment(operation.at_ms) if operation.at_ms else None,
        by=operation.by,
    )
