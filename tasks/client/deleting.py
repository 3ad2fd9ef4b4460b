"""The verbs of a client that delete sessions, one or many."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator
from datetime import datetime
from typing import Final

from ...worker.engine.transitions import stop_transition
from ...worker.errors import (
    ActionRefused,
    InvalidInput,
    SessionConflict,
    SessionDeleted,
    SessionNotFound,
    StateUnreadable,
)
from ...worker.state.values.ids import read_session_id
from ...worker.store.keys import root_of
from ...worker.store.session_records import Header
from .inputs import TIME_ADVICE, check_agent_name, check_caller, check_listing, check_seconds, read_time_ms
from .listing import Filter, iterate_all
from .trees import ACTIVE, TreeVerbs
from .verbs import verb

_DELETE_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.05


class DeletingVerbs(TreeVerbs):
    """Deletes sessions with everything that is stored of them."""

    # A worker has few slots for control tasks, so a task waits no longer than this; then it comes again.
    @verb(task=("session_id", "expected_version", "by"), task_gives={"timeout": 2.0})
    def delete(
        self,
        session_id: str,
        *,
        expected_version: int | None = None,
        timeout: float | None = _DELETE_SECONDS,
        by: str | None = None,
    ) -> bool:
        """Delete a session and the sessions that its agents have started; what of them still runs is stopped first.

        Callbacks that were not made yet are not made. The id of the session is not used again for the retention.

        Args:
            expected_version: The version that the session must have; one that runs is refused then. None: any.
            timeout: Seconds to wait for what runs; None: as long as it takes.
            by: Who asks; kept with the stop of what runs, and nowhere after it.
        Returns:
            False when it had been deleted before.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            SessionConflict: It has another version; nothing was deleted.
            ActionRefused: A version is expected, and an execution of the session runs or waits.
            TimeoutError: The execution has not ended yet. It will be stopped; delete the session again then.
        """
        check_seconds(timeout)
        check_caller(by)
        session = read_session_id(session_id)
        deadline = None if timeout is None else time.monotonic() + timeout
        if expected_version is not None:
            with contextlib.suppress(SessionDeleted):  # a deletion that was cut short has left what is below
                self._check_version(session, expected_version)
            self._wait_for_ends(self._stop_below(session, by), deadline)
        else:
            self._end_tree(session, by, deadline)
        below, changed = self._members_below(session), False
        if expected_version is not None:  # before the others: where it has another version, nothing is deleted
            changed = self.store.sessions.delete(session, version=expected_version).outcome == "changed"
        for each in reversed(below):
            self._delete_one(each, by, deadline)
        return changed if expected_version is not None else self._delete_one(session, by, deadline)

    def delete_all(
        self,
        *,
        before: datetime,
        agent: str | None = None,
        status: str | None = None,
        by: str | None = None,
        dry_run: bool = False,
    ) -> Generator[str]:
        """Delete all sessions that ended before a time. Children go with the session that has started them.

        One that has changed when its turn comes is left.

        Args:
            before: Only sessions that were changed last before this time.
            agent: Only this agent's.
            status: Only those that are completed, stopped, failed, parked or unreadable. None: all of these.
            dry_run: Only yield the ids, delete none.
        Yields:
            The id of each session; it is deleted when its id is yielded.
        Raises:
            InvalidInput: An argument cannot be used, such as the status of sessions that run.
        """
        before_ms = read_time_ms("before", before, may_be_far=True)
        if before_ms is None:
            raise InvalidInput("before", None, TIME_ADVICE)
        if agent is not None:
            check_agent_name(agent)
        check_listing(status, 1)
        if status in ACTIVE:
            raise InvalidInput("status", status, "these sessions run or wait; stop them, and delete them then.")
        check_caller(by)
        chosen = self._ended_before(before_ms, agent, status)
        return self._act_on_each(chosen, lambda each: self._delete_found(each, by), dry_run)

    def _delete_found(self, found: Header, by: str | None) -> bool:
        """Delete a session as it was found, not one that has gone on since."""
        return self.delete(found.session_id, expected_version=None if found.problem else found.version, by=by)

    def _ended_before(self, before_ms: int, agent: str | None, status: str | None) -> Generator[Header]:
        wanted = Filter(status=status, agent=agent, newest_ms=before_ms - 1)
        for header in list(iterate_all(self.store, wanted)):
            if header.status not in ACTIVE and not self._is_child(header):
                yield header

    def _is_child(self, header: Header) -> bool:
        """Whether it belongs to a session that has started it, and that is still there."""
        session = header.session_id
        try:
            link = self.store.trees.link(session) if root_of(session) != session else None
            return link is not None and bool(self.store.sessions.header(link.session_id))
        except SessionNotFound:
            return False
        except StateUnreadable:  # nobody knows whose it is
            return True

    def _check_version(self, session: str, expected: int) -> None:
        header = self.store.sessions.header(session)
        if header.version != expected:
            raise SessionConflict(
                f"session {session} is at version {header.version}, and the request names version {expected}; "
                "look at it again before it is deleted",
                expected=expected,
                stored=header.version,
            )
        if header.status in ACTIVE:
            raise ActionRefused(
                f"an execution of session {session} runs or waits; stop it, and delete the session then"
            )

    def _end_tree(self, session: str, by: str | None, deadline: float | None) -> None:
        """Stop what runs of a session and of those below it, and wait until it has ended."""
        if self._is_active(session):
            self._publish(self.store.sessions.stop(session, None, stop_transition, by=by).publish)
        self._wait_for_ends({session, *self._stop_below(session, by)}, deadline)

    def _members_below(self, session: str) -> list[str]:
        """Ids of the sessions below one, parents first; also of one that is not there any more."""
        return [header.session_id for header in self.store.trees.below(session)]

    def _delete_one(self, session: str, by: str | None, deadline: float | None) -> bool:
        """Delete a session; what has begun since it was stopped is stopped again."""
        while True:
            try:
                applied = self.store.sessions.delete(session)
            except ActionRefused:
                self._end_tree(session, by, deadline)
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError(f"session {session} has not ended in time, and was not deleted") from None
                time.sleep(_PAUSE_SECONDS)
                continue
            self._publish(applied.publish)
            return applied.outcome == "changed"
