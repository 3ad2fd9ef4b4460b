"""Moving sessions that ended long ago to the archive, and finishing what another worker has begun.

    read the session, then the row's revision
    store the document as a pending row, where the row still has that revision      a0
    WATCH every key of the session · all as in the document? · MULTI remove all
    but the mark · EXEC                                                             a1
    give the mark its life                                                          a2
    make the row valid

A row is replaced only when this process has seen the same other session in Redis, and the same row, for `settle_ms`,
and the session once more behind the row: then no failover or restart brings back a state that refers to the row, it is
no row of a quicker worker, and no slow worker is about to remove a session whose row this is, since each removes within
`_REMOVE_SECONDS`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from ... import crash_points
from ...archive.rows import FoundSession, RowState, SessionKey
from ...errors import StateUnreadable
from ...moments import LAST_MS
from .. import fields
from ..bookkeeping import read_link
from ..context import SessionScope, StoreContext
from ..database import Changed, Command
from ..keys import ShardKeys, archive_note
from ..session_records import SESSION_STATUS, SUSPENDED
from ..sessions.archive_marks import ArchiveMark
from ..sessions.loading import ARCHIVED, MARK
from ..sessions.removing import RemovableSession
from .documents import Document, read_document
from .facts import entry_of

if TYPE_CHECKING:
    from ...archive.sql_archive import Archive

_REMOVE_SECONDS: Final = 10.0
_BATCH: Final = 200
_PENDING: Final = 1_000
_DAY_MS: Final = 86_400_000
_TOMBSTONE_MS: Final = 30 * _DAY_MS
_MOST_OBSERVED: Final = 10_000


class MoveOutcome(StrEnum):
    """The outcome for a session that was to move.

    Attributes:
        MOVED: It is in the archive, and no more in Redis.
        STAYS: It runs, waits, is held or parked, has a callback to make, its parent is in Redis, or it is gone.
        LATER: Its row is of an earlier state, and may be replaced in a minute; or the session has just changed.
        DELETED: The archive says that it was deleted, although it is in Redis.
    """

    MOVED = "moved"
    STAYS = "stays"
    LATER = "later"
    DELETED = "deleted"


@dataclass(slots=True)
class _Observed:
    """A session and its row as they were seen, and since when (`time.monotonic()`)."""

    revision: int
    mark: str
    since: float


@dataclass(slots=True)
class Archiver:
    """Moves sessions to the archive. One worker at a time does so for a shard; two do no harm."""

    context: StoreContext
    archive: Archive
    _observed: dict[SessionKey, _Observed] = field(default_factory=dict[SessionKey, _Observed])

    def find_ended(
        self, shard: ShardKeys, *, behind_ms: float, until_ms: float
    ) -> tuple[dict[str, float], float | None]:
        """Find sessions that may move, by their last change; some of them stay all the same.

        Args:
            behind_ms: Begin behind this time.
            until_ms: Changed last at this time, or before (Redis ms).
        Returns:
            The times of their last changes by their ids, the oldest first; and where the next search begins. None:
            there are no more.
        """
        read: Command = (
            "ZRANGEBYSCORE", shard.sessions, f"({behind_ms}", until_ms, "WITHSCORES", "LIMIT", 0, _BATCH,
        )  # fmt: skip
        (found,) = self.context.database.pipeline("archive.find", [read])
        times = {fields.name(member): float(at) for member, at in zip(found[::2], found[1::2], strict=True)}
        ended = {name: times[name] for name in self._choose_ended(shard, list(times))}
        return ended, float(found[-1]) if len(times) == _BATCH else None

    def move(self, session_id: str) -> MoveOutcome:
        """Move a session, if it has ended and nothing waits for it.

        Raises:
            StateUnreadable: It cannot be read; nothing was written.
            ArchiveUnavailable, StoreUnavailable: It may have been moved; move it again.
        """
        scope = self.context.session(session_id)
        document = read_document(scope, self.context.database.pipeline)
        if document is None or not self._may_move(scope, document):
            return MoveOutcome.STAYS
        stored = document.to_bytes()
        mark = _mark_of(document, stored)
        key = SessionKey(session_id, document.created_ms)
        row, began = self.archive.row(key), time.monotonic()
        if row is not None and row.state is RowState.TOMBSTONE:
            return MoveOutcome.DELETED
        revision = None if row is None or row.mark != mark.text else row.revision
        if revision is None:
            if row is not None and not self._is_settled(scope, key, row.revision, mark):
                return MoveOutcome.LATER
            entry = entry_of(self.context, key, document, stored, mark, self._forgotten_at(document))
            revision = self.archive.store(entry, seen=0 if row is None else row.revision)
            self._observed.pop(key, None)
            if revision is None:
                return MoveOutcome.LATER
        crash_points.at("a0")
        if not self._remove(scope, document, stored, mark, began):
            return MoveOutcome.LATER
        crash_points.at("a1")
        self._finish(scope, key, mark.text, revision, self._forgotten_at(document))
        return MoveOutcome.MOVED

    def keep(self, shard: ShardKeys) -> int:
        """Take the time to live from sessions that a process without the archive's URL has ended; how many."""
        total, place = 0, 0
        while True:
            read: Command = ("ZRANGE", shard.ending, place, place + _BATCH - 1)
            (ending,) = self.context.database.pipeline("archive.ending", [read])
            if not ending:
                return total
            ended = self._choose_ended(shard, [fields.name(member) for member in ending])
            kept = sum(self._keep(self.context.session(name)) for name in ended)
            total, place = total + kept, place + len(ending) - kept  # others, such as parked ones, stay in the index

    def _choose_ended(self, shard: ShardKeys, names: Sequence[str]) -> list[str]:
        """Choose the sessions whose execution has ended."""
        phases = self.context.read_apart(
            "archive.phases", [[("HGET", shard.session(name).ctl, "phase")] for name in names]
        )
        return [name for name, phase in zip(names, phases, strict=True) if phase == [b"end"]]

    def finish_pending(self) -> int:
        """Finish the moves of workers that have died on the way; returns how many."""
        total, place = 0, 0
        while pending := self.archive.pending(limit=_PENDING, after=place):
            total += self._finish_all(pending)
            place = pending[-1].place
        return total

    def _finish_all(self, pending: Sequence[FoundSession]) -> int:
        scopes = [self.context.session(found.session.key.session_id) for found in pending]
        reads: list[list[Command]] = [[("HMGET", each.keys.session, "version", MARK, ARCHIVED)] for each in scopes]
        marks, total = self.context.read_apart("archive.pending", reads), 0
        for found, scope, mark in zip(pending, scopes, marks, strict=True):
            if isinstance(mark, StateUnreadable):
                continue
            ((version, created, archived),), key = mark, found.session.key
            own = str(key.created_ms).encode()
            if version is not None and created in (own, None):
                continue  # it is there, and will be moved again
            if created == own and archived is None:
                self._note_deletion(scope, key)
            # A mark that is gone has outlived its life; its id may be used again.
            elif created != own or archived == found.row.mark.encode():
                self._finish(scope, key, found.row.mark, found.row.revision, found.session.expires_ms)
                total += 1
        return total

    def bury_deleted(self, shards: Sequence[ShardKeys]) -> int:
        """Delete the rows of sessions that were deleted and cannot come back; returns how many."""
        sizes: list[Command] = [("ZCARD", shard.archive) for shard in shards]
        now, *found = self.context.database.pipeline("archive.deleted", [self.context.clock.now(), *sizes])
        now_ms, total = self.context.clock.milliseconds(now), 0
        for shard in (shard for shard, size in zip(shards, found, strict=True) if size):
            due: Command = ("ZRANGEBYSCORE", shard.archive, "-inf", now_ms, "LIMIT", 0, _BATCH)
            with self.context.confirming(shard):
                (notes,) = self.context.database.pipeline("archive.due", [due])
            for note in notes:
                self._bury(shard, note, now_ms)
                total += 1
        return total

    def forget(self) -> int:
        """Remove rows whose time is over; returns how many."""
        now_ms, total = self.context.now_ms(), 0
        while found := self.archive.forget(now_ms):
            total += found
        return total

    def _may_move(self, scope: SessionScope, document: Document) -> bool:
        session, control = document.session, document.control
        if control.get(b"phase") != b"end" or control.get(b"held") or control.get(b"claim"):
            return False
        if session.get(SESSION_STATUS.encode()) == SUSPENDED.encode() or ":inbox" in document.values:
            return False
        link = read_link(session.get(b"parent"))
        parent: list[Command] = (
            [] if link is None else [("HGET", self.context.keys(link.session_id).session, "version")]
        )
        replies = self.context.database.pipeline("archive.check", [*RemovableSession.reads(scope), *parent])
        if link is not None and replies.pop() is not None:
            return False  # a parent goes before its children
        notes = RemovableSession.parse(scope, replies).callback_notes()
        asked = [("ZSCORE", scope.keys.shard.callbacks, note) for note in notes]
        return not any(self.context.database.pipeline("archive.callbacks", asked)) if asked else True

    def _is_settled(self, scope: SessionScope, key: SessionKey, revision: int, mark: ArchiveMark) -> bool:
        """Whether the row and what is in Redis have been as they are for long enough that neither is taken back."""
        now, seen = time.monotonic(), self._observed.get(key)
        if seen is None or (seen.revision, seen.mark) != (revision, mark.text):
            if len(self._observed) >= _MOST_OBSERVED:
                self._observed.pop(next(iter(self._observed)))
            seen = self._observed[key] = _Observed(revision, mark.text, now)
        if (now - seen.since) * 1000 < self.context.settle_ms:
            return False
        with self.context.confirming(scope.keys.shard):  # behind the look at the row, which another mover may have made
            document = read_document(scope, self.context.database.pipeline)
        return document is not None and _mark_of(document, document.to_bytes()) == mark

    def _remove(self, scope: SessionScope, document: Document, stored: bytes, mark: ArchiveMark, began: float) -> bool:
        """Remove a session from Redis but for its mark; False where it is not as in the document any more."""
        keys = scope.keys
        watched_keys = dict.fromkeys((*keys.lasting, *(keys.session + name for name in document.values)))
        try:
            with scope.database.watch("archive.read", list(watched_keys), RemovableSession.reads(scope)) as watched:
                found = RemovableSession.parse(scope, watched.replies)
                now = read_document(scope, watched.pipeline)
                if now is None or now.to_bytes() != stored or time.monotonic() - began > _REMOVE_SECONDS:
                    return False
                commands: list[Command] = [
                    *found.forget_fields(MARK),
                    *found.remove_keys(watched),
                    ("PERSIST", keys.session),
                    ("HSET", keys.session, ARCHIVED, mark.text),
                ]
                found.apply(watched, "archive.exec", commands, needs=False)
                return True
        except Changed:
            return False

    def _finish(self, scope: SessionScope, key: SessionKey, mark: str, revision: int, expires_ms: int | None) -> None:
        """Give the mark its life, and make the row valid.

        In this order, since housekeeping finds rows that are pending, and does not find marks without a life.
        """
        self._give_life(scope, mark, expires_ms)
        crash_points.at("a2")
        self.archive.make_valid(key, seen=revision)

    def _give_life(self, scope: SessionScope, mark: str, expires_ms: int | None) -> None:
        """Give the mark its life: no longer than that of the row."""
        lives = [] if self.context.retention_ms is None else [self.context.retention_ms]
        lives += [] if expires_ms is None else [max(1, expires_ms - self.context.now_ms())]
        session = scope.keys.session
        if not lives:
            return

        def attempt() -> None:
            reads: list[Command] = [("HMGET", session, "version", ARCHIVED)]
            with scope.database.watch("archive.mark", (session,), reads) as watched:
                if watched.replies[0] == [None, mark.encode()]:
                    watched.commit("archive.life", [("PEXPIRE", session, min(lives))])

        scope.apply_once(attempt, "give its mark a life")

    def _keep(self, scope: SessionScope) -> bool:
        try:
            document = read_document(scope, self.context.database.pipeline)
        except StateUnreadable:  # it could not move either
            return False
        if document is None or document.control.get(b"phase") != b"end":
            return False
        names = [scope.keys.session + name for name in document.values]
        commands: list[Command] = [("PERSIST", name) for name in names]
        try:
            with scope.database.watch("archive.keep", names, [("HGET", scope.keys.ctl, "phase")]) as watched:
                if watched.replies != [b"end"]:
                    return False
                watched.commit("archive.kept", [*commands, ("ZREM", scope.keys.shard.ending, scope.session_id)])
        except Changed:
            return False
        return True

    def _note_deletion(self, scope: SessionScope, key: SessionKey) -> None:
        """Have the row of a session deleted that was deleted before it had moved."""
        shard, note = scope.keys.shard, archive_note(key.session_id, key.created_ms)
        score, now = self.context.database.pipeline(
            "archive.note", [("ZSCORE", shard.archive, note), scope.clock.now()]
        )
        if score is None:
            due_ms = scope.clock.milliseconds(now) + self.context.settle_ms
            self.context.database.pipeline("archive.noted", [("ZADD", shard.archive, due_ms, note)])

    def _bury(self, shard: ShardKeys, note: bytes, now_ms: int) -> None:
        session_id, _, created = fields.name(note).rpartition(" ")
        key = SessionKey(session_id, fields.or_else(fields.milliseconds, created.encode(), 0))
        self.archive.bury(key, expires_ms=now_ms + _TOMBSTONE_MS)
        crash_points.at("a4")
        self.context.database.pipeline("archive.buried", [("ZREM", shard.archive, note)])

    def _forgotten_at(self, document: Document) -> int | None:
        days = _days_of(document) or self.context.settings.archive_days
        updated_ms = fields.milliseconds(document.session.get(b"updated"))
        return None if days is None else min(updated_ms + round(days * _DAY_MS), LAST_MS)


def _mark_of(document: Document, stored: bytes) -> ArchiveMark:
    session = document.session
    return ArchiveMark.of(
        stored,
        version=fields.number(session.get(b"version")),
        fingerprint=fields.text(session.get(b"fingerprint")),
        first=fields.text(session.get(b"first")),
    )


def _days_of(document: Document) -> float | None:
    """After how many days the archive forgets the session, as its runtime or its agent has it; None: neither says."""
    for name in (b"session_definition", b"definition"):
        found: Any = fields.read_json(document.session.get(name) or b"{}", name.decode())
        days = found.get("archive_days")
        if days is not None:
            return float(min(days, LAST_MS))
    return None
