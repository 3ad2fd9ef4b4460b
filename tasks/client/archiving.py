"""The verbs of a client that look after the archive."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from ...worker.archive.rows import ArchiveFacts, FoundSession, Search
from ...worker.errors import ConfigurationError, SessionNotFound, StateUnreadable, StoreFull, StoreUnavailable
from ...worker.redaction import describe_exception
from ...worker.store.archiving.moving import Archiver, MoveOutcome
from ...worker.store.archiving.reaching import ArchivedSessions
from ...worker.store.keys import ShardKeys
from ...worker.store.labels import check_labels
from ...worker.store.store import SessionActions
from .connection import ClientConnection
from .inputs import check_agent_name, read_time_ms

_ALL: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRun:
    """The outcome of a run of `archive_now`.

    Attributes:
        moved: How many sessions it has moved.
        later: How many have changed just now, or have a row of an earlier state, which is kept for another minute.
        unreadable: Sessions that cannot be read and stay in Redis, each with the reason.
    """

    moved: int = 0
    later: int = 0
    unreadable: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return asdict(self) | {"unreadable": dict(self.unreadable)}


class ArchivingVerbs(ClientConnection):
    """Moves sessions to the archive at once, counts what it holds, and exports it."""

    def archive_now(self, *, older_than: timedelta | None = None) -> ArchiveRun:
        """Move the sessions that have ended to the archive, without waiting for the workers to do so.

        Args:
            older_than: Those that were last changed so long ago. None: `CELERY_AGENTS_ARCHIVE_AFTER_SECONDS`.
        Raises:
            ConfigurationError: There is no archive.
            ArchiveUnavailable: It does not answer. What was not moved is in Redis.
        """
        self._archived()
        archiver = self.store.archiver
        assert archiver is not None
        seconds = self.settings.archive_after_seconds if older_than is None else older_than.total_seconds()
        until_ms = self._now_ms() - seconds * 1000
        moved, unreadable, later = 0, dict[str, str](), set[str]()
        archiver.finish_pending()
        for shard in self.store.context.shards:
            while count := _move_all(archiver, shard, until_ms, later, unreadable):  # children go after their parent
                moved += count
        return ArchiveRun(moved=moved, later=len(later), unreadable=unreadable)

    def archive_status(self) -> ArchiveFacts:
        """Count what the archive holds.

        Raises:
            ConfigurationError: There is no archive.
            ArchiveUnavailable: It does not answer.
        """
        return self._archived().archive.facts()

    def export_archive(
        self,
        *,
        agent: str | None = None,
        label: Mapping[str, str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Generator[dict[str, Any]]:
        """Read whole sessions from the archive as JSON values, the one that was changed last first.

        Behind them come those whose ids others have by now, after Redis had lost them: as `<id>@<created_ms>`.

        Args:
            agent: Only this agent's.
            label: Only those with all of these labels.
            since, until: Only those that were changed last at these times or between them.
        Yields:
            For each session its id, facts, state, results and events; `problem` in place of the last three where its
            document is damaged.
        Raises:
            ConfigurationError: There is no archive.
            ArchiveUnavailable: It does not answer.
        """
        if agent is not None:
            check_agent_name(agent)
        archived = self._archived()
        wanted = Search(
            agent=agent,
            labels=check_labels(label, "label"),
            since_ms=read_time_ms("since", since, may_be_far=True),
            until_ms=read_time_ms("until", until, may_be_far=True),
        )
        for row in archived.search(wanted):
            yield self._export(row, self.store.sessions)
        for row in archived.earlier(wanted):
            try:
                yield self._export(row, SessionActions(archived.open_row(row)), row.session.key.name)
            except (StateUnreadable, SessionNotFound) as error:
                yield _facts_of(row, row.session.key.name) | {"problem": str(error)}

    def _archived(self) -> ArchivedSessions:
        if self.store.archived is None:
            raise ConfigurationError(
                "there is no archive here: set CELERY_AGENTS_ARCHIVE_URL, such as sqlite:///history.db or "
                "postgresql://user:password@host/database"
            )
        return self.store.archived

    def _export(self, row: FoundSession, sessions: SessionActions, shown: str = "") -> dict[str, Any]:
        name = row.session.key.session_id
        facts = _facts_of(row, shown or name)
        try:
            return facts | {
                "state": sessions.load(name).state.to_dict(),
                "results": [each.to_dict() for each in sessions.records(name)],
                "events": [asdict(each) for each in sessions.events(name, limit=_ALL)],
            }
        except (StateUnreadable, SessionNotFound) as error:
            return facts | {"problem": str(error)}


def _facts_of(row: FoundSession, name: str) -> dict[str, Any]:
    session = row.session
    return {
        "session_id": name,
        "agent": session.agent,
        "status": session.status,
        "created_ms": session.key.created_ms,
        "updated_ms": session.updated_ms,
        "labels": dict(session.labels),
        "parent_id": session.parent_id or None,
        "forked_from": session.forked_from or None,
    }


def _move_all(
    archiver: Archiver, shard: ShardKeys, until_ms: float, later: set[str], unreadable: dict[str, str]
) -> int:
    """Move the sessions of a shard once, and note those that stay for now; returns how many moved."""
    moved = 0
    behind: float | None = -1.0
    while behind is not None:
        found, behind = archiver.find_ended(shard, behind_ms=behind, until_ms=until_ms)
        for session_id in found:
            if session_id in later or session_id in unreadable:
                continue
            try:
                outcome = archiver.move(session_id)
            except (StoreUnavailable, StoreFull):
                raise
            except Exception as error:  # noqa: BLE001 - of damaged data: it keeps no other session from moving
                unreadable[session_id] = describe_exception(error).message
                continue
            moved += outcome is MoveOutcome.MOVED
            if outcome is MoveOutcome.LATER:
                later.add(session_id)
    return moved
