"""Taking what clients send to a session: an operation changes it at once, or waits for a step or an execution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...errors import ActionRefused, SessionBusy
from ...flow.debounce import Debounce
from ...flow.values import AT_PROVIDER
from .. import fields
from ..context import SessionScope, StorePart
from ..control import LONGEST_WAIT_MS, hold_commands, interrupt_commands
from ..database import Command, WatchedTransaction, Word
from ..event_records import EventType
from ..events import tell
from ..inbox import InboxIndex, encode_operation
from ..journal import read_journal
from ..keys import WAKE_CHANNEL, fingerprint_field, placement_field
from ..queued_messages import check_room, queue_commands, read_queue
from ..records import (
    ActionResult,
    Hold,
    InboxKind,
    MessageMode,
    MessageQueue,
    Operation,
    Placement,
    Snapshot,
    StepRef,
    Transition,
    is_active,
)
from ..requests.yielding import find_message, find_yielding, withdraw_commands, withdrawals
from ..session_records import ACTIVE, SESSION_STATUS, SUSPENDED
from ..waking import wake
from .watched_sessions import WatchedSession


class ActVerbs(StorePart):
    """Applying an operation to a session."""

    def act(self, session_id: str, operation: Operation, transition: Transition) -> ActionResult:
        """Apply an operation once: now, or by the commit of the step that is running.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
            ActionRefused: The running step has too many messages waiting.
        """
        action = _Action(self._context.session(session_id), operation, transition)
        return action.scope.act_once(action.run, "take a message")

    def act_in_burst(
        self, session_id: str, operation: Operation, transition: Transition, debounce: Debounce
    ) -> ActionResult:
        """Add a message to the session of a burst: to its execution, whose start moves, until that has begun.

        Behind that, the message is queued for an execution of its own.

        Returns:
            "idle" where no execution runs or waits, or its session is parked: nothing was written, and the message
            begins another burst.
        Raises:
            SessionNotFound: There is no such session yet, or it has expired; `SessionDeleted`, `SessionArchived`.
            ActionRefused: Too many messages are queued.
        """
        action = _Action(self._context.session(session_id), operation, transition, debounce=debounce)
        return action.scope.act_once(action.run, "take a message")


@dataclass(slots=True)
class _Action:
    """One operation and its attempts.

    Attributes:
        placed: Where the last attempt has put the message, perhaps: its reply was lost.
        debounce: The message is one of a burst.
    """

    scope: SessionScope
    operation: Operation
    transition: Transition
    placed: Placement | None = None
    debounce: Debounce | None = None

    def run(self) -> ActionResult:
        """Make one attempt."""
        scope, operation, keys = self.scope, self.operation, self.scope.keys
        own_fields = (SESSION_STATUS, fingerprint_field(operation.id), placement_field(operation.id))
        reads: list[Command] = [
            *WatchedSession.reads(scope),
            ("HMGET", keys.session, *own_fields),
            ("LLEN", keys.next),
            *InboxIndex.reads(keys, operation.id),
        ]
        with scope.database.watch("act.read", (keys.session, keys.ctl, keys.inbox, keys.next), reads) as watched:
            *session, (status, fingerprint, placed), queued, own, length = watched.replies
            found, inbox = WatchedSession.parse(scope, session), InboxIndex.parse((own, length))
            # What is queued is read only where something is.
            entries: list[bytes] = watched.pipeline("act.queue", [("LRANGE", keys.next, 0, -1)])[0] if queued else []
            queue = read_queue(entries, found.control.queue_held)
            known = _find(found, inbox, queue, operation)
            # It was applied, or waits: its reply was lost, or its caller sends it again.
            if known is not None:
                operation.check_fingerprint(scope.session_id, fields.text(fingerprint))
                first = _placement(fields.text(placed)) or self.placed or known
                return ActionResult("again", "", found.version, placed=first or None)
            if self.debounce is not None:
                return self._join_burst(found, inbox, queue, watched, self.debounce)
            refuse_mode(found, operation)
            refuse_budget(found, operation)
            _refuse_ended_child(found, operation)
            self.operation = _as_taken(found, operation)
            return self._place(found, inbox, queue, watched, status=fields.text(status))

    def _place(
        self,
        found: WatchedSession,
        inbox: InboxIndex,
        queue: MessageQueue,
        watched: WatchedTransaction,
        *,
        status: str,
    ) -> ActionResult:
        """Leave the operation in the inbox or in the queue, or apply it."""
        operation = self.operation
        if found.control.phase == "end":
            _refuse_ended_session(self.scope.session_id, status, operation)
        if operation.mode is MessageMode.QUEUE and (found.control.phase != "end" or queue.messages):
            check_room(self.scope, queue, operation)
            self.placed = Placement.HELD if queue.held else Placement.QUEUED
            commands = queue_commands(self.scope, queue.with_message(operation), ended_ms=life_ms(found, watched))
            return self._leave(found, commands, watched)
        runs = found.control.phase == "run" and (found.control.claim or _has_journal(found, watched))
        if runs or found.control.phase == "wait":  # never before the assistant message whose calls are open
            self.placed = Placement.JOINS
            commands, publish = join_commands(found, inbox, operation, watched)
            return self._leave(found, commands, watched, publish)
        self.placed = Placement.STARTS if found.control.phase == "end" else Placement.JOINS
        _refuse_ended_session(self.scope.session_id, status, operation)
        return apply_now(found, operation, self.transition, watched, status=status)

    def _join_burst(
        self,
        found: WatchedSession,
        inbox: InboxIndex,
        queue: MessageQueue,
        watched: WatchedTransaction,
        debounce: Debounce,
    ) -> ActionResult:
        """Let the message join the execution that has not begun, or queue it behind the one that has."""
        control = found.control
        if control.phase in ("end", "parked"):
            return ActionResult("idle", "", found.version)
        has_begun = control.phase != "run" or control.step > 1 or control.claim or _has_journal(found, watched)
        if has_begun:
            self.operation = _as_taken(found, self.operation.taken(when=MessageMode.QUEUE))
            return self._place(found, inbox, queue, watched, status="")
        self.placed, self.operation = Placement.JOINS, _as_taken(found, self.operation)
        moved = _move_start(found, debounce, watched)
        return apply_now(found, self.operation, self.transition, watched, status="", commands=moved)

    def _leave(
        self,
        found: WatchedSession,
        commands: list[Command],
        watched: WatchedTransaction,
        publish: StepRef | None = None,
    ) -> ActionResult:
        """Let the operation wait; the commit that takes it in watches where it waits."""
        scope, operation = self.scope, self.operation
        is_message = operation.kind is InboxKind.MESSAGE
        placed = {"placed": self.placed} if self.placed is not None and self.placed is not Placement.JOINS else {}
        data = {"operation": operation.id, "queued": True, **placed}
        told = tell(scope, found.step, EventType.MESSAGE_RECEIVED, data)
        watched.commit("act.push", [*commands, *told, *_key_commands(scope, operation, self.placed)])
        return ActionResult("queued", "", found.version, publish=publish, placed=self.placed if is_message else None)


def _find(
    found: WatchedSession, inbox: InboxIndex, queue: MessageQueue, operation: Operation
) -> Placement | Literal[""] | None:
    """The place of an operation that the session has; "" where it was applied; None: the session does not know it."""
    if inbox.holds:
        return Placement.JOINS
    if any(each.id == operation.id for each in queue.messages):
        return Placement.HELD if queue.held else Placement.QUEUED
    return "" if operation.id in found.bookkeeping.operations else None


def _move_start(found: WatchedSession, debounce: Debounce, watched: WatchedTransaction) -> list[Command]:
    """Commands that let a session begin later, since another message of its burst has come; none once it is due."""
    scope, control, now_ms = found.scope, found.control, found.now_ms
    if control.not_before_ms <= now_ms or control.put_off or control.hold is not None or control.unoffered:
        return []
    (created,) = watched.pipeline("act.created", [("HGET", scope.keys.session, "created")])
    start_ms = debounce.start_ms(fields.milliseconds(created), now_ms)
    return [
        ("HSET", scope.keys.ctl, "not_before", start_ms),
        ("ZADD", scope.keys.shard.due, start_ms, scope.session_id),
    ]


def _placement(stored: str) -> Placement | None:
    return Placement(stored) if stored in set(Placement) else None


def _as_taken(found: WatchedSession, operation: Operation) -> Operation:
    """The operation with what matters later about the moment in which the session takes it."""
    if operation.kind is not InboxKind.MESSAGE:
        return operation
    mode = mode_under(operation.mode, found)
    operation = operation if mode is operation.mode else operation.taken(when=mode)
    return operation.taken(at_ms=found.now_ms, after_stop=found.control.requested_stop is not None)


def _key_commands(scope: SessionScope, operation: Operation, placed: Placement | None) -> list[Command]:
    """The command that keeps what a resend of an operation with an idempotency key is compared with, and told."""
    if not operation.fingerprint:
        return []
    words: list[Word] = [fingerprint_field(operation.id), operation.fingerprint]
    return [("HSET", scope.keys.session, *words, *((placement_field(operation.id), placed) if placed else ()))]


def mode_under(mode: MessageMode, found: WatchedSession) -> MessageMode:
    """The mode that a message has in a session: under a stop, nothing is left to interrupt."""
    is_stopping = found.control.requested_stop is not None
    return MessageMode.STEER if mode is MessageMode.INTERRUPT and is_stopping else mode


def join_commands(
    found: WatchedSession, inbox: InboxIndex, operation: Operation, watched: WatchedTransaction
) -> tuple[list[Command], StepRef | None]:
    """Commands that leave an operation for the step.

    One that interrupts it reaches its worker, or ends its wait. One that takes the place of an answer closes its
    request, and ends the wait as that answer would.

    Returns:
        The commands, and the step where the caller has to publish it.
    Raises:
        ActionRefused: Too many wait, or too much.
    """
    scope, control = found.scope, found.control
    closed = _close_requests(found, operation, watched)
    commands = [*inbox.push(scope, operation), *closed]
    if operation.mode is MessageMode.INTERRUPT:
        commands += interrupt_commands(scope.keys, control)
        if control.claim:  # no claim's id: the worker looks, and one of an earlier version takes it for no stop
            return [*commands, ("PUBLISH", WAKE_CHANNEL + control.worker, MessageMode.INTERRUPT)], None
    elif not closed:
        return commands, None
    waits = control.phase == "wait" or (control.put_off == AT_PROVIDER and control.not_before_ms > found.now_ms)
    if not waits or control.is_held(found.now_ms):
        return commands, None
    woken = wake(scope, control, found.now_ms, {"cause": "message"})
    return [*commands, *woken.commands], woken.publish


def _close_requests(found: WatchedSession, operation: Operation, watched: WatchedTransaction) -> list[Command]:
    """Commands that close the requests of which a message takes the place; none for most sessions, without a read."""
    control = found.control
    if not control.yields or control.phase != "wait" or control.requested_stop is not None:
        return []
    message = find_message([operation])
    (stored,) = watched.pipeline("act.requests", [("HGETALL", found.journal)], also=(found.journal,))
    requests = find_yielding(read_journal(stored))
    if message is None or not requests:
        return []
    return withdraw_commands(found.scope, found.journal, requests, withdrawals(requests, message, found.now_ms))


def life_ms(found: WatchedSession, watched: WatchedTransaction) -> int | None:
    """How long the keys of an idle session live; None: an execution is active, or they live for ever."""
    if found.control.phase != "end":
        return None
    (left,) = watched.pipeline("act.life", [("PTTL", found.scope.keys.session)])
    return left if left > 0 else None


def refuse_mode(found: WatchedSession, operation: Operation) -> None:
    """Refuse a message by its mode.

    Raises:
        SessionBusy: It is to be refused while an execution runs or waits.
        ActionRefused: It is to be queued for a child, which has one execution.
    """
    name, control = found.scope.session_id, found.control
    if operation.mode is MessageMode.REFUSE and control.phase != "end":
        raise SessionBusy(name, control.phase, control.step)
    if operation.mode is MessageMode.QUEUE and found.bookkeeping.parent is not None:
        raise ActionRefused(
            f"session {name} is a child and has one execution, so that no message can be queued behind it; "
            "send it with when='steer', or to its parent"
        )


def refuse_budget(found: WatchedSession, operation: Operation) -> None:
    """Refuse a message with a budget to an execution that has not ended: it would join it, and change no limit.

    Raises:
        ActionRefused: It is such a message.
    """
    joins = found.control.phase != "end" and operation.mode is not MessageMode.QUEUE
    if not joins or operation.payload.get("budget") is None:
        return
    raise ActionRefused(
        f"session {found.scope.session_id}: budget= is for the execution that a message starts, and this message would "
        "join the one that has not ended; leave the budget out, and change that one's limits with change_budget, or "
        "send the message with when='queue'"
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


def apply_now(
    found: WatchedSession,
    operation: Operation,
    transition: Transition,
    watched: WatchedTransaction,
    *,
    status: str,
    commands: Sequence[Command] = (),
) -> ActionResult:
    """Apply an operation at once. An execution that it starts in a suspended session is held until it is resumed.

    Args:
        status: Of the session over all executions.
        commands: Further commands of the same transaction, that come first.
    """
    session = found.load_session(watched)
    _check_room(found, session.weight, operation)
    before = session.state
    next_state = transition(Snapshot(state=before, inbox=(operation,), entries=0, now_ms=found.now_ms, cancel=None))
    starts = is_active(next_state.state) and not is_active(before)
    is_held = starts and status == SUSPENDED
    held_until_ms = found.now_ms + LONGEST_WAIT_MS if is_held else 0
    found = found.with_old_values(watched)
    save = found.prepare_save(before, next_state, work_changed=starts, held_until_ms=held_until_ms)
    hold = Hold(until_ms=held_until_ms, by="", reason="the session is suspended", since_ms=found.now_ms)
    placed = Placement.STARTS if starts else Placement.JOINS
    held = hold_commands(found.scope.keys, hold) if is_held else []
    known = _key_commands(found.scope, operation, placed)
    watched.commit("act.exec", [*commands, *save.commands, *known, *held])
    execution = next_state.state.execution
    outcome: Literal["started", "joined", "changed"] = "started" if starts else "joined"
    if execution is None or not is_active(next_state.state):
        outcome = "changed"
    return ActionResult(
        outcome=outcome,
        execution_id=execution.execution_id if execution else "",
        version=found.version + 1,
        publish=None if save.is_published else save.next,
        placed=placed if operation.kind is InboxKind.MESSAGE else None,
    )


def _check_room(found: WatchedSession, weight: int, operation: Operation) -> None:
    """Refuse an operation that a worker could hardly load with the session."""
    most = found.scope.settings.max_session_bytes
    if weight + len(encode_operation(operation)) > most:
        raise ActionRefused(
            f"session {found.scope.session_id} takes about {weight} bytes of memory, and the limit is {most} "
            "(CELERY_AGENTS_MAX_SESSION_BYTES); begin a new session"
        )
