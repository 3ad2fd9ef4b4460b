"""The actions of clients on sessions, and their reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..context import StoreContext
from ..records import ActionResult, Event, Header, NextState, Operation, Result, Transition
from . import acting, loading, reads, retrying, stopping, submitting


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
    ) -> ActionResult:
        """Create a session with its first execution, once.

        Args:
            fingerprint: A digest of everything that is submitted; the same id with another one is refused.
            transition: Makes the session's first state of Redis's time (ms).
        Returns:
            "started", or "again" with the first execution when this was submitted before.
        Raises:
            IdempotencyMismatch: The session exists and was submitted with something else.
            StoreFull: Nothing was written.
        """
        return submitting.submit(self._context, session_id, agent, fingerprint, transition)

    def act(self, session_id: str, operation: Operation, transition: Transition) -> ActionResult:
        """Apply an operation once: now, or by the commit of the step that is running.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
            ActionRefused: The running step has too many messages waiting.
        """
        return acting.act(self._context, session_id, operation, transition)

    def stop(self, session_id: str, execution_id: str | None, transition: Transition) -> ActionResult:
        """End an execution: at once when nothing runs, else by asking whoever runs it.

        Returns:
            "changed" when it has ended, "queued" when the running step was asked, "again" when nothing ran.
        """
        return stopping.stop(self._context, session_id, execution_id, transition)

    def retry(self, session_id: str, transition: Transition) -> ActionResult:
        """Continue an execution that has failed or was stopped; `transition` refuses any other.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
            ActionRefused: Raised by `transition`; nothing was changed.
        """
        return retrying.retry(self._context, session_id, transition)

    def load(self, session_id: str) -> loading.StoredSession:
        """Read the session in full."""
        return loading.load(self._context, session_id)

    def header(self, session_id: str) -> Header:
        """Read what a listing shows of a session."""
        return reads.header(self._context, session_id)

    def headers(
        self, *, index: str = "sessions", newest_ms: int | None = None, oldest_ms: int | None = None, limit: int = 50
    ) -> tuple[list[Header], int | None]:
        """Read a page of sessions, newest first, and where the next page begins."""
        return reads.headers(self._context, index=index, newest_ms=newest_ms, oldest_ms=oldest_ms, limit=limit)

    def definition(self, session_id: str) -> dict[str, Any]:
        """Read the agent's definition that is stored with the session."""
        return reads.definition(self._context, session_id)

    def record(self, session_id: str, execution_id: str) -> Result | None:
        """Read how an execution ended last, whether it was retried since or not; None when it never has."""
        return reads.record(self._context, session_id, execution_id)

    def outcome(self, session_id: str, execution_id: str) -> Result | None:
        """Read how an execution ended; None while it has not, or goes on after a retry."""
        return reads.outcome(self._context, session_id, execution_id)

    def events(self, session_id: str, after: str | None = None, limit: int = 1000) -> list[Event]:
        """Read stored events after an event id."""
        return reads.events(self._context, session_id, after, limit)

    def watch(self, session_id: str, after: str, block_ms: int) -> list[Event]:
        """Read events after an event id ("0": all, "$": those to come); wait no longer than `block_ms` for one."""
        return reads.watch(self._context, session_id, after, block_ms)
