"""Confirmations: what acts outside Redis first learns that enough replicas have what it acts on.

Replication keeps the order of writes, so one confirmation covers everything that was written before it. WAIT covers
what its own connection has written last, so a confirmation writes a key of its own first. One is under way at a time in
a process and to a server, for all that wait meanwhile.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ...config.redis_urls import uses_sentinels
from ...config.settings import Settings
from ..concurrency import fibers
from ..errors import CeleryAgentsError, NotConfirmed, StoreUnavailable
from .database import USED_PRIMARIES, Command, Confirmation, KnownServer, ReplicatedDatabase
from .keys import FleetKeys, ShardKeys

# The key outlives pauses between confirmations, so that a full Redis takes the next one: PEXPIRE needs no memory.
_KEY_MS: Final = 40 * 24 * 3_600_000
# A replica that Sentinels can choose runs on each of three hosts, and one confirmation outvotes the host that is lost.
# They may still choose the other replica while the primary is there: an operator wishes it, or it was slow for them.
_OF_THREE_HOSTS: Final = 2
_FEW_SECONDS: Final = 10.0
"""Sentinels look for another replica so often."""


def most_replicas(settings: Settings) -> int:
    """The most replicas that the primary has; one more may be a client that only acknowledges like a replica."""
    if settings.replicas == 1 and uses_sentinels(settings.redis_url):
        return _OF_THREE_HOSTS
    return settings.replicas


Confirmable = ShardKeys | FleetKeys
"""Keys with one of their own for confirmations."""


@dataclass(frozen=True, slots=True, eq=False)
class _Ticket:
    """One who waits for a confirmation.

    Attributes:
        key: What is written before the wait.
        future: Gives the confirmation, or None to the one who has to ask for the next.
    """

    key: str
    future: concurrent.futures.Future[Confirmation | None] = field(
        default_factory=concurrent.futures.Future[Confirmation | None]
    )


class Confirmer:
    """Confirms what the callers of one process have written or read. Safe between threads and fibers."""

    def __init__(
        self, database: ReplicatedDatabase, settings: Settings, ask_servers: Callable[[], Sequence[KnownServer]]
    ) -> None:
        """
        Args:
            ask_servers: Asks all servers that the Sentinels know. It may raise StoreUnavailable.
        """
        self._database = database
        self._ask_servers = ask_servers
        self._wanted = settings.replicas
        self._most = self._awaited = most_replicas(settings)
        self._few_until = float("-inf")
        self._timeout_ms = round(settings.replica_timeout_seconds * 1000)
        self._rounds: dict[str, _Rounds] = {}

    @contextlib.contextmanager
    def noting(self) -> Generator[set[str]]:
        """Note the primaries to which the connections led that are used in this block, by their replication ids."""
        used = set[str]()
        token = USED_PRIMARIES.set(used)
        try:
            yield used
        finally:
            USED_PRIMARIES.reset(token)

    @contextlib.contextmanager
    def acknowledging(self, keys: Confirmable) -> Generator[None]:
        """Confirm at the end of this block what it has written or found.

        Raises:
            NotConfirmed: It is written, and too few replicas have it, or another server is primary by now.
        """
        with self.noting() as used:
            yield
        self.confirm(keys, used)

    def confirm(self, keys: Confirmable, used: Collection[str]) -> None:
        """Wait until enough replicas have all that their server stores by now.

        Args:
            keys: The shard, or the fleet's keys, where it was written and read; any others of the same server will do.
            used: What `noting` has noted of the connections over which it was written and read.
        Raises:
            NotConfirmed: They do not have it in time, or it was written to another primary.
        """
        place = self._database.place(keys.confirm)
        rounds = self._rounds.get(place) or self._rounds.setdefault(place, _Rounds(self._confirm))
        found = rounds.ask(keys.confirm)
        if why := self._objection(found):
            raise NotConfirmed(why)
        if set(used) != {found.primary}:  # none is known where the server tells none: nothing would be compared
            # Connections of a former primary are of no use; one whose primary has changed its id is told by no error.
            self._database.drop_connections(keys.confirm)
            raise NotConfirmed("another server is primary by now, or the primary has another replication id")

    def _objection(self, found: Confirmation) -> str:
        """Why a confirmation does not count; "" when it does."""
        if not found.is_primary:
            return "the server is no primary any more"
        if not found.primary:
            return (
                "the server tells no replication id, by which a failover is noticed; let this user run INFO replication"
            )
        if found.connected > self._most:
            return (
                f"{found.connected} replicas are connected, and there are to be at most {self._most}; end the client "
                "that acknowledges like a replica, or correct CELERY_AGENTS_REPLICAS"
            )
        if found.acknowledged < self._wanted:
            return f"{found.acknowledged} of {self._wanted} replicas have it"
        return found.doubt

    def _confirm(self, keys: Collection[str]) -> Confirmation:
        writes: list[Command] = []
        for key in keys:
            writes += [("HSETNX", key, "at", 1), ("PEXPIRE", key, _KEY_MS)]
        found, awaited = self._wait(writes), self._awaited
        connected = min(found.connected, self._most)
        self._awaited = max(self._wanted, connected)
        if found.acknowledged < connected and awaited < self._awaited:
            found = self._wait(writes)  # a replica has come since, and was not waited for
        if self._wanted <= found.acknowledged < self._most:
            found = replace(found, doubt=self._doubt(found))
        return found

    def _wait(self, writes: Sequence[Command]) -> Confirmation:
        return self._database.confirm([*writes, ("WAIT", self._awaited, self._timeout_ms)])

    def _doubt(self, found: Confirmation) -> str:
        """Why a server that lacks what was written may become the primary, or is it; "" when none may."""
        if time.monotonic() < self._few_until:
            return ""
        linked, servers = 0, fibers.run_in_thread(self._ask_servers)
        for each in servers:
            if not each.primary:
                continue  # whoever could choose it is cut off with it
            if each.primary == found.former and not each.is_replica:
                continue  # the former primary, which the Sentinels have not told yet
            if each.primary != found.primary or (each.is_replica and not each.is_linked):
                return f"{each.address} does not follow this primary: it may take its place, or has just come back"
            linked += each.is_linked
        if linked > found.acknowledged:
            return f"{found.acknowledged} of {linked} replicas have it"
        if len(servers) <= 1 + found.acknowledged:  # there are no others than those that have it
            self._few_until = time.monotonic() + _FEW_SECONDS
        return ""


class _Rounds:
    """The confirmations of one server: one is under way, and whoever comes meanwhile shares the next."""

    def __init__(self, confirm: Callable[[Collection[str]], Confirmation]) -> None:
        self._confirm = confirm
        self._lock = threading.Lock()
        self._waiting: list[_Ticket] = []
        self._is_asking = False

    def ask(self, key: str) -> Confirmation:
        """Ask the server, or wait for one who asks."""
        ticket = _Ticket(key)
        with self._lock:
            self._waiting.append(ticket)
            must_ask, self._is_asking = not self._is_asking, True
        try:
            if not must_ask and (found := fibers.result(ticket.future)) is not None:
                return found
        except (KeyboardInterrupt, SystemExit):
            self._leave(ticket)
            raise
        return self._ask_for_all()

    def _leave(self, ticket: _Ticket) -> None:
        """Take the ticket of an interrupted thread out; the next one asks where that was its turn."""
        with self._lock:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            is_its_turn = ticket.future.done() and ticket.future.exception() is None and ticket.future.result() is None
        if is_its_turn:
            self._pass_on()

    def _ask_for_all(self) -> Confirmation:
        with self._lock:
            tickets, self._waiting = self._waiting, []
        try:
            found = self._confirm(dict.fromkeys(ticket.key for ticket in tickets))
        except BaseException as error:
            told = error if isinstance(error, CeleryAgentsError) else StoreUnavailable("a confirmation was interrupted")
            for each in tickets:
                _end(each, told)
            raise
        finally:
            self._pass_on()
        for each in tickets:
            _end(each, found)
        return found

    def _pass_on(self) -> None:
        """Let the first of those that came meanwhile ask."""
        with self._lock:
            following = self._waiting[0] if self._waiting else None
            self._is_asking = following is not None
        if following is not None:
            _end(following, None)


def _end(ticket: _Ticket, found: Confirmation | CeleryAgentsError | None) -> None:
    """Tell one who waits; the one who asks has a ticket too, and may have been told to ask."""
    if ticket.future.done():
        return
    if isinstance(found, CeleryAgentsError):
        ticket.future.set_exception(found)
    else:
        ticket.future.set_result(found)
