"""The actions of clients on sessions, and their reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..context import StoreContext
from ..event_records import Event
from ..records import ActionResult, NextState, Operation, Transition
from ..session_records import Header, Result, SessionSummary, StepFacts
from . import (
    acting,
    deleting,
    failed_sinks,
    holding,
    loading,
    reads,
    retrying,
    step_facts,
    stopping,
    submitting,
    whole_sessions,
)
from .whole_sessions import Saved, WholeSession


class SessionActions:
    """Actions on sessions. Each runs in one transaction and carries an operation id, so that it is applied once."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context

    def submit(
        self,
        session_id: str,
        agent: str,
        fingerprint: str,
        transition: Callable[[int], NextState],
        *,
        queue: str | None = "",
        start_at_ms: int = 0,
    ) -> ActionResult:
        """Create a session with its first execution, once.

        Args:
            fingerprint: A digest of everything that is submitted; the same id with another one is refused.
            transition: Makes the session's first state of Redis's time (ms).
            queue: Name of the agent's queue; "" is the common one. None: no worker has registered the agent. Then the
                session gets no message, and waits for a worker that registers it.
            start_at_ms: The first step begins at this Redis time; 0, or a time that has passed: at once.
        Returns:
            "started", or "again" with the first execution when this was submitted before.
        Raises:
            IdempotencyMismatch: The session exists and was submitted with something else.
            InvalidInput: `start_at_ms` is no time.
            StoreFull: Nothing was written.
        """
        submission = submitting.Submission(
            scope=self._context.session(session_id),
            agent=agent,
            fingerprint=fingerprint,
            transition=transition,
            queue=queue,
            start_at_ms=start_at_ms,
        )
        return submitting.submit(submission)

    def create(self, session_id: str, session: WholeSession, *, queue: str | None = "") -> Saved:
        """Store a new session, as the session runtime has it, as version 1; once.

        Args:
            queue: Name of the agent's queue, as for `submit`.
        Raises:
            SessionConflict: The session exists; the error names both versions.
            SessionDeleted: A session of this id was deleted, and its mark is still there.
            StoreFull: Nothing was written.
        """
        return whole_sessions.create(self._context, session_id, session, queue)

    def save(self, session_id: str, session: WholeSession) -> Saved:
        """Store the next version of a session of which no execution runs or waits.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
            SessionConflict: It was saved since it was read; the error names both versions. Nothing was written.
            ActionRefused: An execution runs or waits; nothing was written.
        """
        return whole_sessions.save(self._context, session_id, session)

    def whole(self, session_id: str) -> WholeSession:
        """Read a session with status, definition and origin, at one version.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
            StateUnreadable: A part of it cannot be read.
        """
        return whole_sessions.read(self._context, session_id)

    def fork(self, session_id: str, fork_id: str, *, version: int | None = None) -> Saved:
        """Copy a session at its last commit under an id below its root. Nothing of its execution is copied.

        Args:
            version: The version that the session must have; None: any.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            SessionConflict: It has another version, or the id of the fork is used already. Nothing was written.
            StateUnreadable: A part of the session cannot be read.
        """
        return whole_sessions.fork(self._context, session_id, fork_id, version)

    def act(self, session_id: str, operation: Operation, transition: Transition) -> ActionResult:
        """Apply an operation once: now, or by the commit of the step that is running.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
            ActionRefused: The running step has too many messages waiting.
        """
        return acting.act(self._context, session_id, operation, transition)

    def stop(
        self, session_id: str, execution_id: str | None, transition: Transition, *, by: str | None = None
    ) -> ActionResult:
        """End an execution: at once when nothing runs, else by asking whoever runs it.

        Args:
            by: Who asks, for the event `stop_requested`; None: nobody said, and there is no such event.
        Returns:
            "changed" when it has ended, "queued" when the running step was asked, "again" when nothing ran.
        """
        return stopping.stop(self._context, session_id, execution_id, transition, by=by)

    def suspend(self, session_id: str, *, reason: str, by: str = "", until_ms: int | None = None) -> ActionResult:
        """Hold a session: its running step is committed, and nothing begins after it until somebody resumes it.

        Answers to its requests are recorded and do not wake it. A stop ends it all the same.

        Args:
            until_ms: Redis time at which the hold ends by itself, and the execution with it. None: in 30 days. Never
                later than the deadline of the execution.
        Returns:
            "changed", or "again" when it is held already; then the first hold stays.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            ActionRefused: No execution of it runs or waits, it is parked, or it is being stopped.
            InvalidInput: `reason` or `by` is no text of at most 1000 characters.
        """
        return holding.suspend(self._context, session_id, holding.HoldRequest(reason, by, until_ms))

    def resume(self, session_id: str, *, by: str = "") -> ActionResult:
        """End the hold of a session, and wake it; a session that waits for requests looks at them again.

        Returns:
            "changed", or "again" when it was not held.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
        """
        return holding.resume(self._context, session_id, by)

    def retry(self, session_id: str, transition: Transition, *, by: str | None = None) -> ActionResult:
        """Continue an execution that has failed or was stopped; `transition` refuses any other.

        Args:
            by: Who asks, for the event of a parked session; None: nobody said.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            ActionRefused: Raised by `transition`; nothing was changed.
        """
        return retrying.retry(self._context, session_id, transition, by=by)

    def delete(self, session_id: str, *, version: int | None = None) -> ActionResult:
        """Delete everything of a session of which no execution runs or waits; callbacks not made yet are not made.

        A mark stays for the retention (30 days where sessions stay for ever): as long as it is there, the id is not
        used again. A parked child answers its parent. Sessions below this one stay as they are.

        Args:
            version: The version that the session must have; None: any.
        Returns:
            "changed", or "again" when it had been deleted before.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            ActionRefused: An execution of it runs or waits; nothing was deleted.
            SessionConflict: It has another version; nothing was deleted.
        """
        return deleting.delete(self._context, session_id, version=version)

    def load(self, session_id: str) -> loading.StoredSession:
        """Read the session in full."""
        return loading.load(self._context, session_id)

    def header(self, session_id: str) -> Header:
        """Read what a listing shows of a session."""
        return reads.header(self._context, session_id)

    def step_facts(self, session_id: str) -> StepFacts:
        """Read what the session's next step waits for.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
            StateUnreadable: Its control fields are damaged.
        """
        return step_facts.step_facts(self._context, session_id)

    def waiting_operations(self, session_id: str) -> tuple[Operation, ...]:
        """Read the messages and changes that wait for the step that runs, the oldest first."""
        return reads.waiting_operations(self._context, session_id)

    def latest_events(self, session_id: str, limit: int = 10) -> list[Event]:
        """Read the newest events, the oldest of them first."""
        return reads.latest_events(self._context, session_id, limit)

    def summaries(self, session_ids: Sequence[str]) -> dict[str, SessionSummary]:
        """Read first message, steps and cost of sessions, by id; those that cannot be read are left out."""
        return reads.summaries(self._context, session_ids)

    def find_matching(self, prefix: str, limit: int = 10) -> list[str]:
        """Find sessions whose id begins with this text, in the listing of all sessions; at most `limit`."""
        return reads.find_matching(self._context, prefix, limit)

    def headers(
        self,
        *,
        index: str = "sessions",
        newest_ms: int | None = None,
        oldest_ms: int | None = None,
        limit: int = 50,
        status: str | None = None,
    ) -> tuple[list[Header], int | None]:
        """Read a page of sessions, newest first, and where the next page begins.

        Args:
            limit: Most sessions that are looked at.
            status: Only those with this status; the page may be empty where others follow. None: all.
        """
        return reads.headers(
            self._context, index=index, newest_ms=newest_ms, oldest_ms=oldest_ms, limit=limit, status=status
        )

    def definition(self, session_id: str) -> dict[str, Any]:
        """Read the agent's definition that is stored with the session."""
        return reads.definition(self._context, session_id)

    def record(self, session_id: str, execution_id: str) -> Result | None:
        """Read how an execution ended last, whether it was retried since or not; None when it never has."""
        return reads.record(self._context, session_id, execution_id)

    def records(self, session_id: str) -> list[Result]:
        """Read how the executions that are kept have ended, the oldest first."""
        return reads.records(self._context, session_id)

    def note_failed_sinks(self, session_id: str, execution_id: str, failed: Mapping[str, str]) -> bool:
        """Store why sinks have failed at the trace of an execution that has ended; see `failed_sinks`."""
        return failed_sinks.note_failed_sinks(self._context, session_id, execution_id, failed)

    def read_failed_sinks(self, session_id: str, execution_id: str) -> dict[str, str]:
        """Read why sinks have failed at the trace of an execution, by their names."""
        return failed_sinks.read_failed_sinks(self._context, session_id, execution_id)

    def read_joined(self, session_id: str, operation_id: str) -> str:
        """Read which execution a message has joined; "" while it waits behind a running step."""
        return reads.read_joined(self._context, session_id, operation_id)

    def outcome(self, session_id: str, execution_id: str) -> Result | None:
        """Read how an execution ended; None while it has not, or goes on after a retry."""
        return reads.outcome(self._context, session_id, execution_id)

    def events(self, session_id: str, after: str | None = None, limit: int = 1000) -> list[Event]:
        """Read stored events after an event id."""
        return reads.events(self._context, session_id, after, limit)

    def watch(self, session_id: str, after: str, block_ms: int) -> list[Event]:
        """Read events after an event id ("0": all, "$": those to come); wait no longer than `block_ms` for one."""
        return reads.watch(self._context, session_id, after, block_ms)

    def watch_many(self, positions: Mapping[str, str], block_ms: int) -> dict[str, list[Event]]:
        """Read events of several sessions, each after an event id; wait no longer than `block_ms` for the first."""
        return reads.watch_many(self._context, positions, block_ms)
