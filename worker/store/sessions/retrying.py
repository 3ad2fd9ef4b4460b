"""Continuing an execution that failed, was stopped or was parked."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ...errors import ActionRefused
from ...unique import unique_hex
from ..context import SessionScope, StorePart
from ..control import QUEUE_HELD
from ..database import Command, WatchedTransaction
from ..event_records import EventType
from ..events import tell
from ..records import ActionResult, Snapshot, StepRef, Transition
from ..waking import end_waiting, wake
from .watched_sessions import WatchedSession


class RetryVerbs(StorePart):
    """Continuing an execution."""

    def retry(
        self, session_id: str, transition: Transition, *, by: str | None = None, has_budget: bool = False
    ) -> ActionResult:
        """Continue an execution that has failed or was stopped; `transition` refuses any other.

        Args:
            by: Who asks, for the event of a parked session; None: unknown.
            has_budget: The transition gives another budget: a parked session, which needs none, refuses it.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            ActionRefused: Raised by `transition`, or the session is parked; nothing was changed.
        """
        scope = self._context.session(session_id)
        return scope.act_once(_Retry(scope, transition, by, has_budget=has_budget).run, "be retried")


@dataclass(slots=True)
class _Retry:
    """One retry and its attempts.

    Attributes:
        written: What an attempt wrote, perhaps: its reply was lost.
        was_parked: The session was parked when the last attempt looked.
    """

    scope: SessionScope
    transition: Transition
    by: str | None = None
    has_budget: bool = field(default=False, kw_only=True)
    operation_id: str = field(default_factory=unique_hex)
    written: ActionResult | None = None
    was_parked: bool = False

    def run(self) -> ActionResult:
        """Make one attempt."""
        scope, keys = self.scope, self.scope.keys
        reads = WatchedSession.reads(scope)
        with scope.database.watch("retry.read", (keys.session, keys.ctl), reads) as watched:
            found = WatchedSession.parse(scope, watched.replies)
            is_parked = found.control.phase == "parked"
            is_applied = self.operation_id in found.bookkeeping.operations
            if self.written is not None and (is_applied or (self.was_parked and not is_parked)):
                return self.written
            self.was_parked = is_parked
            return self._unpark(found, watched) if is_parked else self._continue(found, watched)

    def _unpark(self, found: WatchedSession, watched: WatchedTransaction) -> ActionResult:
        """Let a parked session wait for the same step again."""
        if self.has_budget:
            raise ActionRefused(
                f"session {self.scope.session_id} is parked: its execution has not ended; "
                "change its budget (`change_budget`), which continues it, or retry it without one"
            )
        keys, hold = self.scope.keys, found.control.hold
        commands: list[Command] = [
            ("HSET", keys.ctl, "attempts", 0),
            ("HSET", keys.session, "status", "in_progress"),
            *(
                []
                if self.by is None
                else tell(self.scope, found.step, EventType.STEP_RETRIED, {"by": self.by, "parked": True})
            ),
            *end_waiting(self.scope, found.control),
        ]
        publish: StepRef | None = None
        if hold is not None and found.control.is_held(found.now_ms):
            commands += [
                ("HSET", keys.ctl, "phase", "run", "published", 0, "nudges", 0),
                ("ZADD", keys.shard.due, hold.until_ms, keys.session_id),
            ]
        else:
            woken = wake(self.scope, found.control, found.now_ms, {"cause": "retry"})
            commands, publish = [*commands, *woken.commands], woken.publish
        self.written = ActionResult(
            outcome="started",
            execution_id=found.control.execution,
            version=found.version,
            publish=publish,
        )
        watched.commit("retry.unpark", commands)
        return self.written

    def _continue(self, found: WatchedSession, watched: WatchedTransaction) -> ActionResult:
        """Continue an ended execution."""
        link = found.bookkeeping.link
        if link is not None:
            raise ActionRefused(
                f"session {self.scope.session_id} is a child of {link.session_id}, which has its result; "
                "retry the parent"
            )
        before = found.load_state(watched)
        next_state = self.transition(Snapshot(state=before, inbox=(), entries=0, now_ms=found.now_ms, cancel=None))
        next_state = replace(next_state, operations=(*next_state.operations, self.operation_id))
        save = found.prepare_save(before, next_state)
        # The step that is next keeps its journal; the one it ended at may be committed, and then its journal expires.
        due, journal = save.next, self.scope.keys.journal
        kept: list[Command] = [] if due is None else [("PERSIST", journal(due.execution_id, due.step))]
        self.written = ActionResult(
            outcome="started",
            execution_id=found.control.execution,
            version=found.version + 1,
            publish=None if save.is_published else save.next,
        )
        released: list[Command] = [("HDEL", self.scope.keys.ctl, QUEUE_HELD)] if found.control.queue_held else []
        watched.commit("retry.exec", [*save.commands, *kept, *released])
        return self.written
