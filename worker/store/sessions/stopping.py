"""Stopping an execution: end it, or ask the worker that runs its step to end it."""

from __future__ import annotations

from dataclasses import dataclass

from .. import fields
from ..children.ending import ParentAnswer, answer_parent, ended_state
from ..context import SessionScope, StorePart
from ..control import forget_waiting
from ..database import Changed, Command, WatchedTransaction
from ..event_records import EventType
from ..events import tell
from ..inbox import read_inbox, trim_commands
from ..journal import read_journal
from ..keys import WAKE_CHANNEL
from ..records import ActionResult, NextState, Snapshot, StepRef, Transition
from ..transaction_retries import LOST_REPLIES
from ..waking import end_waiting, wake
from .watched_sessions import WatchedSession


class StopVerbs(StorePart):
    """Stopping an execution."""

    def stop(
        self, session_id: str, execution_id: str | None, transition: Transition, *, by: str | None = None
    ) -> ActionResult:
        """End an execution: at once when nothing runs, else by asking whoever runs it.

        Args:
            by: Who asks, for the event `stop_requested`; None: nobody said, and there is no such event.
        Returns:
            "changed" when it has ended, "queued" when the running step was asked, "again" when nothing ran.
        """
        scope = self._context.session(session_id)
        stopping = _Stop(scope=scope, execution_id=execution_id, transition=transition, by=by)
        return scope.retry(stopping.run, purpose="be stopped", lost_replies=LOST_REPLIES)


@dataclass(slots=True)
class _Stop:
    """One stop and its attempts.

    Attributes:
        written: What the last attempt wrote, perhaps: its reply was lost. Set before it is written.
    """

    scope: SessionScope
    execution_id: str | None
    transition: Transition
    by: str | None = None
    written: ActionResult | None = None

    def run(self) -> ActionResult:
        """Make one attempt."""
        try:
            return self._stop()
        except Changed:
            self.written = None
            raise

    def _stop(self) -> ActionResult:
        scope, keys = self.scope, self.scope.keys
        reads: list[Command] = [
            *WatchedSession.reads(scope),
            ("HGET", keys.ctl, "worker"),
            ("LRANGE", keys.inbox, 0, -1),
        ]
        with scope.database.watch("stop.read", (keys.session, keys.ctl, keys.inbox), reads) as watched:
            *session, worker, entries = watched.replies
            found = WatchedSession.parse(scope, session)
            control = found.control
            wanted = self.written.execution_id if self.written is not None else self.execution_id
            if control.phase == "end" or (wanted is not None and control.execution != wanted):
                return self.written or ActionResult("again", control.execution, found.version)
            is_alive = scope.is_lease_alive(control.claim, "stop.lease", watched)
            # Watched, so that a worker that was only paused cannot begin something between this look and the end.
            (journal,) = watched.pipeline("stop.journal", [("HGETALL", found.journal)], also=(found.journal,))
            if is_alive or read_journal(journal).was_paid_for or control.phase == "wait":
                return self._ask(found, fields.text(worker) if is_alive else None, watched)
            return self._end(found, entries, watched)

    def _ask(self, found: WatchedSession, worker: str | None, watched: WatchedTransaction) -> ActionResult:
        """Ask for the stop: the worker that has the step, or the next one, commits what there is and ends.

        Args:
            worker: The worker whose lease is alive; None: nobody has the step, and its message is sent again.
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
        watched.commit("stop.ask", [*commands, *self._request_event(found)])
        return self.written

    def _end(self, found: WatchedSession, entries: list[bytes], watched: WatchedTransaction) -> ActionResult:
        """End an execution whose step nobody has begun."""
        execution_id = found.control.execution
        before = found.load_state(watched)
        inbox = read_inbox(entries, found.bookkeeping.operations)
        next_state = self.transition(
            Snapshot(
                state=before,
                inbox=inbox,
                entries=len(entries),
                now_ms=found.now_ms,
                cancel=execution_id,
                is_child=found.bookkeeping.parent is not None,
            )
        )
        save = found.prepare_save(before, next_state)
        trim = trim_commands(self.scope.keys, len(entries), next_state.operations)
        # A claim that came to nothing has left its traces in the journal.
        expire: Command = ("PEXPIRE", found.journal, self.scope.context.journal_ms)
        control = found.control
        forgotten = forget_waiting(self.scope.keys, legs=control.legs, held=control.hold is not None)
        publish = None if save.is_published else save.next
        parent_answer = self._tell_parent(found, next_state, watched)
        publish = parent_answer.publish if parent_answer is not None else publish
        self.written = ActionResult(
            outcome="changed", execution_id=execution_id, version=found.version + 1, publish=publish
        )
        waited = end_waiting(self.scope, control)
        commands = [*self._request_event(found), *trim, expire, *save.commands, *forgotten, *waited]
        commands += parent_answer.commands if parent_answer is not None else ()
        watched.commit("stop.exec", commands)
        return self.written

    def _tell_parent(
        self, found: WatchedSession, next_state: NextState, watched: WatchedTransaction
    ) -> ParentAnswer | None:
        """The answer to the parent of a child that ends here; None where no child ends."""
        link, ended = found.bookkeeping.link, ended_state(next_state)
        if link is None or ended is None:
            return None
        return answer_parent(self.scope, link, ended, found.now_ms, watched)

    def _request_event(self, found: WatchedSession) -> list[Command]:
        return [] if self.by is None else tell(self.scope, found.step, EventType.STOP_REQUESTED, {"by": self.by})
