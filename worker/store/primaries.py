"""The primary that a shard is on, by its replication id, and since when.

A failover begins another history of Redis, and so does a restart. Leases may have ended before, while their owners
could not renew them, and the clock is another one. A run id would not tell: it comes back with a primary that returns.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from . import fields
from .database import Command, Reply
from .journal import BeginRecord
from .keys import FleetKeys, ShardKeys

REPLICATION: Final[Command] = ("INFO", "replication")
"""Asks the server for its replication id; `replication_id` understands the reply."""


@dataclass(frozen=True, slots=True)
class Primary:
    """A primary as a shard knows it.

    Attributes:
        id: Its replication id; "" where the server tells none, and then no rule rests on it.
        since_ms: When the shard was first looked at under this id (its Redis ms); 0 for the first that was ever noted.
        notes: Commands that store it, where another one or none is stored.
    """

    id: str
    since_ms: int = 0
    notes: Sequence[Command] = ()

    def has_settled(self, now_ms: int, lease_ms: int) -> bool:
        """Whether the owners of leases that ended before have had one lease to come back."""
        return not 0 <= now_ms - self.since_ms < lease_ms

    def begun_ms(self, record: BeginRecord) -> int:
        """Tell from when the timeout of a begun call counts, by the clock of this primary.

        A call that was begun under another primary has a time of another clock. It was begun before this one was noted.
        """
        if record.primary == self.id or not self.id:
            return record.at_ms
        return max(self.since_ms, 0 if record.primary else record.at_ms)


def reads(shard: ShardKeys | FleetKeys) -> list[Command]:
    """Commands that `read_primary` understands."""
    return [REPLICATION, ("GET", shard.primary)]


def read_primary(shard: ShardKeys | FleetKeys, now_ms: int, info: Reply, stored: Reply) -> Primary:
    """Compare the server's replication id with the one that is stored for a shard, or for the fleet."""
    found = replication_id(info)
    known, _, since = fields.or_else(fields.text, stored, "").partition(" ")
    if not found or known == found:
        return Primary(found, int(since) if found and since.isdecimal() else 0)
    since_ms = now_ms if known else 0
    return Primary(found, since_ms, (("SET", shard.primary, f"{found} {since_ms}"),))


def replication_id(info: bytes) -> str:
    """Parse the reply to `REPLICATION`; "" where it names no id."""
    return fields.info_lines(info).get("master_replid", "")


class KnownServer:
    """The server that a process talks to, as far as it is known; forgotten when a connection is lost.

    Attributes:
        primary: Replication id; "" while it is not known.
        may_have_moved: A connection was lost since this was last set to False.
    """

    __slots__ = ("may_have_moved", "primary")

    def __init__(self) -> None:
        self.primary = ""
        self.may_have_moved = True

    def forget(self) -> None:
        """Forget it: the next connection may lead to another one."""
        self.primary, self.may_have_moved = "", True


class BeginMarks:
    """Fields of a journal that say under which primary calls were begun: after a failover another clock counts."""

    def __init__(self, journal: str, indexes: Sequence[int], server: KnownServer) -> None:
        """
        Args:
            journal: Key of the journal.
            indexes: The calls whose beginning is marked; those whose tool is asked later whether they happened.
        """
        self._journal = journal
        self._names = {index: f"t{index}:n" for index in indexes}
        self._server = server

    def commands(self) -> list[Command]:
        """Commands for the transaction that begins the calls, which also ask under which primary that is."""
        if not self._names:
            return []
        known = self._server.primary
        marks = [("HSETNX", self._journal, name, known) for name in self._names.values() if known]
        return [*marks, ("HMGET", self._journal, *self._names.values()), REPLICATION]

    def correct(self, replies: Sequence[Reply], begun: Collection[int]) -> list[Command]:
        """Commands that mend the marks of calls that were begun now: the primary was another one than was known."""
        if not replies:
            return []
        *_, stored, info = replies
        found = self._server.primary = replication_id(info)
        marked = zip(self._names.items(), stored, strict=True)
        wrong = [name for (index, name), mark in marked if index in begun and fields.text(mark) != found]
        return [("HSET", self._journal, *(word for name in wrong for word in (name, found)))] if wrong and found else []
