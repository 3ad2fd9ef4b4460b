"""Looking for stored data that somebody else has damaged. Nothing is changed: people decide what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ...errors import InvalidInput, StateUnreadable, StoreForbidden, StoreUnavailable
from ...state import read_session_id
from .. import fields
from ..context import StoreContext
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


def wrong_types(context: StoreContext, more: Mapping[str, str]) -> list[Damage]:
    """Find keys that hold another type than they should.

    Args:
        more: Keys besides those of the store, such as the broker's, with the type of each.
    """
    expected = {**_expected_types(context), **more}
    replies = context.database.pipeline("types", [("TYPE", key) for key in expected])
    found: list[Damage] = []
    for (key, kind), reply in zip(expected.items(), replies, strict=True):
        actual = fields.name(reply)
        if actual not in ("none", kind):
            found.append(Damage(key, f"it is a {actual}, not a {kind}"))
    return found


def expect_shared_keys(context: StoreContext, queue: str) -> None:
    """Raise if a key that sessions share holds another type, so that no session is to blame. See `Housekeeping`."""
    queues = {str(command[1]): "list" for command in context.publisher.count_commands(queue)}
    try:
        found = wrong_types(context, queues)
    except StoreForbidden:
        return  # this Redis user may not look
    if found:
        raise StoreUnavailable(f"key {found[0].key!r}: {found[0].what}; somebody else wrote to it")


def _expected_types(context: StoreContext) -> dict[str, str]:
    types = {AGENTS: "hash", WORKERS: "hash", SHARDS: "string"}
    for shard in context.shards:
        types |= dict.fromkeys(_indexes(shard), "zset")
        types |= {shard.dead: "stream", shard.sweeper: "string"}
    return types


def bad_entries(context: StoreContext) -> list[Damage]:
    """Find entries of the indexes that name no session or have no time; 1000 of each index are looked at."""
    return [damage for shard in context.shards for damage in _bad_entries_of(context, shard)]


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


def unreplayable_commands(context: StoreContext, queue_key: str) -> list[str]:
    """Name the commands of our transactions that Redis's user `default` may not give; see `Housekeeping`."""
    keys = {"KEY": context.shards[0].due, "QUEUE": queue_key}
    tries: list[Command] = [
        ("ACL", "DRYRUN", "default", *(keys.get(word, word) for word in command.split())) for command in _REPLAYED
    ]
    replies = context.database.pipeline("dryrun", tries)
    return [
        command.partition(" ")[0]
        for command, reply in zip(_REPLAYED, replies, strict=True)
        if fields.name(reply) != "OK"
    ]


def unacked_records(context: StoreContext, key: str) -> tuple[int, dict[str, bytes]]:
    """Count the broker's records of unacknowledged messages, and read a hundred of them by their names.

    Args:
        key: The hash of the broker in the store's Redis.
    """
    count, (_, flat) = context.database.pipeline(
        "unacked", [("HLEN", key), ("HSCAN", key, 0, "COUNT", _RECORDS_LOOKED_AT)]
    )
    return count, fields.named_pairs(flat)
