"""Taking what clients send: a submit creates a session, once; an operation changes it, now or by the running step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from ...errors import ActionRefused, IdempotencyMismatch, InvalidInput, SessionDeleted
from .. import fields
from ..bookkeeping import Bookkeeping
from ..context import SessionScope, StorePart
from ..control import LONGEST_WAIT_MS, hold_commands
from ..database import Command, WatchedTransaction
from ..event_records import EventType
from ..events import tell
from ..inbox import InboxIndex, encode_operation
from ..keys import fingerprint_field
from ..labels import NO_LABELS, index_commands, label_words
from ..records import ActionResult, Hold, InboxKind, NextState, Operation, Snapshot, Transition
from ..session_records import ACTIVE, SESSION_STATUS, SUSPENDED
from ..waking import begin_waiting
from .archive_marks import ArchiveMark
from .loading import ARCHIVED, MARK, is_unused
from .saving import SessionSave, is_active
from .watched_sessions import WatchedSession


class SubmitVerbs(StorePart):
    """Creating a session with its first execution."""

    def submit(
        self,
        session_id: str,
        agent: str,
        fingerprint: str,
        transition: Callable[[int], NextState],
        *,
        queue: str | None = "",
        start_at_ms: int = 0,
        labels: Mapping[str, str] = NO_LABELS,
    ) -> ActionResult:
        """Create a session with its first execution, once.

        Args:
            fingerprint: A digest of everything that is submitted; the same id with another one is refused.
            transition: Makes the session's first state of Redis's time (ms).
            queue: Name of the agent's queue; "" is the common one. None: no worker has registered the agent. Then the
                session gets no message, and waits for a worker that registers it.
            start_at_ms: The first step begins at this Redis time; 0, or a time that has passed: at once.
            labels: Of the session.
        Returns:
            "started", or "again" with the first execution when this was submitted before.
        Raises:
            IdempotencyMismatch: The session exists and was submitted with something else.
            InvalidInput: `start_at_ms` is no time.
            StoreFull: Nothing was written.
        """
        if not 0 <= start_at_ms <= fields.LAST_MS:
            raise InvalidInput("start_at_ms", start_at_ms, "give Unix milliseconds up to the year 9999, or 0 for now.")
        submission = _Submission(
            scope=self._context.session(session_id),
            agent=agent,
            fingerprint=fingerprint,
            transition=transition,
            queue=queue,
            start_at_ms=start_at_ms,
            labels=labels,
        )
        return submission.scope.act_once(submission.run, "be created")


@dataclass(slots=True)
class _Submission:
    """One submission and its attempts; only the first goes by the script. Its fields are those of `submit`."""

    scope: SessionScope
    agent: str
    fingerprint: str
    transition: Callable[[int], NextState]
    queue: str | None
    start_at_ms: int
    labels: Mapping[str, str]
    may_use_script: bool = True

    def run(self) -> ActionResult:
        """Make one attempt."""
        estimate_ms = self.scope.clock.estimate_ms()
        if self.may_use_script and estimate_ms is not None:
            self.may_use_script = False
            result, commands = self._prepare(estimate_ms)
            unused = is_unused(self.scope.keys)
            if self.scope.database.compare_and_apply("submit.attempt", [unused], commands) is not None:
                return result
        return self._submit_by_watch()

    def _submit_by_watch(self) -> ActionResult:
        scope, keys = self.scope, self.scope.keys
        wanted = ("version", MARK, "fingerprint", "first", ARCHIVED)
        reads: list[Command] = [("HMGET", keys.session, *wanted), scope.clock.now()]
        with scope.database.watch("submit.read", (keys.session, keys.ctl), reads) as watched:
            (version, mark, stored, first, archived), now = watched.replies
            if version is None and mark is not None and archived is None:
                raise SessionDeleted(scope.session_id)
            if version is None and mark is None:
                result, commands = self._prepare(scope.clock.milliseconds(now))
                watched.commit("submit.exec", commands)
                return result
        if version is None:
            known = ArchiveMark.read(fields.text(archived))
            return self._answer_again(known.fingerprint, known.first, known.version)
        return self._answer_again(fields.text(stored), fields.text(first), fields.number(version))

    def _answer_again(self, fingerprint: str, first: str, version: int) -> ActionResult:
        """The answer where the session exists."""
        if fingerprint != self.fingerprint:
            raise IdempotencyMismatch(
                f"session {self.scope.session_id} was submitted before with another agent, message or budget; "
                "use another idempotency key, or repeat the request exactly"
            )
        return ActionResult("again", first, version)

    def _prepare(self, now_ms: int) -> tuple[ActionResult, list[Command]]:
        """Make the answer and the commands of the first version."""
        next_state = self.transition(now_ms)
        first = next_state.state.execution.execution_id if next_state.state.execution else ""
        words = ("agent", self.agent, "fingerprint", self.fingerprint, "first", first)
        save = SessionSave(
            scope=self.scope,
            not_before_ms=self.start_at_ms if self.start_at_ms > now_ms else 0,
            before=None,
            next_state=next_state,
            bookkeeping=Bookkeeping(),
            version=1,
            now_ms=now_ms,
            extra=(*words, "created", now_ms, *label_words(self.labels)),
            queue=self.queue,
        ).prepare()
        commands = [*index_commands(self.scope.keys, NO_LABELS, self.labels), *save.commands]
        if self.queue is None:
            waiting = begin_waiting(self.scope, self.agent, since_ms=now_ms, ref=save.next)
            return ActionResult(outcome="started", execution_id=first, version=1), [*commands, *waiting]
        publish = None if save.is_published else save.next
        return ActionResult(outcome="started", execution_id=first, version=1, publish=publish), commands


class ActVerbs(StorePart):
    """Applying an operation to a session."""

    def act(self, session_id: str, operation: Operation, transition: Transition) -> ActionResult:
        """Apply an operation once: now, or by the commit of the step that is running.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
            ActionRefused: The running step has too many messages waiting.
        """
        scope = self._context.session(session_id)
        return scope.act_once(lambda: _act(scope, operation, transition), "take a message")


def _act(scope: SessionScope, operation: Operation, transition: Transition) -> ActionResult:
    keys = scope.keys
    reads: list[Command] = [
        *WatchedSession.reads(scope),
        ("HMGET", keys.session, SESSION_STATUS, fingerprint_field(operation.id)),
        *InboxIndex.reads(keys, operation.id),
    ]
    with scope.database.watch("act.read", (keys.session, keys.ctl, keys.inbox), reads) as watched:
        *session, (status, fingerprint), own, length = watched.replies
        found, inbox = WatchedSession.parse(scope, session), InboxIndex.parse((own, length))
        # It was applied, or waits in the inbox: its reply was lost.
        if inbox.holds or operation.id in found.bookkeeping.operations:
            operation.check_fingerprint(scope.session_id, fields.text(fingerprint))
            return ActionResult("again", "", found.version)
        _refuse_budget(found, operation)
        _refuse_ended_child(found, operation)
        runs = found.control.phase == "run" and (found.control.claim or _has_journal(found, watched))
        if runs or found.control.phase == "wait":  # never before the assistant message whose calls are open
            return _queue(found, operation, inbox, watched)
        _refuse_ended_session(scope.session_id, fields.text(status), operation)
        return _apply(found, operation, transition, watched, is_suspended=fields.text(status) == SUSPENDED)


def _refuse_budget(found: WatchedSession, operation: Operation) -> None:
    """Refuse a message with a budget to an execution that runs or waits: it would join it, and change no limit."""
    if found.control.phase not in ("run", "wait") or operation.payload.get("budget") is None:
        return
    raise ActionRefused(
        f"session {found.scope.session_id}: budget= is for the execution that a message starts, and this message would "
        "join the one that runs or waits; leave the budget out, and change that one's limits with change_budget"
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


def _queue(found: WatchedSession, operation: Operation, inbox: InboxIndex, watched: WatchedTransaction) -> ActionResult:
    """Leave an operation in the inbox; the running step's commit watches it and takes the operation in."""
    scope = found.scope
    data = {"operation": operation.id, "queued": True}
    commands = [*inbox.push(scope, operation), *tell(scope, found.step, EventType.MESSAGE_RECEIVED, data)]
    if operation.fingerprint:
        commands.append(("HSET", scope.keys.session, fingerprint_field(operation.id), operation.fingerprint))
    watched.commit("act.push", commands)
    return ActionResult("queued", "", found.version)


def _apply(
    found: WatchedSession,
    operation: Operation,
    transition: Transition,
    watched: WatchedTransaction,
    *,
    is_suspended: bool,
) -> ActionResult:
    """Apply an operation at once. An execution that it starts in a suspended session is held until it is resumed."""
    session = found.load_session(watched)
    _check_room(found, session.weight, operation)
    before = session.state
    next_state = transition(Snapshot(state=before, inbox=(operation,), entries=0, now_ms=found.now_ms, cancel=None))
    starts = is_active(next_state.state) and not is_active(before)
    is_held = starts and is_suspended
    held_until_ms = found.now_ms + LONGEST_WAIT_MS if is_held else 0
    found = found.with_old_values(watched)
    save = found.prepare_save(before, next_state, work_changed=starts, held_until_ms=held_until_ms)
    hold = Hold(until_ms=held_until_ms, by="", reason="the session is suspended", since_ms=found.now_ms)
    watched.commit("act.exec", [*save.commands, *(hold_commands(found.scope.keys, hold) if is_held else ())])
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


def _check_room(found: WatchedSession, weight: int, operation: Operation) -> None:
    """Refuse an operation that a worker could hardly load with the session."""
    most = found.scope.settings.max_session_bytes
    if weight + len(encode_operation(operation)) > most:
        raise ActionRefused(
            f"session {found.scope.session_id} takes about {weight} bytes of memory, and the limit is {most} "
            "(CELERY_AGENTS_MAX_SESSION_BYTES); begin a new session"
        )
