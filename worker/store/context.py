"""What all parts of the step store stand on: a database, a clock, the settings and how messages go out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ...config.settings import Settings
from .cache import SessionCache
from .clock import Clock
from .database import Command, Database
from .keys import SessionKeys, ShardKeys, shard_keys, shard_of
from .records import StepRef


class StepPublisher(Protocol):
    """How the message of the next step leaves."""

    def commands(self, ref: StepRef, now_ms: int) -> Sequence[Command]:
        """Commands that publish the message inside a transaction of the store; none where that is not possible."""
        ...

    def waiting(self) -> Sequence[Command]:
        """One command that counts the messages in the queue; none where the store's database does not know."""
        ...


class NoPublisher:
    """Messages are published by somebody else, after the transaction."""

    def commands(self, ref: StepRef, now_ms: int) -> Sequence[Command]:
        """None."""
        del ref, now_ms
        return ()

    def waiting(self) -> Sequence[Command]:
        """None."""
        return ()


@dataclass(frozen=True)
class StoreContext:
    """Shared by claims, journal, commits, actions, sweep and reads."""

    database: Database
    clock: Clock
    settings: Settings
    publisher: StepPublisher
    cache: SessionCache
    shards: tuple[ShardKeys, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shards", shard_keys(self.settings.shards))

    def keys(self, session_id: str) -> SessionKeys:
        """Keys of a session."""
        return self.shards[shard_of(session_id, len(self.shards))].session(session_id)

    @property
    def lease_ms(self) -> int:
        """Life of a lease."""
        return round(self.settings.lease_seconds * 1000)

    @property
    def grace_ms(self) -> int:
        """From a lease's end to the sweep's next look."""
        return round(self.settings.lease_grace_seconds * 1000)

    @property
    def due_ms(self) -> int:
        """From a publication to the sweep's look at it."""
        return round(self.settings.due_seconds * 1000)

    @property
    def journal_ms(self) -> int:
        """Life of a journal after its commit."""
        return round(self.settings.journal_seconds * 1000)

    @property
    def retention_ms(self) -> int | None:
        """Life of a session's keys after its last execution."""
        seconds = self.settings.retention_seconds
        return None if seconds is None else round(seconds * 1000)
