"""Deleting a session: its keys and its entries in all indexes go in one transaction, and a mark stays.

    WATCH session, ctl → runs nothing? → MULTI HDEL all but the mark, DEL, ZREM …, life of the mark · EXEC

A session of which an execution runs or waits is not deleted: it has to be stopped first. One that is parked is; a
parent that waits for it is told, in the same transaction, that it failed. Where the archive may have a row of the
session, the transaction leaves an entry in the archive's outbox.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ...errors import ActionRefused
from ...state.execution.answers import AnswerRecord, AnswerVerb
from .. import fields
from ..bookkeeping import read_link
from ..children.ending import tell_parent
from ..context import SessionScope, StorePart
from ..control import LONGEST_WAIT_MS
from ..database import Command, WatchedTransaction
from ..keys import archive_note
from ..records import ActionResult
from ..waking import WakeUp
from .archive_marks import ArchiveMark
from .loading import ARCHIVED, MARK, missing_error
from .removing import RemovableSession
from .watched_sessions import check_version

_DELETED: Final = "no worker could carry its session on, and somebody has deleted it"


class DeleteVerbs(StorePart):
    """Deleting a session."""

    def delete(self, session_id: str, *, version: int | None = None) -> ActionResult:
        """Delete everything of a session of which no execution runs or waits; callbacks not made yet are not made.

        A mark stays for the retention (30 days where sessions stay for ever): as long as it is there, the id is not
        used again. A parked child answers its parent. Sessions below this one stay as they are. A session in the
        archive is deleted there by the workers, in a minute or two.

        Args:
            version: The version that the session must have; None: any.
        Returns:
            "changed", or "again" when it had been deleted before.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            ActionRefused: An execution of it runs or waits; nothing was deleted.
            SessionConflict: It has another version; nothing was deleted.
        """
        scope = self._context.session(session_id)
        deletion = _Deletion(scope=scope, wanted=version)
        return scope.act_once(deletion.run, "be deleted")


@dataclass(slots=True)
class _Deletion:
    """One deletion and its attempts.

    Attributes:
        written: What an attempt wrote, perhaps: its reply was lost.
    """

    scope: SessionScope
    wanted: int | None
    written: ActionResult | None = None

    def run(self) -> ActionResult:
        """Make one attempt."""
        scope, keys = self.scope, self.scope.keys
        with scope.database.watch("delete.read", (keys.session, keys.ctl), RemovableSession.reads(scope)) as watched:
            found = RemovableSession.parse(scope, watched.replies)
            if found.is_gone:
                if found.is_archived:
                    return self._delete_archived(found, watched)
                if found.is_marked:
                    return self.written or ActionResult("again", "", 0)
                raise missing_error(scope.context, scope.session_id)
            self._check(found, found.version)
            parent_answer = _tell_parent(scope, found, watched)
            commands = [*_leave_mark(found), *found.remove_keys(watched), *_tell_archive(found)]
            self.written = ActionResult("changed", "", found.version, publish=parent_answer.publish)
            commands += parent_answer.commands
            found.apply(watched, "delete.exec", commands, needs=bool(parent_answer.commands))
            return self.written

    def _delete_archived(self, found: RemovableSession, watched: WatchedTransaction) -> ActionResult:
        """Delete a session of which the archive has everything."""
        version = ArchiveMark.read(fields.any_text(found.values[ARCHIVED.encode()])).version
        self._check(found, version)
        self.written = ActionResult("changed", "", version)
        watched.commit("delete.archived", [*_leave_mark(found), *_tell_archive(found)])
        return self.written

    def _check(self, found: RemovableSession, version: int) -> None:
        if found.phase in ("run", "wait"):
            raise ActionRefused(
                f"an execution of session {self.scope.session_id} runs or waits; stop it, and delete the session then"
            )
        check_version(self.scope.session_id, version, self.wanted, "deleted")


def _leave_mark(found: RemovableSession) -> Iterator[Command]:
    """Leave the deletion mark of the session's hash, with its life."""
    yield from found.forget_fields(MARK)
    retention_ms = found.scope.context.retention_ms
    yield ("PEXPIRE", found.scope.keys.session, LONGEST_WAIT_MS if retention_ms is None else retention_ms)


def _tell_archive(found: RemovableSession) -> Iterator[Command]:
    """Have a worker delete the row of the archive, once Redis cannot lose the deletion any more."""
    scope = found.scope
    if found.is_archived or scope.settings.archive_url is not None:
        created_ms = fields.or_else(fields.milliseconds, found.values.get(MARK.encode()), 0)
        note = archive_note(scope.session_id, created_ms)
        yield ("ZADD", scope.keys.shard.archive, found.now_ms + scope.context.settle_ms, note)


def _tell_parent(scope: SessionScope, found: RemovableSession, watched: WatchedTransaction) -> WakeUp:
    """The answer to a parent that waits for a parked child; an ended child has answered."""
    # Where it is damaged, no parent can be told; the request's expiry ends it.
    link = fields.or_else(read_link, found.values.get(b"parent"), None)
    if link is None or found.phase != "parked":
        return WakeUp([])
    answer = AnswerRecord(verb=AnswerVerb.FAIL, reason=_DELETED, at_ms=found.now_ms)
    return tell_parent(scope, link, lambda _: (answer, []), found.now_ms, watched)
