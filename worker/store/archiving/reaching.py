"""Reaching sessions in the archive: verbs that read get them from there, verbs that act restore them first.

Redis is asked first. Where it has no session, but the mark of one, or nothing at all, the row decides: it is shown only
where it equals the mark. A session that has been restored is as it was, byte for byte.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from ... import crash_points
from ...archive.rows import CostBy, CostSum, FoundSession, Search, SessionKey
from ...errors import SessionArchived, SessionDeleted, SessionExpired, SessionNotFound, StateUnreadable
from ..context import SessionScope, StoreContext
from ..database import Command
from ..keys import archive_note
from ..session_records import Header, SessionSummary
from ..sessions.loading import ARCHIVED, MARK, missing_error
from .documents import Document, read_document
from .overlays import open_overlay

if TYPE_CHECKING:
    from ...archive.sql_archive import Archive

_MOST_OPEN: Final = 8
_MOST_OPEN_BYTES: Final = 64_000_000
_CHANGES: Final = 5
_PENDING: Final = 1_000


@dataclass(slots=True)
class ArchivedSessions:
    """The sessions of the archive, each checked against its mark in Redis."""

    context: StoreContext
    archive: Archive
    # Stores in memory that hold documents which were read lately, with the sizes of these.
    _open: OrderedDict[tuple[SessionKey, str], tuple[StoreContext, int]] = field(
        default_factory=OrderedDict[tuple[SessionKey, str], tuple[StoreContext, int]]
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, session_id: str, missing: SessionNotFound | None = None) -> StoreContext | None:
        """Open a store in memory that holds an archived session alone.

        Args:
            missing: Why it is not in Redis, where that is known.
        Returns:
            None: it is not in the archive, and was not. `context`: it was restored since Redis was asked.
        Raises:
            ArchiveUnavailable: The archive does not answer.
            StateUnreadable: Its document is damaged.
        """
        return self._with_row(session_id, missing, self._overlay, restored=lambda: self.context)

    def restore(self, session_id: str, missing: SessionNotFound | None = None) -> bool:
        """Write an archived session back to Redis; False where it is not in the archive."""
        scope = self.context.session(session_id)

        def restore(found: _Found) -> bool:
            document, _ = self._document(found)
            while (row := self.archive.row(found.key)) is not None and row.mark == found.mark:
                # Also where it is pending: a mover that makes it valid has seen another revision.
                if self.archive.make_pending(found.key, seen=row.revision):
                    break
            else:
                raise _Replaced
            scope.apply_once(lambda: _write_back(scope, found, document), "be restored")
            crash_points.at("a3")
            return True

        return self._with_row(session_id, missing, restore, restored=lambda: True) or False

    def put_mark(self, session_id: str) -> bool:
        """Put the mark of an archived session, whose life is over, back into Redis; False where there is no session.

        A session that was restored meanwhile needs none.
        """
        try:
            found = self._find(session_id, None)
        except _Restored:
            return True
        if found is None:
            return False
        scope = self.context.session(session_id)

        def attempt() -> None:
            reads: list[Command] = [("HMGET", scope.keys.session, "version", MARK)]
            with scope.database.watch("archive.unmarked", (scope.keys.session,), reads) as watched:
                if watched.replies[0] == [None, None]:
                    words = (MARK, found.key.created_ms, ARCHIVED, found.mark)
                    commands: list[Command] = [("HSET", scope.keys.session, *words)]
                    if self.context.retention_ms is not None:
                        commands.append(("PEXPIRE", scope.keys.session, self.context.retention_ms))
                    watched.commit("archive.marked", commands)

        scope.apply_once(attempt, "be marked")
        return True

    def document(self, session_id: str) -> Document | None:
        """The document of a session, wherever it is; None where there is none."""
        scope = self.context.session(session_id)
        pipeline = self.context.database.pipeline
        return read_document(scope, pipeline) or self._with_row(
            session_id, None, lambda found: self._document(found)[0], restored=lambda: read_document(scope, pipeline)
        )

    def search(self, wanted: Search) -> Iterator[FoundSession]:
        """Find sessions, newest first; without those that Redis has, or that were deleted."""
        return (each for archived, _ in self.pages(wanted) for each in archived)

    def pages(self, wanted: Search) -> Iterator[tuple[list[FoundSession], list[FoundSession]]]:
        """Find sessions in pages, newest first: those in the archive, and those that Redis has, as they once were."""
        return map(self._placed, self._pages(wanted))

    def earlier(self, wanted: Search) -> Iterator[FoundSession]:
        """Find sessions whose ids others have by now, after Redis had lost them; without those that were deleted.

        They have `SessionKey.name` as their name. No listing shows them, and no other verb reads them.
        """
        for page in self._pages(wanted):
            named = [(each.session.key, self.context.keys(each.session.key.session_id)) for each in page]
            reads: list[list[Command]] = [
                [("HGET", keys.session, MARK), ("ZSCORE", keys.shard.archive, _note_of(key))] for key, keys in named
            ]
            for found, reply in zip(page, self.context.read_apart("archive.earlier", reads), strict=True):
                created, deleted = (None, None) if isinstance(reply, StateUnreadable) else reply
                is_there = created is not None and created != str(found.session.key.created_ms).encode()
                if (is_there or not found.is_newest) and deleted is None:
                    yield found

    def delete_earlier(self, found: FoundSession) -> None:
        """Have a worker delete the row of such a session."""
        key, clock = found.session.key, self.context.clock
        (now,) = self.context.database.pipeline("archive.now", [clock.now()])
        due_ms = clock.milliseconds(now) + self.context.settle_ms
        note: Command = ("ZADD", self.context.keys(key.session_id).shard.archive, due_ms, _note_of(key))
        self.context.database.pipeline("archive.note", [note])

    def open_row(self, found: FoundSession) -> StoreContext:
        """Open a store in memory that holds the session of a row alone, under its id.

        Raises:
            SessionNotFound: The row has gone.
            StateUnreadable: Its document is damaged.
        """
        key = found.session.key
        _, stored = self.archive.document(key)
        return open_overlay(self.context, {key.session_id: Document.from_bytes(key.name, stored)})

    def below(self, root: str) -> list[FoundSession]:
        """The sessions whose ids are made of the id of a root: its children, and forks; also those restored since."""
        return [each for found in self._placed(self.archive.named(f"{root}.")) for each in found]

    def matching(self, prefix: str, limit: int) -> list[str]:
        """Ids that begin with this text; also those of sessions that were restored since."""
        rows = self._placed(self.archive.named(prefix, limit=limit))
        return [each.session.key.session_id for found in rows for each in found]

    def rows(self, session_ids: Sequence[str]) -> tuple[list[FoundSession], list[str]]:
        """The rows of sessions by their ids, and the ids of those that were restored since Redis was asked."""
        archived, restored = self._placed(self.archive.of_ids(session_ids) if session_ids else [])
        return archived, [each.session.key.session_id for each in restored]

    def costs(
        self, by: CostBy, label: str, since_ms: int | None, until_ms: int | None, *, counted: Set[str]
    ) -> list[CostSum]:
        """Add up what the sessions in the archive have cost.

        Args:
            counted: Ids of the sessions that were in Redis: they do not count, although they may have moved since.
                Others count, although they may have been restored since.
        """
        newest = self.archive.newest_place()  # sessions that move later are counted, or are too young
        without = self._pending_without(counted)
        without += self._moved(counted)
        without += self._pending_without(counted)  # those that were restored between the two
        return self.archive.costs(by, label=label, since_ms=since_ms, until_ms=until_ms, without=without, up_to=newest)

    def _moved(self, counted: Set[str]) -> list[int]:
        """Places of those that Redis does not have any more."""
        places, names = list[int](), sorted(counted)
        for first in range(0, len(names), _PENDING):
            part = names[first : first + _PENDING]
            reads: list[list[Command]] = [[("HGET", self.context.keys(each).session, "version")] for each in part]
            versions = self.context.read_apart("archive.counted", reads)
            moved = [name for name, version in zip(part, versions, strict=True) if version == [None]]
            places += [each.place for each in self.archive.of_ids(moved)] if moved else []
        return places

    def _pending_without(self, counted: Set[str]) -> list[int]:
        """Places of the pending rows of these sessions, and of those that were deleted."""
        hidden, place = list[int](), 0
        while pending := self.archive.pending(limit=_PENDING, after=place):
            placed = {each.place for found in self._placed(pending) for each in found}
            hidden += [
                each.place for each in pending if each.place not in placed or each.session.key.session_id in counted
            ]
            place = pending[-1].place
        return hidden

    def _pages(self, wanted: Search) -> Iterator[list[FoundSession]]:
        page = self.archive.search(wanted)
        yield list(page.sessions)
        while page.after is not None:
            page = self.archive.search(replace(wanted, after=page.after))
            yield list(page.sessions)

    def _placed(self, rows: Sequence[FoundSession]) -> tuple[list[FoundSession], list[FoundSession]]:
        """Choose the rows of sessions that are in the archive, and of those that Redis has.

        A deleted one is neither, also where its mark has gone and its row has not yet.
        """
        newest = [each for each in rows if each.is_newest]
        if not newest:
            return [], []
        named = [(each.session.key, self.context.keys(each.session.key.session_id)) for each in newest]
        reads: list[list[Command]] = [
            [("HMGET", keys.session, "version", MARK, ARCHIVED), ("ZSCORE", keys.shard.archive, _note_of(key))]
            for key, keys in named
        ]
        marks = zip(newest, self.context.read_apart("archive.marks", reads), strict=True)
        marked = [(each, *mark) for each, mark in marks if not isinstance(mark, StateUnreadable)]
        shown = [each for each, mark, deleted in marked if deleted is None and _is_shown(each, mark)]
        return shown, [each for each, (version, *_), _ in marked if version is not None]

    def _find(self, session_id: str, missing: SessionNotFound | None) -> _Found | None:
        """The row of a session that Redis does not hold.

        Raises:
            _Restored: Redis holds it, and did not some time before.
        """
        if missing is None:
            read: Command = ("HMGET", self.context.keys(session_id).session, "version", ARCHIVED)
            ((version, archived),) = self.context.database.pipeline("archive.there", [read])
            if version is not None and archived is not None:
                raise _Restored
            if version is not None:
                return None
            missing = missing_error(self.context, session_id)
        if isinstance(missing, SessionDeleted):
            return None
        if isinstance(missing, SessionArchived):
            return _Found(SessionKey(session_id, missing.created_ms), missing.mark)
        shown, restored = self._placed(self.archive.sessions_of(session_id, limit=1))
        if restored:
            raise _Restored
        return _Found(shown[0].session.key, shown[0].row.mark) if shown else None

    def _with_row(
        self,
        session_id: str,
        missing: SessionNotFound | None,
        use: Callable[[_Found], Any],
        *,
        restored: Callable[[], Any],
    ) -> Any:
        """Use the row of a session, again where it was replaced; None where it never was in the archive.

        Args:
            restored: Called in place of `use` where Redis has the session again.
        """
        for _ in range(_CHANGES):
            try:
                found = self._find(session_id, missing)
                return None if found is None else use(found)
            except _Restored:
                return restored()
            except _Replaced:
                missing = None
        if self.context.settings.archive_days is not None:
            raise SessionExpired(session_id)
        raise StateUnreadable(
            f"the row of session {session_id} in the archive",
            "Redis has its mark, and the archive another row or none; restore the archive from a backup",
        )

    def _overlay(self, found: _Found) -> StoreContext:
        place = (found.key, found.mark)
        with self._lock:
            known = self._open.get(place)
            if known is not None:
                self._open.move_to_end(place)
                return known[0]
        document, size = self._document(found)
        opened = open_overlay(self.context, {found.key.session_id: document})
        with self._lock:
            self._open[place] = opened, size
            while len(self._open) > 1 and (
                len(self._open) > _MOST_OPEN or sum(each for _, each in self._open.values()) > _MOST_OPEN_BYTES
            ):
                self._open.popitem(last=False)
        return opened

    def _document(self, found: _Found) -> tuple[Document, int]:
        """The document of a row, and its size."""
        try:
            row, stored = self.archive.document(found.key)
        except SessionNotFound:
            raise _Replaced from None
        if row.mark != found.mark:
            raise _Replaced
        return Document.from_bytes(found.key.session_id, stored), len(stored)


def _note_of(key: SessionKey) -> str:
    return archive_note(key.session_id, key.created_ms)


class _Restored(Exception):
    """Redis has the session again."""


class _Replaced(Exception):
    """The row is not the one that a mark has named."""


def _write_back(scope: SessionScope, found: _Found, document: Document) -> None:
    """Write a session back, only where Redis holds its mark, or nothing."""
    keys = scope.keys
    reads: list[Command] = [("HMGET", keys.session, "version", MARK, ARCHIVED)]
    with scope.database.watch("restore.read", (keys.session,), reads) as watched:
        version, created, archived = watched.replies[0]
        if version is not None:
            return  # another client has restored it
        if created is not None and archived is None:
            raise SessionDeleted(scope.session_id)
        if archived is not None and archived != found.mark.encode():
            raise _Replaced
        mark: Command = ("HSET", keys.session, ARCHIVED, found.mark)
        watched.commit("restore.exec", [*document.write_commands(keys), mark, ("PERSIST", keys.session)])


def _is_shown(row: FoundSession, stored: Sequence[bytes | None]) -> bool:
    version, created, archived = stored
    if version is not None:
        return False
    return created is None if archived is None else archived == row.row.mark.encode()


def header_of(row: FoundSession) -> Header:
    """Make the header of a session in the archive."""
    session = row.session
    return Header(
        session_id=session.key.session_id,
        agent=session.agent,
        status=session.status,
        execution_id=session.execution_id,
        step=session.steps,
        version=session.version,
        created_ms=session.key.created_ms,
        updated_ms=session.updated_ms,
        forked_from=session.forked_from,
        labels=session.labels,
        is_archived=True,
    )


def summary_of(row: FoundSession) -> SessionSummary:
    """Make its summary."""
    session = row.session
    return SessionSummary(
        first_message=session.first_words, steps=session.steps, tokens=session.tokens, cost=session.cost
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """The row that is the session's."""

    key: SessionKey
    mark: str
