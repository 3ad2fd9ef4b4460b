"""The context of every part of the store: a database, a clock, the settings, and how step messages are published.

`StoreContext` is one for the whole store, `SessionScope` is one session of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Final, Protocol, TypeVar

from ...config.settings import Settings
from ..concurrency.turns import Turns
from ..errors import StateUnreadable
from .cache import SessionCache
from .clock import Clock
from .database import Command, Database, Reply, WatchedTransaction
from .keys import SessionKeys, ShardKeys, shard_keys, shard_of
from .records import StepRef
from .transaction_retries import retry_transaction

Answer = TypeVar("Answer")

# Scopes that are kept: a step asks for its session's four times.
_SCOPES: Final = 1024


class StepPublisher(Protocol):
    """Publishes step messages inside the store's transactions."""

    def commands(self, ref: StepRef, now_ms: int) -> Sequence[Command]:
        """Commands that publish the message inside a transaction of the store; none where that is not possible."""
        ...

    def count_commands(self, queue: str) -> Sequence[Command]:
        """One command that counts the messages in a queue; none where the queue is not in the store's database."""
        ...


class NoPublisher:
    """Publishes nothing: the caller publishes messages after the transaction."""

    def commands(self, ref: StepRef, now_ms: int) -> Sequence[Command]:
        """None."""
        del ref, now_ms
        return ()

    def count_commands(self, queue: str) -> Sequence[Command]:
        """None."""
        del queue
        return ()


@dataclass(frozen=True)
class StoreContext:
    """The parts of a store share one context.

    Attributes:
        ends: Lets the ends of one parent's children follow each other, by the parent's id.
        shards: The keys of each shard, by number.
        session: Takes one session of the store, by its id.
    """

    database: Database
    clock: Clock
    settings: Settings
    publisher: StepPublisher
    cache: SessionCache
    ends: Turns = field(default_factory=Turns)
    shards: tuple[ShardKeys, ...] = field(init=False)
    session: Callable[[str], SessionScope] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shards", shard_keys(self.settings.shards))
        object.__setattr__(self, "session", lru_cache(_SCOPES)(self._scope))

    def keys(self, session_id: str) -> SessionKeys:
        """Name the keys of a session."""
        return self.shards[shard_of(session_id, len(self.shards))].session(session_id)

    def _scope(self, session_id: str) -> SessionScope:
        return SessionScope(self, self.keys(session_id))

    def now_ms(self, point: str = "now") -> int:
        """Ask Redis for its time in milliseconds."""
        (reply,) = self.database.pipeline(point, [self.clock.now()])
        return self.clock.milliseconds(reply)

    def read_apart(self, point: str, groups: Sequence[Sequence[Command]]) -> list[list[Reply] | StateUnreadable]:
        """Read a group of replies for each session, in one round trip.

        Where a key of one session holds another type, each session is read alone, and the error stands in its place:
        the others are to be seen.
        """
        commands = [command for group in groups for command in group]
        try:
            replies = iter(self.database.pipeline(point, commands) if commands else ())
            return [[next(replies) for _ in group] for group in groups]
        except StateUnreadable as error:
            return [error] if len(groups) == 1 else [self.read_apart(point, [group])[0] for group in groups]

    @cached_property
    def lease_ms(self) -> int:
        """How long a lease lives without renewal."""
        return round(self.settings.lease_seconds * 1000)

    @cached_property
    def grace_ms(self) -> int:
        """How long after a lease's end the sweep looks at its step."""
        return round(self.settings.lease_grace_seconds * 1000)

    @cached_property
    def due_ms(self) -> int:
        """How long after a publication the sweep looks at the step."""
        return round(self.settings.due_seconds * 1000)

    @cached_property
    def agent_grace_ms(self) -> int:
        """How long a session waits for a worker that offers its agent before it is parked."""
        return round(self.settings.agent_grace_seconds * 1000)

    @cached_property
    def journal_ms(self) -> int:
        """How long a journal lives after its commit: never longer than the session after its end."""
        journal_ms = round(self.settings.journal_seconds * 1000)
        retention_ms = self.retention_ms
        return journal_ms if retention_ms is None else min(journal_ms, retention_ms)

    @cached_property
    def retention_ms(self) -> int | None:
        """How long a session's keys live after its last execution; None: for ever."""
        seconds = self.settings.retention_seconds
        return None if seconds is None else round(seconds * 1000)


class StorePart:
    """Verbs on one store. Each file of verbs derives a class from it, and a user's part of the store joins these."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context


@dataclass(frozen=True, slots=True)
class SessionScope:
    """One session of a store: what each of its transactions needs."""

    context: StoreContext
    keys: SessionKeys

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.keys.session_id

    @property
    def database(self) -> Database:
        """The store's database."""
        return self.context.database

    @property
    def clock(self) -> Clock:
        """The store's clock."""
        return self.context.clock

    @property
    def cache(self) -> SessionCache:
        """The sessions that this process read last."""
        return self.context.cache

    @property
    def settings(self) -> Settings:
        """The store's settings."""
        return self.context.settings

    def retry(self, attempt: Callable[[], Answer], *, purpose: str, lost_replies: int = 0) -> Answer:
        """Repeat an attempt after conflicts and lost replies; see `retry_transaction`.

        Raises:
            TooManyConflicts: The session changed each time.
        """
        message = f"session {self.session_id} changes too fast to {purpose}; try again"
        return retry_transaction(attempt, clock=self.clock, message=message, lost_replies=lost_replies)

    def start_lease(self, claim_id: str, worker: str, now_ms: int) -> list[Command]:
        """Start a lease, and have the sweep look at the session after its end."""
        context, due_ms = self.context, now_ms + self.context.lease_ms + self.context.grace_ms
        return [
            self.clock.start_lease(self.keys.shard.lease(claim_id), worker, context.lease_ms),
            ("ZADD", self.keys.shard.due, "XX", due_ms, self.session_id),
        ]

    def is_lease_alive(self, claim_id: str, point: str, watched: WatchedTransaction) -> bool:
        """Ask whether a claim's lease has not ended."""
        (alive,) = watched.pipeline(point, [("EXISTS", self.keys.shard.lease(claim_id or "-"))])
        return bool(alive)
