"""Looking for stored data that somebody else has damaged. Nothing is changed: people decide what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ...errors import InvalidInput, StateUnreadable, StoreForbidden, StoreUnavailable
from ...state.values.ids import read_session_id
from .. import fields
from ..context import StoreContext, StorePart
from ..database import Command
from ..keys import AGENTS, SHARDS, WORKERS, ShardKeys
from ..requests.index import read_entry
from .callbacks import read_note

_LOOKED_AT: Final = 1_000
_RECORDS_LOOKED_AT: Final = 100
# What is written in transactions, as Redis's append-only file has it. They are asked about and not given.
_REPLAYED: Final = (
    "HSET KEY f v", "SET KEY v", "XADD KEY * f v", "ZADD KEY 1 m", "DEL KEY", "PEXPIREAT KEY 1", "LPUSH QUEUE v",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Damage:
    """A key or an entry that nobody of ours has written so.

    Attributes:
        entry: The entry's name, escaped; "" when the whole key is meant.
    """

    key: str
    what: str
    entry: str = ""


class InspectVerbs(StorePart):
    """Looking for damaged data and missing rights."""

    def wrong_types(self, more: Mapping[str, str]) -> list[Damage]:
        """Find keys that hold another type than they should; `more` are keys of the broker, with the type of each."""
        expected = {**_expected_types(self._context), **more}
        replies = self._context.database.pipeline("types", [("TYPE", key) for key in expected])
        found: list[Damage] = []
        for (key, kind), reply in zip(expected.items(), replies, strict=True):
            actual = fields.name(reply)
            if actual not in ("none", kind):
                found.append(Damage(key, f"it is a {actual}, not a {kind}"))
        return found

    def expect_shared_keys(self, queue: str = "") -> None:
        """Look whether a key that all sessions share is why a session cannot be read.

        Args:
            queue: Name of the queue that the session's step came from.
        Raises:
            StoreUnavailable: Such a key, or the queue, holds another type. Steps stay due until somebody removes it.
        """
        queues = {str(command[1]): "list" for command in self._context.publisher.count_commands(queue)}
        try:
            found = self.wrong_types(queues)
        except StoreForbidden:
            return  # this Redis user may not look
        if found:
            raise StoreUnavailable(f"key {found[0].key!r}: {found[0].what}; somebody else wrote to it")

    def bad_entries(self) -> list[Damage]:
        """Find entries of the indexes that name no session or have no time."""
        return [damage for shard in self._context.shards for damage in _bad_entries_of(self._context, shard)]

    def unreplayable_commands(self, queue_key: str) -> list[str]:
        """Name the commands of our transactions that Redis's user `default` may not give.

        Redis replays an append-only file as that user, and most releases since 7.0 check its rights again at the end of
        each transaction: what is refused then is lost. Redis 7.0 is the first that can be asked.

        Args:
            queue_key: The key of a queue of steps.
        Raises:
            StoreForbidden: This Redis user may not ask, or this Redis has no such command.
        """
        keys = {"KEY": self._context.shards[0].due, "QUEUE": queue_key}
        tries: list[Command] = [
            ("ACL", "DRYRUN", "default", *(keys.get(word, word) for word in command.split())) for command in _REPLAYED
        ]
        replies = self._context.database.pipeline("dryrun", tries)
        return [
            command.partition(" ")[0]
            for command, reply in zip(_REPLAYED, replies, strict=True)
            if fields.name(reply) != "OK"
        ]

    def unacked_records(self, key: str) -> tuple[int, dict[str, bytes]]:
        """Count the broker's records of unacknowledged messages, and read a hundred of them by their names."""
        count, (_, flat) = self._context.database.pipeline(
            "unacked", [("HLEN", key), ("HSCAN", key, 0, "COUNT", _RECORDS_LOOKED_AT)]
        )
        return count, fields.named_pairs(flat)


def _expected_types(context: StoreContext) -> dict[str, str]:
    types = {AGENTS: "hash", WORKERS: "hash", SHARDS: "string"}
    for shard in context.shards:
        types |= dict.fromkeys(_indexes(shard), "zset")
        types |= {shard.dead: "stream", shard.sweeper: "string"}
    return types


def _bad_entries_of(context: StoreContext, shard: ShardKeys) -> Iterator[Damage]:
    for key, is_entry in _indexes(shard).items():
        try:
            yield from _bad_entries_in(context, key, is_entry)
        except StateUnreadable:
            continue  # of another type, which `wrong_types` tells


def _indexes(shard: ShardKeys) -> Mapping[str, Callable[[bytes], bool]]:
    """The sorted sets of a shard, with the check of their entries."""
    of_sessions = (shard.due, shard.delayed, shard.sessions, shard.failed, shard.ending, shard.children)
    return {
        **dict.fromkeys(of_sessions, _is_session_id),
        shard.callbacks: _is_note,
        shard.unoffered: _is_unoffered,
        shard.requests: lambda entry: read_entry(entry) is not None,
    }


def _bad_entries_in(context: StoreContext, key: str, is_entry: Callable[[bytes], bool]) -> Iterator[Damage]:
    any_score: Command = ("ZRANGEBYSCORE", key, "-inf", "+inf", "LIMIT", 0, _LOOKED_AT)
    too_late: Command = ("ZRANGEBYSCORE", key, f"({fields.LAST_MS}", "+inf", "LIMIT", 0, _LOOKED_AT)
    members, late = context.database.pipeline("entries", [any_score, too_late])
    for member in members:
        if not is_entry(member):
            yield Damage(key, "it is no entry of this index", fields.name(member))
    for member in late:
        yield Damage(
            key, "its time is infinite or after the year 9999, so nobody ever looks at it", fields.name(member)
        )


def _is_session_id(entry: bytes) -> bool:
    try:
        read_session_id(fields.text(entry))
    except (InvalidInput, StateUnreadable):
        return False
    return True


def _is_note(entry: bytes) -> bool:
    name = fields.name(entry)
    note = read_note(name) if name.encode() == entry else None
    return note is not None and _is_session_id(note.session_id.encode())


def _is_unoffered(entry: bytes) -> bool:
    """Whether an entry is the name of an agent, then the id of a session."""
    agent, space, session_id = entry.rpartition(b" ")
    return bool(agent and space) and _is_session_id(session_id)
