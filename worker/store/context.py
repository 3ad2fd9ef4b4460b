"""The context of every part of the store: a database, a clock, the settings, and how step messages are published.

`StoreContext` is one for the whole store, `SessionScope` is one session of it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import islice
from typing import Final, TypeVar

from ...config.redis_urls import uses_cluster
from ...config.settings import Settings
from ..concurrency import fibers
from ..concurrency.shared_lock import Turns
from ..errors import StateUnreadable, StoreUnavailable
from .cache import SessionCache
from .clock import RedisClock
from .confirming import Confirmable, Confirmer
from .database import Changed, Command, Database, Reply, SlotAway, WatchedTransaction
from .keys import FleetKeys, SessionKeys, ShardKeys, shard_keys, shard_of
from .primaries import KnownServer
from .records import StepRef
from .shards import Layout

Answer = TypeVar("Answer")

# Scopes that are kept: a step asks for its session's four times.
_SCOPES: Final = 1024
# Transactions of one session compete with each other and with the sweep; each attempt takes about a millisecond.
_CONFLICTS: Final = 100
_PAUSE_SECONDS: Final = 0.05
_LOST_REPLIES: Final = 5
_THREADS: Final = 32


class Publisher:
    """Publishes step messages inside the store's transactions; this one publishes none, so that the caller has to."""

    def commands(self, ref: StepRef, now_ms: int) -> Sequence[Command]:
        """Commands that publish the message inside a transaction of the store; none where that is not possible."""
        del ref, now_ms
        return ()

    def next_commands(self, queue: str) -> Sequence[Command]:
        """One command that reads the message which a queue gives next; none where nothing is put in front of it."""
        del queue
        return ()

    def commands_in_front(self, ref: StepRef, now_ms: int, following: bytes | None) -> Sequence[Command]:
        """Commands that put the message in front of its queue, as `commands`; only where `next_commands` gives some.

        Args:
            following: What `next_commands` has read; None: the queue is empty.
        """
        del following
        return self.commands(ref, now_ms)

    def lane_commands(self, ref: StepRef) -> Sequence[Command]:
        """One command that reads the oldest entry of a step's lane; none where steps do not wait in lanes."""
        del ref
        return ()

    def ask_queues(self, database: Database, point: str, commands: Sequence[Command]) -> list[Reply]:
        """Run commands in one round trip to where the queues are: the store's database here."""
        return database.pipeline(point, commands)

    def count_commands(self, queue: str) -> Sequence[Command]:
        """One command that counts the messages in a queue; none where the queue is not in the store's database."""
        del queue
        return ()


class TooManyConflicts(StoreUnavailable):
    """Other transactions changed the session each time. Nothing was written."""


@dataclass(frozen=True)
class StoreContext:
    """The parts of a store share one context.

    Attributes:
        ends: Lets the ends of one parent's children follow each other, by the parent's id.
        known: What is known of servers, by their place; see `forget_server`.
        fleet: Keys of the whole fleet.
        layout: What the store says of its shards and its entries.
        unread: Shards that could not be read when they were last to be: their node of the cluster is away.
        confirmer: Confirms what acts outside Redis. None: replication is not waited for.
        confirms_actions: Actions are confirmed too: their callers are outside.
        session: Takes one session of the store, by its id.
    """

    database: Database
    clock: RedisClock
    settings: Settings
    publisher: Publisher
    cache: SessionCache
    ends: Turns = field(default_factory=Turns)
    known: dict[str, KnownServer] = field(default_factory=lambda: defaultdict(KnownServer))
    unread: set[ShardKeys] = field(default_factory=set["ShardKeys"])
    confirmer: Confirmer | None = None
    confirms_actions: bool = False
    fleet: FleetKeys = field(init=False)
    session: Callable[[str], SessionScope] = field(init=False)
    layout: Layout = field(init=False, default_factory=Layout)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fleet", FleetKeys(is_apart=uses_cluster(self.settings.redis_url)))
        object.__setattr__(self, "session", lru_cache(_SCOPES)(self._scope))

    @property
    def shards(self) -> tuple[ShardKeys, ...]:
        """The keys of each shard, by number; the first use asks the store, where the settings name no number.

        Raises:
            ConfigurationError: See `Layout.read`.
        """
        if not self.layout.shards:
            if self.settings.shards is None:
                self.check_shards()
            else:
                self.layout.shards = shard_keys(self.settings.shards)
        return self.layout.shards

    def check_shards(self) -> None:
        """Ask the store for its layout, and keep it: the number of shards stays as long as a Redis holds sessions.

        Raises:
            ConfigurationError: See `Layout.read`.
        """
        self.layout.read(self.database, self.fleet, self.settings.shards or len(self.layout.shards) or None)

    def ask_queues(self, point: str, commands: Sequence[Command]) -> list[Reply]:
        """Run commands in one round trip to where the queues are; see `Publisher.ask_queues`."""
        return self.publisher.ask_queues(self.database, point, commands)

    @property
    def server(self) -> KnownServer:
        """The only server, or in a cluster the fleet's."""
        return self.known[""]

    def servers(self, shards: Sequence[ShardKeys] | None = None) -> list[list[ShardKeys]]:
        """Shards, all of them by default, by the server that they are on: one list, unless the store is a cluster."""
        found: dict[str, list[ShardKeys]] = {}
        for shard in self.shards if shards is None else shards:
            found.setdefault(self.database.place(shard.due), []).append(shard)
        return list(found.values())

    def read_shards(
        self,
        point: str,
        reads: Callable[[ShardKeys], Sequence[Command]],
        shards: Sequence[ShardKeys] | None = None,
    ) -> dict[ShardKeys, list[Reply]]:
        """Read the same of shards, in one round trip to each server, these side by side.

        Args:
            reads: At least one command for each shard.
            shards: None: all.
        Returns:
            The replies by shard. Those of a cluster's node that does not answer are missing, and `unread` names them.
        Raises:
            StoreUnavailable: No server answers.
        """
        wanted = self.shards if shards is None else shards

        def read(some: Sequence[ShardKeys]) -> dict[ShardKeys, list[Reply]]:
            commands = {shard: reads(shard) for shard in some}
            replies = iter(self.database.pipeline(point, [each for words in commands.values() for each in words]))
            return {shard: list(islice(replies, len(each))) for shard, each in commands.items()}

        if not self.fleet.is_apart:
            return read(wanted)
        found, away = dict[ShardKeys, list[Reply]](), list[StoreUnavailable]()
        for future in [self._threads.submit(self.apart, read, some) for some in self.servers(wanted)]:
            try:
                for each in fibers.result(future):
                    found |= each
            except StoreUnavailable as error:
                away.append(error)
        self.unread.difference_update(wanted)
        self.unread.update(shard for shard in wanted if shard not in found)
        if away and not found:
            raise away[0]
        return {shard: found[shard] for shard in wanted if shard in found}

    def apart(self, call: Callable[[Sequence[ShardKeys]], Answer], shards: Sequence[ShardKeys]) -> list[Answer]:
        """Call for the shards of a server together; where the slot of one moves, for each of the others alone.

        Raises:
            SlotAway: The slots of all move, or are served by no node.
        """
        try:
            return [call(shards)]
        except SlotAway as error:
            away, found = error, list[Answer]()
        for shard in shards if len(shards) > 1 else ():
            with contextlib.suppress(SlotAway):
                found.append(call([shard]))
        if not found:
            raise away
        return found

    @cached_property
    def _threads(self) -> concurrent.futures.ThreadPoolExecutor:
        return concurrent.futures.ThreadPoolExecutor(_THREADS, "celery-agents-server")

    def forget_server(self) -> None:
        """Forget the server's time and its id: the next connection may lead to another one."""
        self.clock.forget()
        for server in list(self.known.values()):
            server.forget()
        if self.fleet.is_apart:  # shards may be on other servers by now
            self.session.cache_clear()  # pyright: ignore[reportFunctionMemberAccess]

    def acknowledging(self, shard: Confirmable) -> AbstractContextManager[None]:
        """Confirm an action of a client that is carried out in this block; see `Confirmer.acknowledging`."""
        return self.confirming(shard) if self.confirms_actions else nullcontext()

    def confirming(self, shard: Confirmable) -> AbstractContextManager[None]:
        """Confirm what this block has written or found, where confirmations are on; see `Confirmer.acknowledging`."""
        return nullcontext() if self.confirmer is None else self.confirmer.acknowledging(shard)

    def noting(self) -> AbstractContextManager[set[str]]:
        """Note the primaries that this block uses, where confirmations are on; see `Confirmer.noting`."""
        return nullcontext(set[str]()) if self.confirmer is None else self.confirmer.noting()

    def confirm(self, shard: Confirmable, used: Collection[str]) -> None:
        """Confirm all that is stored by now, where confirmations are on; see `Confirmer.confirm`."""
        if self.confirmer is not None:
            self.confirmer.confirm(shard, used)

    def keys(self, session_id: str) -> SessionKeys:
        """Name the keys of a session."""
        return self.shards[shard_of(session_id, len(self.shards))].session(session_id)

    def _scope(self, session_id: str) -> SessionScope:
        return SessionScope(self, self.keys(session_id))

    def now_ms(self, point: str = "now") -> int:
        """Ask Redis for its time in milliseconds; in a cluster, any node that answers."""
        if not self.fleet.is_apart:
            (reply,) = self.database.pipeline(point, [self.clock.now()])
            return self.clock.milliseconds(reply)
        away: StoreUnavailable | None = None
        for key in (self.fleet.flow, *(shards[0].due for shards in self.servers())):
            try:
                return self._now_near(point, key)
            except StoreUnavailable as error:
                away = error
        raise away or StoreUnavailable("the store has no shards")

    def now_of(self, session_id: str) -> int:
        """Ask the server of a session for its time in milliseconds."""
        return self._now_near("now", self.keys(session_id).ctl) if self.fleet.is_apart else self.now_ms()

    def _now_near(self, point: str, key: str) -> int:
        reply, _ = self.database.pipeline(point, [self.clock.now(), ("EXISTS", key)])
        return self.clock.at(self.database.place(key)).milliseconds(reply)

    def read_apart(self, point: str, groups: Sequence[Sequence[Command]]) -> list[list[Reply] | StateUnreadable]:
        """Read a group of replies for each session, in one round trip.

        Where a key of one session holds another type, each session is read alone, and the error takes its place: the
        others are to be seen.
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
    def settle_ms(self) -> int:
        """How long a write has to be in Redis to be on its disk and its replicas, where no crash takes it back."""
        return round(self.settings.archive_settle_seconds * 1000)

    @cached_property
    def ended_ms(self) -> int | None:
        """How long the keys of a session live after its end; None: for ever, or until the archive has it."""
        return self.retention_ms if self.settings.archive_url is None else None

    @cached_property
    def retention_ms(self) -> int | None:
        """How long a session, or its mark, lives after its last execution; None: for ever."""
        seconds = self.settings.retention_seconds
        return None if seconds is None else round(seconds * 1000)


class StorePart:
    """Verbs on one store. Each file of verbs derives a class from it, and a user's part of the store joins these."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context


class SessionScope:
    """One session of a store: what each of its transactions needs.

    Attributes:
        place: Names the server that the session is on.
        cache: The sessions that this process read last.
    """

    __slots__ = ("cache", "clock", "context", "database", "keys", "place", "session_id", "settings")

    def __init__(self, context: StoreContext, keys: SessionKeys) -> None:
        self.context = context
        self.keys = keys
        self.session_id = keys.session_id
        self.database = context.database
        self.place = context.database.place(keys.session) if context.fleet.is_apart else ""
        self.clock = context.clock.at(self.place)
        self.cache = context.cache
        self.settings = context.settings

    def retry(self, attempt: Callable[[], Answer], purpose: str, *, lost_replies: int = 0) -> Answer:
        """Repeat an attempt until no watched key changes under it; it reads, decides and writes.

        Args:
            purpose: What the session changes too fast for, in the error.
            lost_replies: How often the attempt is repeated after `StoreUnavailable`, each after a longer pause.
        Raises:
            TooManyConflicts: Each attempt met a conflict.
            StoreUnavailable: More replies were lost than that.
        """
        lost = 0
        for _ in range(_CONFLICTS):
            try:
                return attempt()
            except Changed:
                continue
            except StoreUnavailable:
                lost += 1
                if lost > lost_replies:
                    raise
                self.clock.pause(_PAUSE_SECONDS * lost)
        raise TooManyConflicts(f"session {self.session_id} changes too fast to {purpose}; try again")

    def apply_once(self, attempt: Callable[[], Answer], purpose: str) -> Answer:
        """Repeat an attempt as `retry` does, and after five lost replies too.

        No exception of EXEC proves that nothing was written, so the attempt first finds out whether it was applied.
        """
        return self.retry(attempt, purpose, lost_replies=_LOST_REPLIES)

    def act_once(self, attempt: Callable[[], Answer], purpose: str) -> Answer:
        """Carry a client's action out by `apply_once`, and confirm it, also where it was carried out before."""
        with self.context.acknowledging(self.keys.shard):
            return self.apply_once(attempt, purpose)

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
