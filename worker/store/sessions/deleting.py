"""Deleting a session: its keys and its entries in all indexes go in one transaction, and a mark stays.

    WATCH session, ctl → runs nothing? → MULTI HDEL all but the mark, DEL, ZREM …, life of the mark · EXEC

A session of which an execution runs or waits is not deleted: it has to be stopped first. One that is parked is; a
parent that waits for it is told, in the same transaction, that it failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from ...errors import ActionRefused, SessionConflict, StoreFull
from ...state.execution.answers import AnswerRecord, AnswerVerb
from .. import fields
from ..bookkeeping import read_link
from ..children.ending import ParentAnswer, tell_parent
from ..context import SessionScope, StorePart
from ..control import LONGEST_WAIT_MS, read_unoffered, unoffered_member
from ..database import Command, Guard, Reply, WatchedTransaction
from ..keys import callback_note
from ..labels import labels_range, removal
from ..records import ActionResult
from .loading import MARK, missing_error
from .parking import key_names, key_reads

_CTL: Final = ("phase", "unoffered", "execution", "claim")
_NAMES_AT_ONCE: Final = 1_000
_DELETED: Final = "no worker could carry its session on, and somebody has deleted it"


class DeleteVerbs(StorePart):
    """Deleting a session."""

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
        reads: list[Command] = [
            ("HGETALL", keys.session),
            ("HMGET", keys.ctl, *_CTL),
            scope.clock.now(),
            ("ZRANGEBYLEX", keys.shard.labels, *labels_range(scope.session_id)),
            *key_reads(scope),
        ]
        with scope.database.watch("delete.read", (keys.session, keys.ctl), reads) as watched:
            found = _Found.parse(scope, watched.replies)
            if found.is_gone:
                if found.is_marked:
                    return self.written or ActionResult("again", "", 0)
                raise missing_error(scope.context, scope.session_id)
            self._check(found)
            parent_answer = _tell_parent(scope, found, watched)
            commands = list(_delete_commands(scope, found, watched))
            self.written = ActionResult("changed", "", found.version, publish=parent_answer.publish)
            try:
                watched.commit("delete.exec", [*commands, *parent_answer.commands])
            except StoreFull:
                if parent_answer.commands:  # an answer needs memory
                    raise
                self._delete_when_full(found, commands)
            return self.written

    def _delete_when_full(self, found: _Found, commands: Sequence[Command]) -> None:
        """Delete by a script: a Redis at its memory limit takes no MULTI, and none of these commands needs memory."""
        keys = self.scope.keys
        stored = [found.values.get(each, b"") for each in (b"version", b"lineage")]
        guards: list[Guard] = [
            (("HMGET", keys.session, "version", "lineage"), stored),
            (("HMGET", keys.ctl, *_CTL), [each or b"" for each in found.control]),
        ]
        if self.scope.database.compare_and_apply("delete.full", guards, commands) is None:
            raise StoreFull("Redis is at its memory limit, and the session changed or is too large; try again")

    def _check(self, found: _Found) -> None:
        if found.phase in ("run", "wait"):
            raise ActionRefused(
                f"an execution of session {self.scope.session_id} runs or waits; stop it, and delete the session then"
            )
        if self.wanted is not None and self.wanted != found.version:
            raise SessionConflict(
                f"session {self.scope.session_id} is at version {found.version}, and the request names version "
                f"{self.wanted}; look at it again before it is deleted",
                expected=self.wanted,
                stored=found.version,
            )


@dataclass(frozen=True, slots=True)
class _Found:
    """A session as a deletion finds it; parts of it may be damaged.

    Attributes:
        values: The session's hash.
        control: The control fields `_CTL`.
        key_names: The keys that belong to it, besides journals of committed steps.
        labels: Its members of the index of labels.
    """

    values: Mapping[bytes, bytes]
    control: Sequence[bytes | None]
    key_names: tuple[str, ...]
    now_ms: int
    labels: list[bytes]

    @classmethod
    def parse(cls, scope: SessionScope, replies: Sequence[Reply]) -> _Found:
        """Parse what a deletion reads first."""
        flat, control, now, labels, *keys = replies
        return cls(
            values=dict(zip(flat[::2], flat[1::2], strict=True)),
            control=control,
            key_names=tuple(key_names(scope, keys)),
            now_ms=scope.clock.milliseconds(now),
            labels=labels,
        )

    @property
    def phase(self) -> str:
        """ "run", "wait", "end" or "parked"; "" where the session has no control fields."""
        return fields.any_text(self.control[0])

    @property
    def is_gone(self) -> bool:
        """Whether there is nothing to delete."""
        return b"version" not in self.values and not self.phase

    @property
    def is_marked(self) -> bool:
        """Whether a deletion has left its mark."""
        return MARK.encode() in self.values

    @property
    def version(self) -> int:
        """The session's version; 0 where it cannot be read."""
        return fields.or_else(fields.number, self.values.get(b"version"), 0)

    @property
    def executions(self) -> tuple[str, ...]:
        """Executions whose steps are kept; none where they cannot be read."""
        return fields.or_else(fields.strings, self.values.get(b"executions"), ())


def _delete_commands(scope: SessionScope, found: _Found, watched: WatchedTransaction) -> Iterator[Command]:
    """Remove everything, and give the mark its life."""
    keys, shard, name = scope.keys, scope.keys.shard, scope.session_id
    gone = [each for each in found.values if each != MARK.encode()]
    for start in range(0, len(gone), _NAMES_AT_ONCE):
        yield ("HDEL", keys.session, *gone[start : start + _NAMES_AT_ONCE])
    retention_ms = scope.context.retention_ms
    yield ("PEXPIRE", keys.session, LONGEST_WAIT_MS if retention_ms is None else retention_ms)
    names = [each for each in found.key_names if each != keys.session] + _journals(scope, found, watched)
    for start in range(0, len(names), _NAMES_AT_ONCE):
        yield ("DEL", *names[start : start + _NAMES_AT_ONCE])
    for index in (shard.sessions, shard.due, shard.delayed, shard.failed, shard.ending, shard.children):
        yield ("ZREM", index, name)
    yield from removal(shard, name, found.labels)
    agent = read_unoffered(fields.any_text(found.control[1]))[1]
    if agent:
        yield ("ZREM", shard.unoffered, unoffered_member(agent, name))
    notes = list(_callback_notes(scope, found))
    if notes:
        yield ("ZREM", shard.callbacks, *notes)


def _journals(scope: SessionScope, found: _Found, watched: WatchedTransaction) -> list[str]:
    """The journals of the executions that are kept; those of their committed steps live for `journal_seconds`."""
    if not found.executions:
        return []
    lengths: list[Command] = [("LLEN", scope.keys.steps(each)) for each in found.executions]
    counts = watched.pipeline("delete.steps", lengths)
    return [
        scope.keys.journal(execution_id, step)
        for execution_id, count in zip(found.executions, counts, strict=True)
        for step in range(1, count + 2)
    ]


def _callback_notes(scope: SessionScope, found: _Found) -> Iterator[str]:
    """The entries of the outbox about ends of the session's executions."""
    wanted = _object(found.values.get(b"notify"))
    for execution_id in found.executions:
        record = _object(found.values.get(f"e:{execution_id}".encode()))
        kinds: Any = wanted.get(str(record.get("operation_id")))
        for kind in kinds if isinstance(kinds, dict) else ():  # pyright: ignore[reportUnknownVariableType]
            yield callback_note(scope.session_id, execution_id, str(kind), record.get("retries", 0))  # pyright: ignore[reportUnknownArgumentType]


def _tell_parent(scope: SessionScope, found: _Found, watched: WatchedTransaction) -> ParentAnswer:
    """The answer to a parent that waits for a parked child; an ended child has answered."""
    # Where it is damaged, no parent can be told; the request's expiry ends it.
    link = fields.or_else(read_link, found.values.get(b"parent"), None)
    if link is None or found.phase != "parked":
        return ParentAnswer([])
    answer = AnswerRecord(verb=AnswerVerb.FAIL, reason=_DELETED, at_ms=found.now_ms)
    return tell_parent(scope, link, lambda _: (answer, []), found.now_ms, watched)


def _object(raw: bytes | None) -> dict[str, Any]:
    found = fields.or_else(lambda given: fields.read_json(given, "a record"), raw or b"{}", None)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
