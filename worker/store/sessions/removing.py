"""Removing a session from Redis: all its keys, and its entries in all indexes; fields of its hash stay as a mark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from ...errors import StoreFull
from .. import fields
from ..context import SessionScope
from ..control import read_unoffered, unoffered_member
from ..database import Command, Guard, Reply, WatchedTransaction
from ..keys import callback_note
from ..labels import LABELS, labels_range, removal
from .loading import ARCHIVED, MARK
from .parking import key_names, key_reads

_CTL: Final = ("phase", "unoffered", "execution", "claim")
_GUARDED: Final = ("version", "lineage", LABELS)
_NAMES_AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True)
class RemovableSession:
    """A session as its removal finds it; parts of it may be damaged.

    Attributes:
        values: The session's hash.
        control: The control fields `_CTL`.
        key_names: The keys that belong to it, besides journals of committed steps.
        labels: Its members of the index of labels.
    """

    scope: SessionScope
    values: Mapping[bytes, bytes]
    control: Sequence[bytes | None]
    key_names: tuple[str, ...]
    now_ms: int
    labels: list[bytes]

    @staticmethod
    def reads(scope: SessionScope) -> list[Command]:
        """Commands whose replies `parse` takes."""
        keys = scope.keys
        return [
            ("HGETALL", keys.session),
            ("HMGET", keys.ctl, *_CTL),
            scope.clock.now(),
            ("ZRANGEBYLEX", keys.shard.labels, *labels_range(scope.session_id)),
            *key_reads(scope),
        ]

    @classmethod
    def parse(cls, scope: SessionScope, replies: Sequence[Reply]) -> RemovableSession:
        """Parse the replies to `reads`."""
        flat, control, now, labels, *keys = replies
        return cls(
            scope=scope,
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
        """Whether there is nothing to remove."""
        return b"version" not in self.values and not self.phase

    @property
    def is_marked(self) -> bool:
        """Whether a deletion, or the move to the archive, has left its mark."""
        return MARK.encode() in self.values

    @property
    def is_archived(self) -> bool:
        """Whether the archive has, or had, a row of it."""
        return ARCHIVED.encode() in self.values

    @property
    def version(self) -> int:
        """The session's version; 0 where it cannot be read."""
        return fields.or_else(fields.number, self.values.get(b"version"), 0)

    @property
    def executions(self) -> tuple[str, ...]:
        """Executions whose steps are kept; none where they cannot be read."""
        return fields.or_else(fields.strings, self.values.get(b"executions"), ())

    def forget_fields(self, *kept: str) -> Iterator[Command]:
        """Remove all fields of the hash but these."""
        gone = [each for each in self.values if each.decode("utf-8", "replace") not in kept]
        for start in range(0, len(gone), _NAMES_AT_ONCE):
            yield ("HDEL", self.scope.keys.session, *gone[start : start + _NAMES_AT_ONCE])

    def remove_keys(self, watched: WatchedTransaction) -> Iterator[Command]:
        """Remove all other keys, and the entries of all indexes."""
        keys, shard, name = self.scope.keys, self.scope.keys.shard, self.scope.session_id
        names = [each for each in self.key_names if each != keys.session] + self._journals(watched)
        for start in range(0, len(names), _NAMES_AT_ONCE):
            yield ("DEL", *names[start : start + _NAMES_AT_ONCE])
        for index in (shard.sessions, shard.due, shard.delayed, shard.failed, shard.ending, shard.children):
            yield ("ZREM", index, name)
        yield from removal(shard, name, self.labels)
        agent = read_unoffered(fields.any_text(self.control[1]))[1]
        if agent:
            yield ("ZREM", shard.unoffered, unoffered_member(agent, name))
        notes = self.callback_notes()
        if notes:
            yield ("ZREM", shard.callbacks, *notes)

    def apply(self, watched: WatchedTransaction, point: str, commands: Sequence[Command], *, needs: bool) -> None:
        """Run the commands in the transaction; on a full Redis by a script, if none but the later ones needs memory.

        A Redis at its memory limit takes no MULTI with a command that needs memory, and a script whose first writing
        command needs none.

        Args:
            needs: One of the first commands needs memory.
        """
        try:
            watched.commit(point, commands)
        except StoreFull:
            if needs:
                raise
            keys = self.scope.keys
            guards: list[Guard] = [
                (("HMGET", keys.session, *_GUARDED), [self.values.get(each.encode(), b"") for each in _GUARDED]),
                (("HMGET", keys.ctl, *_CTL), [each or b"" for each in self.control]),
            ]
            if self.scope.database.compare_and_apply(point.replace("exec", "full"), guards, commands) is None:
                raise StoreFull(
                    "Redis is at its memory limit, and the session changed or is too large; try again"
                ) from None

    def callback_notes(self) -> list[str]:
        """The entries that the outbox may have about ends of the session's executions."""
        wanted = _object(self.values.get(b"notify"))
        return [
            callback_note(self.scope.session_id, execution_id, str(kind), record.get("retries", 0))
            for execution_id in self.executions
            for record in (_object(self.values.get(f"e:{execution_id}".encode())),)
            for kind in _object_of(wanted.get(str(record.get("operation_id"))))
        ]

    def _journals(self, watched: WatchedTransaction) -> list[str]:
        """The journals of the executions that are kept; those of their committed steps live for `journal_seconds`."""
        if not self.executions:
            return []
        lengths: list[Command] = [("LLEN", self.scope.keys.steps(each)) for each in self.executions]
        counts = watched.pipeline("delete.steps", lengths)
        return [
            self.scope.keys.journal(execution_id, step)
            for execution_id, count in zip(self.executions, counts, strict=True)
            for step in range(1, count + 2)
        ]


def _object(raw: bytes | None) -> dict[str, Any]:
    return _object_of(fields.or_else(lambda given: fields.read_json(given, "a record"), raw or b"{}", None))


def _object_of(found: object) -> dict[str, Any]:
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
