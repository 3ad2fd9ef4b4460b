"""Stopping an execution, and holding a session.

A stop ends the execution, or asks the worker that runs its step to end it. Of a session that is held nothing begins
until a client resumes it; the running step is committed before.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final

from ...errors import ActionRefused, InvalidInput, StoreFull, StoreUnavailable
from ...moments import unix_ms
from ...state.codec.join import read_head
from ...state.execution.execution import ExecutionState
from .. import fields
from ..children.ending import answer_parent, ended_state
from ..context import SessionScope, StorePart
from ..control import (
    HOLD_FIELDS,
    LONGEST_WAIT_MS,
    ControlFields,
    forget_changes,
    forget_waiting,
    hold_commands,
    mark_without_hold,
)
from ..database import Changed, Command, WatchedTransaction
from ..event_records import EventType
from ..events import tell
from ..journal import read_journal
from ..keys import WAKE_CHANNEL
from ..queued_messages import WaitingMessages, inbox_commands, with_known
from ..records import ActionResult, Hold, NextState, Snapshot, StepRef, Transition
from ..safe_ends import mark_safe
from ..session_records import SESSION_STATUS
from ..waking import WakeUp, end_waiting, resumed_event, wake
from .loading import require_head, with_budget
from .watched_sessions import WatchedSession


class StopVerbs(StorePart):
    """Stopping an execution."""

    def stop(
        self,
        session_id: str,
        execution_id: str | None,
        transition: Transition,
        *,
        by: str | None = None,
        clear_queue: bool = False,
    ) -> ActionResult:
        """End an execution: at once when nothing runs, else by asking the worker that runs it.

        Args:
            by: Who asks, for the event `stop_requested`; None: unknown, and there is no such event.
            clear_queue: Messages that wait now, for the step or for an execution of their own, are not delivered.
        Returns:
            "changed" when it has ended, "queued" when the running step was asked, "again" when nothing ran.
        """
        scope = self._context.session(session_id)
        stopping = _Stop(scope=scope, execution_id=execution_id, transition=transition, by=by, clear_queue=clear_queue)
        result = scope.act_once(stopping.run, "be stopped")
        if stopping.ended is not None and self._context.confirms_actions and self._context.confirmer is not None:
            with contextlib.suppress(StoreUnavailable, StoreFull):  # who reads the result confirms it then
                mark_safe(scope, result.version, stopping.ended)
        return result


@dataclass(slots=True)
class _Stop:
    """One stop and its attempts.

    Attributes:
        written: What the last attempt wrote, perhaps: its reply was lost. Set before it is written.
        ended: The step with which it has ended the execution; None: it has not.
    """

    scope: SessionScope
    execution_id: str | None
    transition: Transition
    by: str | None = None
    clear_queue: bool = False
    written: ActionResult | None = None
    ended: StepRef | None = None

    def run(self) -> ActionResult:
        """Make one attempt."""
        try:
            return self._stop()
        except Changed:
            self.written = self.ended = None
            raise

    def _stop(self) -> ActionResult:
        scope, keys = self.scope, self.scope.keys
        reads: list[Command] = [
            *WatchedSession.reads(scope),
            ("HGET", keys.ctl, "worker"),
            *WaitingMessages.reads(keys),
        ]
        with scope.database.watch("stop.read", (keys.session, keys.ctl, keys.inbox, keys.next), reads) as watched:
            *session, worker, inbox, queued = watched.replies
            found = WatchedSession.parse(scope, session)
            control = found.control
            waiting = WaitingMessages.parse((inbox, queued), found)
            wanted = self.written.execution_id if self.written is not None else self.execution_id
            if control.phase == "end" or (wanted is not None and control.execution != wanted):
                if self.clear_queue and control.phase == "end" and waiting.messages:
                    watched.commit("stop.clear", waiting.clear_commands(found))
                return self.written or ActionResult("again", control.execution, found.version)
            is_alive = scope.is_lease_alive(control.claim, "stop.lease", watched)
            # Watched, so that a worker that was only paused cannot begin something between this look and the end.
            (journal,) = watched.pipeline("stop.journal", [("HGETALL", found.journal)], also=(found.journal,))
            if is_alive or read_journal(journal).was_paid_for or control.phase == "wait":
                return self._ask(found, waiting, fields.text(worker) if is_alive else None, watched)
            return self._end(found, waiting, watched)

    def _ask(
        self, found: WatchedSession, waiting: WaitingMessages, worker: str | None, watched: WatchedTransaction
    ) -> ActionResult:
        """Ask for the stop: the worker that has the step, or the next one, commits what there is and ends.

        Args:
            worker: The worker whose lease is alive; None: no worker has the step, and its message is sent again.
        """
        scope, keys, control = self.scope, self.scope.keys, found.control
        commands: list[Command] = [("HSET", keys.ctl, "cancel", control.execution, "not_before", 0)]
        publish: StepRef | None = None
        if worker is not None:
            commands.append(("PUBLISH", WAKE_CHANNEL + worker, control.claim))
        elif control.phase == "parked":  # a worker that can read it ends it
            publication = scope.context.publisher.commands(found.step, found.now_ms)
            commands += publication
            publish = None if publication else found.step
        else:
            (now,) = watched.pipeline("stop.now", [scope.clock.now()])
            woken = wake(scope, control, scope.clock.milliseconds(now), {"cause": "stop"})
            commands, publish = [*commands, *woken.commands], woken.publish
        self.written = ActionResult(
            outcome="queued", execution_id=control.execution, version=found.version, publish=publish
        )
        # A second stop is one for what was sent behind the first.
        commands += waiting.clear_commands(found) if self.clear_queue else waiting.unmark_commands(found)
        watched.commit("stop.ask", [*commands, *self._request_event(found)])
        return self.written

    def _end(self, found: WatchedSession, waiting: WaitingMessages, watched: WatchedTransaction) -> ActionResult:
        """End an execution whose step no worker has begun."""
        scope, execution_id = self.scope, found.control.execution
        before = found.load_state(watched)
        cleared: list[Command] = []
        if self.clear_queue:
            cleared, found = waiting.clear_commands(found), with_known(found, [each.id for each in waiting.messages])
            waiting = waiting.without_messages()
        next_state = self.transition(
            Snapshot(
                state=with_budget(before, found.control.changed_budget),
                inbox=waiting.inbox,
                entries=waiting.entries,
                now_ms=found.now_ms,
                cancel=execution_id,
                is_child=found.bookkeeping.parent is not None,
                queue=waiting.queue,
            )
        )
        save = found.prepare_save(before, next_state)
        trim = inbox_commands(scope, next_state, waiting.entries)
        # A claim that came to nothing has left its traces in the journal.
        expire: Command = ("PEXPIRE", found.journal, self.scope.context.journal_ms)
        control = found.control
        forgotten = forget_waiting(self.scope.keys, legs=control.legs, held=control.hold is not None)
        forgotten += forget_changes(self.scope.keys, control, "budget", "interrupt")
        publish = None if save.is_published else save.next
        parent_answer = self._tell_parent(found, next_state, watched)
        publish = parent_answer.publish if parent_answer is not None else publish
        self.written = ActionResult(
            outcome="changed", execution_id=execution_id, version=found.version + 1, publish=publish
        )
        waited = end_waiting(self.scope, control)
        commands = [*self._request_event(found), *cleared, *trim, expire, *save.commands, *forgotten, *waited]
        commands += parent_answer.commands if parent_answer is not None else ()
        self.ended = control.ref(self.scope.session_id)
        watched.commit("stop.exec", commands)
        return self.written

    def _tell_parent(self, found: WatchedSession, next_state: NextState, watched: WatchedTransaction) -> WakeUp | None:
        """The answer to the parent of a child that ends here; None where no child ends."""
        link, ended = found.bookkeeping.link, ended_state(next_state)
        if link is None or ended is None:
            return None
        return answer_parent(self.scope, link, ended, found.now_ms, watched)

    def _request_event(self, found: WatchedSession) -> list[Command]:
        return [] if self.by is None else tell(self.scope, found.step, EventType.STOP_REQUESTED, {"by": self.by})


_LONGEST_TEXT: Final = 1000


class HoldVerbs(StorePart):
    """Holding a session, and ending the hold."""

    def suspend(self, session_id: str, *, reason: str, by: str = "", until_ms: int | None = None) -> ActionResult:
        """Hold a session: its running step is committed, and nothing begins after it until it is resumed.

        Answers to its requests are recorded and do not wake it. A stop ends it all the same.

        Args:
            until_ms: Redis time at which the hold ends by itself, and the execution with it. None: in 30 days. Never
                later than the deadline of the execution.
        Returns:
            "changed"; "again" when it is held already: then the first hold stays; "idle" when no execution of it runs
            or waits: then nothing was written.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            ActionRefused: It is parked, or it is being stopped.
            InvalidInput: `reason` or `by` is no text of at most 1000 characters.
        """
        _check_text("reason", reason)
        _check_text("by", by)
        scope = self._context.session(session_id)
        return scope.act_once(lambda: _suspend(scope, reason, by, until_ms), "be suspended")

    def resume(self, session_id: str, *, by: str = "") -> ActionResult:
        """End the hold of a session, and wake it; a session that waits for requests looks at them again.

        Returns:
            "changed"; "again" when it was not held; "idle" when it was not, and no execution of it runs or waits.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
        """
        _check_text("by", by)
        scope = self._context.session(session_id)
        return scope.act_once(lambda: _resume(scope, by), "be resumed")


def _suspend(scope: SessionScope, reason: str, by: str, wanted_ms: int | None) -> ActionResult:
    keys = scope.keys
    # Its head tells the deadline; its conversation is not read.
    reads: list[Command] = [*WatchedSession.reads(scope), ("HGET", keys.session, "head")]
    with scope.database.watch("suspend.read", (keys.session, keys.ctl), reads) as watched:
        *session, head = watched.replies
        found = WatchedSession.parse(scope, session)
        control, now_ms = found.control, found.now_ms
        if control.hold is not None:
            return ActionResult("again", control.execution, found.version)
        if control.phase == "end":
            return ActionResult("idle", control.execution, found.version)
        _refuse_unless_active(scope.session_id, control)
        execution = found.check_execution(read_head(require_head(head)).state)
        until_ms = _until_ms(execution, wanted_ms, now_ms)
        commands: list[Command] = [
            *hold_commands(keys, Hold(until_ms=until_ms, by=by, reason=reason, since_ms=now_ms)),
            *tell(scope, found.step, EventType.EXECUTION_SUSPENDED, {"reason": reason, "by": by, "until_ms": until_ms}),
        ]
        if not control.claim:  # else its commit, or the sweep when its lease has ended, puts it there
            commands.append(("ZADD", keys.shard.due, until_ms, scope.session_id))
        watched.commit("suspend.exec", commands)
        return ActionResult("changed", control.execution, found.version)


def _check_text(field: str, value: object) -> None:
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT or not fields.is_text(value):
        raise InvalidInput(field, value, f"give a text of at most {_LONGEST_TEXT} characters.")


def _refuse_unless_active(session_id: str, control: ControlFields) -> None:
    if control.phase == "parked":
        raise ActionRefused(f"session {session_id} is parked, so nothing of it runs; retry it first, then suspend it")
    if control.requested_stop is not None:
        raise ActionRefused(f"session {session_id} is being stopped; it will end and cannot be suspended")


def _until_ms(execution: ExecutionState | None, wanted_ms: int | None, now_ms: int) -> int:
    """When the hold ends by itself: as asked, in 30 days at the latest, and at the execution's deadline."""
    times = [now_ms + LONGEST_WAIT_MS]
    if wanted_ms is not None:
        times.append(wanted_ms)
    if execution is not None and execution.budget.deadline is not None:
        times.append(unix_ms(execution.budget.deadline))
    return max(1, min(times))


def _resume(scope: SessionScope, by: str) -> ActionResult:
    keys, reads = scope.keys, WatchedSession.reads(scope)
    with scope.database.watch("resume.read", (keys.session, keys.ctl), reads) as watched:
        found = WatchedSession.parse(scope, watched.replies)
        control, now_ms = found.control, found.now_ms
        if control.hold is None:
            return ActionResult("idle" if control.phase == "end" else "again", control.execution, found.version)
        commands: list[Command] = [("HDEL", keys.ctl, *HOLD_FIELDS), ("HDEL", keys.session, SESSION_STATUS)]
        publish, data = None, {"cause": "resume", "by": by}
        if control.requested_stop is None:
            commands.append(("HSET", keys.ctl, "cancel", mark_without_hold(control)))
        if control.claim:  # the worker that has it continues; if it has died, the sweep finds the step
            commands.append(("ZADD", keys.shard.due, now_ms + scope.context.due_ms, scope.session_id))
        elif control.phase in ("run", "wait"):
            is_later = control.phase == "run" and control.not_before_ms > now_ms
            if is_later and not control.put_off:  # a later start or a delay still counts
                commands.append(("ZADD", keys.shard.due, control.not_before_ms, scope.session_id))
            else:  # whoever brings forward what was put off has passed it
                woken = wake(scope, control, now_ms, data)
                commands, publish = [*commands, *woken.commands], woken.publish
        if control.phase != "wait":  # waking tells of the others
            commands += resumed_event(scope, control, data)
        watched.commit("resume.exec", commands)
        return ActionResult("changed", control.execution, found.version, publish=publish)
