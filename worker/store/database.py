"""The database interface: atomic batches of a few commands, and WATCH.

It has two implementations, `redis.database` and `memory.database`. The protocol of a step is written once, above them,
so that the two cannot drift apart; the contract suite runs on both.

Every call is one round trip with a name, its `point`. At these names tests crash, delay or lose a reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ..errors import StoreUnavailable

Word = str | bytes | int | float
Command = tuple[Word, ...]
# A read and the words that it has to answer; "" for a missing one.
Guard = tuple[Command, Sequence[Word]]
# bytes, int, None or lists of them; `fields` decodes them.
Reply = Any


USED_PRIMARIES: Final[ContextVar[set[str] | None]] = ContextVar("USED_PRIMARIES", default=None)
"""Collects the replication ids that the used connections led to when they were opened. None: nobody asks."""


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The answer of a server about its replicas, behind a WAIT.

    Attributes:
        acknowledged: How many replicas have what was written before.
        connected: How many replicas are connected.
        is_primary: It has not become a replica.
        primary: Its replication id, which no other primary has, and it has not had before it was last a replica.
        former: The replication id of the primary that it followed before it was one; nobody's where it followed none.
        doubt: Why a server that lacks it may become the primary, or is it already; "" when none may.
    """

    acknowledged: int
    connected: int
    is_primary: bool
    primary: str
    former: str = ""
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class KnownServer:
    """A server that Sentinels know.

    Attributes:
        address: Host and port.
        primary: The replication id of what it holds: its own, or that of its primary. "": it does not answer.
        is_replica: It is none that takes writes.
        is_linked: It is a replica that is connected to its primary, and has all data.
    """

    address: str
    primary: str = ""
    is_replica: bool = True
    is_linked: bool = False


class Changed(Exception):
    """The database says that a watched key was changed. This does not prove that nothing was applied."""


class SlotAway(StoreUnavailable):
    """A slot of a cluster is moving, or no node serves it. Nothing was done; its node's other slots are served."""


class SlotMoved(SlotAway):
    """A slot of a cluster is on another node by now. Nothing was done."""


class WatchedTransaction(Protocol):
    """An open WATCH: the values read under it, and the one transaction that may follow."""

    replies: list[Reply]

    def pipeline(self, point: str, commands: Sequence[Command], *, also: Sequence[str] = ()) -> list[Reply]:
        """Read more under the same WATCH, which covers the keys `also` from now on; one round trip."""
        ...

    def commit(self, point: str, commands: Sequence[Command]) -> list[Reply]:
        """Apply the commands if no watched key changed; one round trip.

        Raises:
            Changed: A watched key changed, or the reply was lost and redis says so.
            StoreFull: Redis refused to write; nothing was applied.
            StoreUnavailable: No answer in time. The commands may have been applied.
        """
        ...


class Database(Protocol):
    """A database with Redis's commands and semantics."""

    def pipeline(self, point: str, commands: Sequence[Command]) -> list[Reply]:
        """Run the commands in one round trip, not atomically."""
        ...

    def transaction(self, point: str, commands: Sequence[Command]) -> list[Reply]:
        """Run the commands in one MULTI/EXEC and one round trip."""
        ...

    def compare_and_apply(self, point: str, guards: Sequence[Guard], commands: Sequence[Command]) -> list[Reply] | None:
        """Run the commands if every guard holds, atomically and in one round trip.

        Returns:
            Their replies. None: nothing was applied; a guard does not hold, or it is too much for one script.
        Raises:
            StoreFull: Redis refused to write; nothing was applied, if the first command that writes needs memory.
            StoreUnavailable: No answer in time. The commands may have been applied.
        """
        ...

    def watch(
        self, point: str, keys: Sequence[str], reads: Sequence[Command]
    ) -> AbstractContextManager[WatchedTransaction]:
        """WATCH the keys and read, in one round trip; on leaving the block the watch is given up."""
        ...

    def script(self, point: str, name: str, keys: Sequence[str], args: Sequence[Word]) -> Reply:
        """Run one of the named scripts of `redis.scripts` atomically."""
        ...

    def script_command(self, name: str, keys: Sequence[str], args: Sequence[Word]) -> Command | None:
        """The command that runs a script within a transaction; None before the first `script` of this name.

        Its reply, in a transaction or a pipeline, is None where the database has forgotten the script: it did not run.
        """
        ...

    def place(self, key: str) -> str:
        """Name the server of a key; "" where there is one server, or no node of a cluster serves the key."""
        ...

    def close(self) -> None:
        """Close all connections; a later call opens new ones."""
        ...


def run_scripts(
    database: Database, point: str, name: str, runs: Sequence[tuple[Sequence[str], Sequence[Word]]]
) -> list[Reply]:
    """Run a script several times, with the keys and words of each run; in one round trip once the database knows it."""
    commands = [database.script_command(name, keys, words) for keys, words in runs]
    known = [command for command in commands if command is not None]
    are_known = len(runs) > 1 and len(known) == len(runs)
    replies = database.pipeline(point, known) if are_known else [None] * len(runs)
    return [
        database.script(point, name, keys, words) if reply is None else reply
        for (keys, words), reply in zip(runs, replies, strict=True)
    ]


class ReplicatedDatabase(Database, Protocol):
    """A database that can tell whether its replicas have what was written."""

    def confirm(self, commands: Sequence[Command]) -> Confirmation:
        """Write and wait on a connection alone, in one round trip.

        Args:
            commands: For one key or more of one server a write that may be refused, and one that is not; then WAIT. It
                follows a write as soon as one of the keys is there: others may be on their way to another node.
        Raises:
            SlotAway: All keys are on their way, or elsewhere.
        """
        ...

    def drop_connections(self, key: str) -> None:
        """Close all connections to the server of a key: a former primary, or one with another replication id by now."""
        ...
