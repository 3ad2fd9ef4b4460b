"""The inbox of a session: operations that wait for its running step, and the index that tells what waits.

The index is part of the control hash: `in:<operation id>` for each waiting operation, and `inbox_bytes` for all
together. So an action finds its own id, and the room that is left, without reading what waits.

Messages are numbered in their order, from 1 in each step. `inbox_gone` counts those that clients have taken out: the
number of the newest message never falls, and each further message raises it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, cast

from ..errors import ActionRefused, StateUnreadable
from ..unique import unique_hex
from . import fields
from .context import SessionScope
from .database import Command, Reply
from .keys import SessionKeys
from .records import InboxKind, Operation

_BYTES: Final = "inbox_bytes"
_GONE: Final = "inbox_gone"
_CHANGE: Final = "change-"
_CHANGES_KEPT: Final = 32


@dataclass(frozen=True, slots=True)
class InboxIndex:
    """The facts about an inbox that an action reads.

    Attributes:
        holds: Whether the action's own operation waits there.
        entries: Operations that wait.
        bytes: Their size.
        gone: Messages that were taken out since the last commit.
    """

    holds: bool
    entries: int
    bytes: int
    gone: int = 0

    @staticmethod
    def reads(keys: SessionKeys, operation_id: str) -> list[Command]:
        """Commands whose replies `parse` takes."""
        return [("HMGET", keys.ctl, _field(operation_id), _BYTES, _GONE), ("LLEN", keys.inbox)]

    @classmethod
    def parse(cls, replies: Sequence[Reply]) -> InboxIndex:
        """Parse the replies to `reads`."""
        (own, size, gone), entries = replies
        # The list decides: an index that was left behind holds nothing back.
        return cls(
            holds=own is not None and entries > 0,
            entries=entries,
            bytes=fields.number(size) if entries else 0,
            gone=fields.number(gone),
        )

    def push(self, scope: SessionScope, operation: Operation) -> list[Command]:
        """Commands that leave an operation in the inbox.

        Raises:
            ActionRefused: Too many wait, or too much.
        """
        entry, settings = encode_operation(operation), scope.settings
        size = self.bytes + len(entry)
        if self.entries >= settings.inbox_limit:
            self._refuse(scope, f"{self.entries} messages")
        if size > settings.max_inbox_bytes:
            self._refuse(scope, f"{self.bytes} bytes of messages")
        return [
            ("RPUSH", scope.keys.inbox, entry),
            ("HSET", scope.keys.ctl, _field(operation.id), len(entry), _BYTES, size),
        ]

    def take_out(self, keys: SessionKeys, message: Operation, left: Sequence[Operation]) -> list[Command]:
        """Commands that take a message out of the inbox, of which the others are left."""
        return [*rewrite_commands(keys, left, [message.id]), ("HSET", keys.ctl, _GONE, self.gone + 1)]

    def _refuse(self, scope: SessionScope, waiting: str) -> None:
        raise ActionRefused(
            f"session {scope.session_id} has {waiting} waiting for its running step, which is the limit; "
            "wait until the step has committed"
        )


def trim_commands(keys: SessionKeys, entries: int, operations: Sequence[str]) -> list[Command]:
    """Commands that take applied entries out of the inbox and of its index; none where nothing waited.

    Args:
        entries: How many entries were read, all that there were.
        operations: Ids of the operations that they hold.
    """
    if not entries:
        return []
    return [
        ("LTRIM", keys.inbox, entries, -1),
        ("HDEL", keys.ctl, _BYTES, _GONE, *(_field(operation) for operation in operations)),
    ]


def rewrite_commands(keys: SessionKeys, left: Sequence[Operation], gone: Sequence[str]) -> list[Command]:
    """Commands that store an inbox anew, without operations that are taken out of it.

    Args:
        gone: Their ids.
    """
    entries = [*map(encode_operation, left)]
    commands: list[Command] = [("DEL", keys.inbox), ("HDEL", keys.ctl, _BYTES, *map(_field, gone))]
    if entries:
        commands += [("RPUSH", keys.inbox, *entries), ("HSET", keys.ctl, _BYTES, sum(map(len, entries)))]
    return commands


@dataclass(frozen=True, slots=True)
class InboxMessages:
    """The messages in an inbox.

    Attributes:
        newest: Number of the newest message that came in this step, whether it still waits or was taken out; 0: none
            came.
    """

    messages: tuple[Operation, ...]
    newest: int

    @staticmethod
    def reads(keys: SessionKeys) -> list[Command]:
        """Two commands whose replies `parse` takes."""
        return [("LRANGE", keys.inbox, 0, -1), ("HGET", keys.ctl, _GONE)]

    @classmethod
    def parse(cls, replies: Sequence[Reply]) -> InboxMessages:
        """Parse the replies to `reads`.

        Raises:
            StateUnreadable: An entry is damaged.
        """
        entries, gone = replies
        messages = tuple(each for each in parse_operations(entries) if each.kind is InboxKind.MESSAGE)
        return cls(messages, fields.number(gone) + len(messages))


def new_change_id() -> str:
    """A fresh id of a change that only this process sends again, after a lost reply.

    A session remembers few of these, so that they do not push out the ids that callers may repeat much later.
    """
    return f"{_CHANGE}{unique_hex()}"


def recent_operations(ids: Sequence[str], kept: int) -> tuple[str, ...]:
    """The operation ids that a session keeps, oldest first.

    Args:
        kept: Most ids of messages.
    """
    if len(ids) <= min(kept, _CHANGES_KEPT):
        return tuple(ids)
    changes = [each for each in ids if each.startswith(_CHANGE)]
    messages = [each for each in ids if not each.startswith(_CHANGE)]
    gone = {*changes[:-_CHANGES_KEPT], *messages[:-kept]}
    return tuple(each for each in ids if each not in gone) if gone else tuple(ids)


def _field(operation_id: str) -> str:
    return f"in:{operation_id}"


def read_inbox(entries: Iterable[bytes], known: Iterable[str]) -> tuple[Operation, ...]:
    """Parse inbox entries and leave out those that were applied before."""
    seen = set(known)
    fresh: list[Operation] = []
    for operation in parse_operations(entries):
        if operation.id not in seen:
            seen.add(operation.id)
            fresh.append(operation)
    return tuple(fresh)


def parse_operations(entries: Iterable[bytes]) -> tuple[Operation, ...]:
    """Parse operations as `encode_operation` writes them.

    Raises:
        StateUnreadable: One of them is damaged.
    """
    return tuple(map(_parse_operation, entries))


def _parse_operation(entry: bytes) -> Operation:
    data = fields.read_json(entry, "inbox")
    try:
        operation = Operation(id=data["id"], kind=InboxKind(data["kind"]), payload=data["payload"])
        _ = operation.mode, operation.at_ms
    except (AttributeError, KeyError, TypeError, ValueError):
        raise StateUnreadable("inbox", "an entry is no operation") from None
    named = isinstance(cast("object", operation.id), str) and fields.is_text(operation.id)
    if not isinstance(operation.payload, dict) or not named:
        raise StateUnreadable("inbox", "an entry is no operation")
    return operation


def encode_operation(operation: Operation) -> bytes:
    """Encode an operation as it is stored."""
    return fields.to_json({"id": operation.id, "kind": operation.kind, "payload": operation.payload})
