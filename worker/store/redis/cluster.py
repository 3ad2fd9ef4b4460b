"""`Database` on a Redis Cluster: a `RedisDatabase` for each node, and each round trip goes to the node of its keys.

A redirection (MOVED) does nothing on the node that sends it, so the map is read again and what was redirected is sent
once more. While a slot moves, its node redirects (ASK) or refuses (TRYAGAIN) what touches a key that is not there; that
is never followed, since a transaction would be torn between two nodes. The slot counts as away until it is stable.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import threading
from collections.abc import Callable, Generator, Sequence
from functools import cached_property
from typing import Any, Final, TypeVar

from ....config.redis_urls import ClusterUrl
from ...concurrency import fibers
from ...errors import StoreUnavailable
from ..database import Command, Confirmation, Guard, Reply, SlotAway, SlotMoved, WatchedTransaction, Word
from .connection import PlainSocket
from .database import POOL_OPTIONS, RedisDatabase, raise_errors
from .outages import has_moved
from .pools import make_pool
from .topology import NODE_SECONDS, Place, Topology, keys_of, slot_of

Answer = TypeVar("Answer")

# What names no key goes to the node of the keys of the fleet, unless the same round trip names one.
_ANY_KEY: Final = "ca:{fleet}:"
_THREADS: Final = 32


def connect_cluster(
    url: str,
    *,
    timeout_seconds: float,
    connections: int,
    name: str,
    plain_socket: PlainSocket | None = None,
    asks_primary: bool = False,
) -> ClusterDatabase:
    """Open pools of connections to the nodes of a cluster; nothing is sent yet. See `database.connect`.

    Args:
        connections: Most connections to each node.
    """
    named = ClusterUrl.parse(url)

    def open_node(place: Place) -> RedisDatabase:
        pool = make_pool(
            named.server, timeout_seconds=timeout_seconds, max_connections=connections, client_name=name,
            host=place[0], port=place[1], **POOL_OPTIONS,
        )  # fmt: skip
        return RedisDatabase(pool, plain_socket, is_node=True, asks_primary=asks_primary)

    return ClusterDatabase(Topology(named, lambda place, command: ask_node(named, place, command)), open_node)


def ask_node(url: ClusterUrl, place: Place, command: Command) -> Any:
    """Send one command to a node over a connection of its own.

    Raises:
        RedisError, OSError: It does not answer within a second, or refuses.
    """
    pool = make_pool(url.server, timeout_seconds=NODE_SECONDS, host=place[0], port=place[1])
    connection = pool.get_connection()
    try:
        connection.send_command(*command)
        return connection.read_response()
    finally:
        connection.disconnect()


class ClusterDatabase:
    """Commands by the slots of their keys; see `Database`.

    Attributes:
        on_lost: Called when the map of slots has changed, or a connection was lost.
    """

    def __init__(self, topology: Topology, open_node: Callable[[Place], RedisDatabase]) -> None:
        self.on_lost: Callable[[], object] = lambda: None
        self.topology = topology
        topology.on_change = self._forget
        self._open_node = open_node
        self._nodes: dict[Place, RedisDatabase] = {}
        self._lock = threading.Lock()

    def place(self, key: str) -> str:
        """Name the node that serves a key. See `Database.place`."""
        place = self._find(slot_of(key))
        return "" if place is None else f"{place[0]}:{place[1]}"

    def pipeline(self, point: str, commands: Sequence[Command]) -> list[Reply]:
        """Run the commands, in one round trip to each node that serves a key of them. See `Database.pipeline`."""
        replies = self._replies(point, commands)
        moved = [place for place, reply in enumerate(replies) if has_moved(reply)]
        if moved:
            fibers.run_in_thread(self.topology.read)
            again = self._replies(point, [commands[place] for place in moved])
            for place, reply in zip(moved, again, strict=True):
                replies[place] = reply
        with self._noticing():
            return raise_errors(replies)

    def transaction(self, point: str, commands: Sequence[Command]) -> list[Reply]:
        """Run the commands in one MULTI/EXEC. See `Database.transaction`."""
        return self._at(_first_key(commands), lambda node: node.transaction(point, commands))

    def compare_and_apply(self, point: str, guards: Sequence[Guard], commands: Sequence[Command]) -> list[Reply] | None:
        """Compare and apply by one script. See `Database.compare_and_apply`."""
        key = _first_key([*(read for read, _ in guards), *commands])
        return self._at(key, lambda node: node.compare_and_apply(point, guards, commands))

    @contextlib.contextmanager
    def watch(self, point: str, keys: Sequence[str], reads: Sequence[Command]) -> Generator[WatchedTransaction]:
        """WATCH and read in one round trip. See `Database.watch`."""
        with contextlib.ExitStack() as stack:
            found = self._at(keys[0], lambda node: stack.enter_context(node.watch(point, keys, reads)))
            with self._noticing():
                yield found

    def script(self, point: str, name: str, keys: Sequence[str], args: Sequence[Word]) -> Reply:
        """Run a script. See `Database.script`."""
        return self._at(keys[0], lambda node: node.script(point, name, keys, args))

    def script_command(self, name: str, keys: Sequence[str], args: Sequence[Word]) -> Command | None:
        """The command that runs a script. See `Database.script_command`."""
        return self._node(keys[0]).script_command(name, keys, args)

    def confirm(self, commands: Sequence[Command]) -> Confirmation:
        """Write, and wait for the replicas of a node. See `ReplicatedDatabase.confirm`."""
        with self._noticing():
            return self._node(_first_key(commands)).confirm(commands)

    def drop_connections(self, key: str) -> None:
        """Close the connections to the node of a key. See `ReplicatedDatabase.drop_connections`."""
        place = self._find(slot_of(key))
        if place is not None:
            self._node_at(place).drop_connections()

    def close(self) -> None:
        """Close the connections to all nodes."""
        for node in list(self._nodes.values()):
            node.close()

    def _forget(self) -> None:
        self.on_lost()

    def _at(self, key: Word, call: Callable[[RedisDatabase], Answer]) -> Answer:
        """Call with the node of a key; once more where its slot has moved, for then nothing was done."""
        try:
            with self._noticing():
                return call(self._node(key))
        except SlotMoved:
            with self._noticing():
                return call(self._node(key))

    @contextlib.contextmanager
    def _noticing(self) -> Generator[None]:
        """Read the map again where a node says that it is wrong, or does not answer."""
        try:
            yield
        except SlotMoved:
            fibers.run_in_thread(self.topology.read)
            raise
        except StoreUnavailable:
            self.topology.read_soon()
            raise

    def _replies(self, point: str, commands: Sequence[Command]) -> list[Reply]:
        """Send each command to its node, the nodes side by side; errors of Redis are among the replies.

        Raises:
            StoreUnavailable: A node did not answer. The others have carried out what they were sent.
        """
        groups: dict[Place, list[int]] = {}
        default = _first_key(commands)
        for index, command in enumerate(commands):
            key = next(iter(keys_of(command)), default)
            groups.setdefault(self._find_or_raise(key), []).append(index)

        def send(place: Place) -> list[Reply]:
            with self._noticing():
                return self._node_at(place).exchange([commands[index] for index in groups[place]], point)

        if len(groups) == 1:
            return send(next(iter(groups)))
        sent = fibers.run_in_thread(lambda: [self._submit(send, place) for place in groups])
        replies: list[Reply] = [None] * len(commands)
        for indexes, future in zip(groups.values(), sent, strict=True):
            for index, reply in zip(indexes, fibers.result(future), strict=True):
                replies[index] = reply
        return replies

    def _submit(self, send: Callable[[Place], list[Reply]], place: Place) -> concurrent.futures.Future[list[Reply]]:
        """Send in a thread, which notes the primaries that it uses for the caller."""
        return self._threads.submit(contextvars.copy_context().run, send, place)

    @cached_property
    def _threads(self) -> concurrent.futures.ThreadPoolExecutor:
        return concurrent.futures.ThreadPoolExecutor(_THREADS, "celery-agents-node")

    def _find(self, slot: int) -> Place | None:
        return self.topology.find(slot) if self.topology.is_known else fibers.run_in_thread(self.topology.find, slot)

    def _find_or_raise(self, key: Word) -> Place:
        place = self._find(slot_of(key))
        if place is None:
            self.topology.read_soon()
            raise SlotAway("no node of the cluster serves a slot; look at redis-cli --cluster check")
        return place

    def _node(self, key: Word) -> RedisDatabase:
        return self._node_at(self._find_or_raise(key))

    def _node_at(self, place: Place) -> RedisDatabase:
        node = self._nodes.get(place)
        if node is None:
            with self._lock:
                node = self._nodes.get(place)
                if node is None:
                    node = self._open_node(place)
                    node.on_lost = self._forget
                    self._nodes[place] = node
        return node


def _first_key(commands: Sequence[Command]) -> Word:
    """The first key that one of the commands names."""
    return next((key for command in commands for key in keys_of(command)), _ANY_KEY)
