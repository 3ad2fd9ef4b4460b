"""The verbs of a client that hold sessions and let them go on."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from datetime import datetime

from pydantic import Field

from ...worker.errors import InvalidInput, SessionConflict
from ...worker.state.values.ids import read_session_id
from ...worker.store.control import LONGEST_WAIT_MS
from ...worker.store.session_records import Header
from .inputs import check_caller, check_listing, read_time_ms
from .listing import Filter, iterate_headers
from .trees import ACTIVE, TreeVerbs
from .verbs import BY, Scope, verb


class HoldingVerbs(TreeVerbs):
    """Suspends and resumes sessions, one or many."""

    @verb(
        "POST", "/v1/sessions/{session_id}/suspend", "suspend_session", scope=Scope.STOP,
        body=("Suspend", "Why a session is held, and for how long."),
        http={
            "reason": Field(min_length=1, max_length=1000),
            "until": Field(description="When the hold ends, and the execution. None: in 30 days."),
            "by": BY,
        },
        task=("session_id", "reason", "by", "until"),
    )  # fmt: skip
    def suspend(
        self,
        session_id: str,
        *,
        reason: str,
        by: str | None = None,
        until: datetime | None = None,
        tree: bool = True,
    ) -> bool:
        """Hold a session: its running step ends, and nothing begins after it until it is resumed.

        Answers to its requests are kept and do not wake it. A stop ends it all the same. A session of which nothing
        runs becomes suspended: an execution that a message starts begins nothing before the resume.

        Args:
            reason: Shown where the session is shown to wait. Where nothing of it runs, neither this nor `by` is kept.
            by: Who asks.
            until: When the hold ends, and the execution with it, 30 days from now at most. None: in 30 days.
            tree: Hold the sessions that its agents have started, too.
        Returns:
            False when it was held before; then that hold stays.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            ActionRefused: It is parked, or it is being stopped.
            InvalidInput: `until` has no timezone, has passed, is too far away, or is given where nothing runs.
        """
        check_reason(reason)
        check_caller(by)
        until_ms = self._check_end_of_hold(until)
        session = read_session_id(session_id)

        outcome = self._hold(session, reason, by, until_ms, tree=tree)
        if outcome == "idle":
            if until is not None:
                raise InvalidInput(
                    "until", until.isoformat(), "nothing of the session runs that could end; leave it out."
                )
            return self._set_session_status(session, "suspended")
        return outcome == "changed"

    def _hold(
        self, session: str, reason: str, by: str | None, until_ms: int | None = None, *, tree: bool = True
    ) -> str:
        """Hold what runs or waits of a session, and of those below it; "idle" when nothing does."""

        def hold(each: str) -> str:
            return self.store.sessions.suspend(each, reason=reason, by=by or "", until_ms=until_ms).outcome

        outcome = hold(session)
        if tree and outcome != "idle":
            self._walk(session, hold)
        return outcome

    @verb(
        "POST", "/v1/sessions/{session_id}/resume", "resume_session", scope=Scope.STOP,
        body=("Resume", "The name of whoever lets a session go on."),
        http={"by": BY},
        task=("session_id", "by"),
    )  # fmt: skip
    def resume(self, session_id: str, *, by: str | None = None, tree: bool = True) -> bool:
        """Let a held session go on, with the answers that came meanwhile. A completed or failed one becomes active.

        Args:
            tree: Let the sessions that its agents have started go on, too.
        Returns:
            False when it was not held.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
        """
        check_caller(by)
        session = read_session_id(session_id)

        def let_go_on(each: str) -> str:
            result = self.store.sessions.resume(each, by=by or "")
            self._publish(result.publish)
            return result.outcome

        outcome = let_go_on(session)
        if tree:
            self._walk(session, let_go_on)
        return self._set_session_status(session, "active") if outcome == "idle" else outcome == "changed"

    def suspend_all(
        self,
        *,
        reason: str,
        agent: str | None = None,
        status: str | None = None,
        by: str | None = None,
        dry_run: bool = False,
    ) -> Generator[str]:
        """Hold all sessions whose execution runs or waits.

        Args:
            agent: Only this agent's.
            status: Only those that are pending, in_progress or waiting. None: all three.
            dry_run: Only yield the ids, hold none.
        Yields:
            The id of each session; it is held when its id is yielded.
        """
        check_reason(reason)
        check_caller(by)
        found = self._active_sessions(agent, status)
        return self._act_on_each(found, lambda each: self._hold(each.session_id, reason, by) == "changed", dry_run)

    def resume_all(
        self, *, agent: str | None = None, status: str | None = None, by: str | None = None, dry_run: bool = False
    ) -> Generator[str]:
        """Let all held sessions go on.

        Args:
            agent: Only this agent's.
            status: Only those that are pending, in_progress or waiting. None: all three.
            dry_run: Only yield the ids, resume none.
        Yields:
            The id of each session that was held; it goes on when its id is yielded.
        """
        check_caller(by)
        found = self._active_sessions(agent, status, held=True)
        return self._act_on_each(found, lambda each: self.resume(each.session_id, by=by), dry_run)

    def _check_end_of_hold(self, until: datetime | None) -> int | None:
        until_ms = read_time_ms("until", until)
        if until is not None and until_ms is not None and not 0 < until_ms - self._now_ms() <= LONGEST_WAIT_MS:
            advice = "a hold ends within 30 days; give a time to come before that, or None."
            raise InvalidInput("until", until.isoformat(), advice)
        return until_ms

    def _set_session_status(self, session_id: str, status: str) -> bool:
        """Change the status of a session of which nothing runs; False where it has this status already."""
        while True:
            stored = self.store.sessions.load(session_id)
            if stored.status == status:
                return False
            try:
                self.store.sessions.save(session_id, replace(stored, status=status))
            except SessionConflict:
                continue
            return True

    def _active_sessions(self, agent: str | None, status: str | None, *, held: bool = False) -> list[Header]:
        """The sessions that run or wait, and are held or not; the newest first."""
        check_listing(status, 1)
        if status is not None and status not in ACTIVE:
            raise InvalidInput("status", status, f"only sessions that are {', '.join(ACTIVE)} can be held.")
        return [
            header
            for header in iterate_headers(self.store, Filter(status=status, agent=agent), index="active")
            if header.status in ACTIVE and (header.hold is not None) == held
        ]


def check_reason(reason: object) -> None:
    """Check the reason of a hold."""
    if not isinstance(reason, str) or not reason.strip():
        raise InvalidInput("reason", reason, "say why it is held; it is shown wherever somebody asks.")
