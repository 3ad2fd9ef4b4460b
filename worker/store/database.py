"""What the store needs of a database: atomic batches of a few commands, and WATCH.

Two implementations: Redis (`redis_tables`) and memory (`memory_tables`). The protocol of a step is written once, above
them, so that the two cannot drift apart; the contract suite runs on both.

Every call is one round trip with a name. The name is where tests crash, delay or lose a reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

Word = str | bytes | int | float
Command = tuple[Word, ...]
# A read, and what it has to answer word by word; "" for what is not there.
Guard = tuple[Command, Sequence[Word]]
# Redis replies are what they are: bytes, int, None or lists of them. Decoding stays in `fields`.
Reply = Any


class Changed(Exception):
    """A watched key was changed, or so the database says: nothing of *this* answer proves that nothing was applied."""


class WatchedTransaction(Protocol):
    """An open WATCH: the values read under it, and the one transaction that may follow."""

    replies: list[Reply]

    def pipeline(self, point: str, commands: Sequence[Command], *, also: Sequence[str] = ()) -> list[Reply]:
        """Read more under the same WATCH, from now on of the keys `also` too; one round trip."""
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
            Their replies. None: nothing was applied, because a guard does not hold or it is too much for one script.
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
        """Run one of the named scripts of `scripts` atomically."""
        ...
