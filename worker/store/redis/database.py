"""`Database` on a real Redis, over redis-py's connections.

redis-py's own pipelines need a round trip for WATCH alone and retry commands by default; both are wrong here
(docs/protocol.md, "Rules for talking to Redis"). So this module packs the commands of one round trip itself and retries
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from redis.exceptions import (
    AuthenticationError,
    MaxConnectionsError,
    NoPermissionError,
    NoScriptError,
    RedisError,
    ResponseError,
)
from redis.sentinel import MasterNotFoundError

from ...errors import (
    WRONG_TYPE,
    CeleryAgentsError,
    ConfigurationError,
    LoginRefused,
    StateUnreadable,
    StoreForbidden,
    StoreFull,
    StoreUnavailable,
)
from .. import fields
from ..database import USED_PRIMARIES, Changed, Command, Confirmation, Guard, Reply, SlotMoved, Word
from ..primaries import REPLICATION, replication_id
from .connection import PlainSocket, RedisConnection
from .connections import RedisConnections
from .outages import TLS_ADVICE, RedisIsAway, find_outage, find_slot, find_wrong_url, has_moved
from .pools import make_pool
from .scripts import SCRIPTS
from .topology import keys_of

_MULTI: Final = ("MULTI",)
_EXEC: Final = ("EXEC",)
# redis-py keeps a buffer of this size for each connection; there may be hundreds.
POOL_OPTIONS: Final[Mapping[str, Any]] = {"socket_read_size": 16_384}
FORBIDDEN_SECONDS: Final = 60.0
"""What this user may not do is tried again so much later: the permission may have been given."""

# Lua's stack takes no more than 8000 values at once.
_MOST_WORDS: Final = 4_000


def connect(
    url: str,
    *,
    timeout_seconds: float,
    connections: int,
    name: str,
    plain_socket: PlainSocket | None = None,
    asks_primary: bool = False,
) -> RedisDatabase:
    """Open a pool of connections; nothing is sent yet.

    Args:
        url: As the setting `redis_url` has it.
        timeout_seconds: An answer later than this counts as lost.
        connections: Most connections at once.
        name: Shown by `CLIENT LIST`.
        plain_socket: Lets the fibers of a loop share one connection. None: each round trip takes a connection alone.
        asks_primary: Each connection asks for the replication id of its server, so that writes can be confirmed.
    Raises:
        ConfigurationError: The URL cannot be read.
    """
    pool = make_pool(
        url, timeout_seconds=timeout_seconds, max_connections=connections, client_name=name, **POOL_OPTIONS
    )
    return RedisDatabase(pool, plain_socket, asks_primary=asks_primary)


def connect_to_wait(
    url: str, *, timeout_seconds: float, name: str, plain_socket: PlainSocket, tls: Mapping[str, Any]
) -> RedisDatabase:
    """Open a connection for commands that block in Redis: fibers run meanwhile, and nothing else may use it.

    Args:
        timeout_seconds: More than a command blocks.
        tls: redis-py's options for TLS, besides those in the URL.
    Raises:
        ConfigurationError: The URL cannot be read.
    """
    pool = make_pool(url, timeout_seconds=timeout_seconds, max_connections=2, client_name=name, **POOL_OPTIONS, **tls)
    return RedisDatabase(pool, plain_socket, holds_loop=False)


class RedisDatabase:
    """Commands in packed round trips on pooled connections.

    Attributes:
        on_lost: Called when a connection broke or leads to another server: what is known of the server holds no more.
        is_node: Whether it is a node of a cluster.
    """

    def __init__(
        self,
        pool: Any,
        plain_socket: PlainSocket | None = None,
        *,
        holds_loop: bool = True,
        is_node: bool = False,
        asks_primary: bool = False,
    ) -> None:
        """
        Args:
            pool: redis-py's.
            plain_socket: See `connect`.
            holds_loop: See `MultiplexedConnection`.
            is_node: It is a node of a cluster.
            asks_primary: See `connect`.
        """
        self.on_lost: Callable[[], object] = lambda: None
        self.is_node = is_node
        self._connections = RedisConnections(pool, plain_socket, holds_loop=holds_loop)
        self._connections.on_lost = self._forget_server
        self._connections.asks_primary = asks_primary
        self._loaded: dict[str, str] = {}
        self._no_scripts_until = 0.0

    def pipeline(self, point: str, commands: Sequence[Command]) -> list[Reply]:
        """Run the commands in one round trip. See `Database.pipeline`."""
        with _Use(self) as wire:
            return raise_errors(self._round_trip(point, wire, commands))

    def place(self, key: str) -> str:
        """Name the server of a key: there is one. See `Database.place`."""
        del key
        return ""

    def exchange(self, commands: Sequence[Command], point: str = "exchange") -> list[Reply]:
        """Run the commands in one round trip, and return the errors of Redis among the replies.

        A reply that has taken something from Redis is then not lost with the error of another one.

        Raises:
            StoreUnavailable: No answer; a command may have been carried out.
        """
        use = _Use(self)
        with use as wire:
            replies = self._round_trip(point, wire, commands)
            use.did_nothing = self.is_node and all(map(has_moved, replies))
        return replies

    def transaction(self, point: str, commands: Sequence[Command]) -> list[Reply]:
        """Run the commands in one MULTI/EXEC. See `Database.transaction`."""
        with _Use(self) as wire:
            return self._transaction(point, wire, commands)

    def compare_and_apply(self, point: str, guards: Sequence[Guard], commands: Sequence[Command]) -> list[Reply] | None:
        """Compare and apply by one script. See `Database.compare_and_apply`."""
        places: dict[Word, int] = {}
        words: list[Word] = [len(guards)]
        for read, answers in guards:
            words += (len(read), len(answers), *_with_place(read, places), *answers)
        for command in commands:
            words += (len(command), *_with_place(command, places))
        if time.monotonic() < self._no_scripts_until or len(words) > _MOST_WORDS:
            return None
        try:
            return self.script(point, "compare_and_apply", list(places), words)
        except StoreForbidden:  # users of services run no scripts; WATCH does the same with more round trips
            self._no_scripts_until = time.monotonic() + FORBIDDEN_SECONDS
            return None

    def watch(self, point: str, keys: Sequence[str], reads: Sequence[Command]) -> _RedisWatched:
        """WATCH and read in one round trip. See `Database.watch`."""
        return _RedisWatched(database=self, point=point, keys=keys, reads=reads)

    def script(self, point: str, name: str, keys: Sequence[Word], args: Sequence[Word]) -> Reply:
        """Run a script by EVALSHA, and load it when Redis does not know it. See `Database.script`."""
        with _Use(self) as wire:
            sha = self._loaded.get(name) or self._load(wire, name)
            for _ in range(2):
                reply = self._round_trip(point, wire, [("EVALSHA", sha, len(keys), *keys, *args)])[0]
                if not isinstance(reply, NoScriptError):
                    return raise_errors([reply])[0]
                sha = self._load(wire, name)
            raise StoreUnavailable(f"Redis does not keep the script {name!r}")

    def confirm(self, commands: Sequence[Command]) -> Confirmation:
        """Write, and wait for replicas, in one round trip. See `ReplicatedDatabase.confirm`."""
        with _Use(self, alone=True) as wire:
            *written, acknowledged, info = self._round_trip("confirm", wire, [*commands, REPLICATION])
            refusable, sure = written[::2], written[1::2]
            if 1 not in sure:
                raise_errors([*sure, *refusable])
                raise StoreUnavailable("nothing was written")
            raise_errors([acknowledged, info])
        lines = fields.info_lines(info)
        return Confirmation(
            acknowledged=acknowledged,
            connected=int(lines.get("connected_slaves", "0")),
            is_primary=lines.get("role") == "master",
            primary=replication_id(info),
            former=lines.get("master_replid2", ""),
        )

    def drop_connections(self, key: str = "") -> None:
        """Close all connections that are not in use."""
        del key
        self._connections.drop()

    def script_command(self, name: str, keys: Sequence[str], args: Sequence[Word]) -> Command | None:
        """The command that runs a script. See `Database.script_command`."""
        sha = self._loaded.get(name)
        return None if sha is None else ("EVALSHA", sha, len(keys), *keys, *args)

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()

    def _forget_server(self) -> None:
        self._loaded.clear()
        self.on_lost()

    def _load(self, wire: RedisConnection, name: str) -> str:
        sha = raise_errors(self._round_trip("script.load", wire, [("SCRIPT", "LOAD", SCRIPTS[name])]))[0].decode()
        self._loaded[name] = sha
        return sha

    def _transaction(self, point: str, wire: RedisConnection, commands: Sequence[Command]) -> list[Reply]:
        replies = self._round_trip(point, wire, [_MULTI, *commands, _EXEC])
        result = replies[-1]
        if result is None:
            raise Changed
        if isinstance(result, Exception):
            # EXECABORT hides why; the reason is at the command that was not queued.
            raise _translate(next(reply for reply in replies if isinstance(reply, Exception)))
        return raise_errors(result)

    def _round_trip(self, point: str, wire: RedisConnection, commands: Sequence[Command]) -> list[Reply]:
        """Send all commands, then read all replies. Tests override this to cause faults at a `point`."""
        del point
        return wire.exchange(commands)


class _Use:
    """A connection for a `with` block; errors of redis-py become errors of this package.

    Attributes:
        did_nothing: A node of a cluster has only told that another one serves the keys.
    """

    __slots__ = ("_alone", "_connections", "_database", "_taken", "did_nothing")

    def __init__(self, database: RedisDatabase, *, alone: bool = False) -> None:
        self._database = database
        self._connections = database._connections  # pyright: ignore[reportPrivateUsage]
        self._alone = alone
        self._taken: Any = None  # a `RedisConnection` while inside
        self.did_nothing = False

    def __enter__(self) -> RedisConnection:
        try:
            self._taken = self._connections.take(alone=self._alone)
        except (RedisError, OSError) as error:
            raise self._find_wrong_url(error) or _unavailable(error) from error
        return self._taken

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        did_something = not (self.did_nothing or isinstance(error, SlotMoved))
        if did_something and self._taken.primary and (used := USED_PRIMARIES.get()) is not None:
            used.add(self._taken.primary)
        # Before these errors every reply was read, so the connection can be used again.
        if error is None or isinstance(error, (Changed, CeleryAgentsError, ResponseError)):
            self._connections.give(self._taken)
        else:
            self._connections.discard(self._taken)
        if error is not None and (wrong := self._find_wrong_url(error)) is not None:
            raise wrong from error
        if isinstance(error, (RedisError, OSError)):
            raise _unavailable(error) from error

    def _find_wrong_url(self, error: BaseException) -> ConfigurationError | None:
        return None if self._database.is_node else find_wrong_url(error)


class _RedisWatched:
    """An open WATCH; the connection is its own until the `with` block ends."""

    def __init__(self, database: RedisDatabase, point: str, keys: Sequence[str], reads: Sequence[Command]) -> None:
        self.replies: list[Reply] = []
        self._database = database
        self._point = point
        self._first = [("WATCH", *keys), *reads]
        self._use = _Use(database, alone=True)
        self._wire: Any = None
        self._open = False

    def __enter__(self) -> _RedisWatched:
        self._wire = self._use.__enter__()
        try:
            self._open = True
            self.replies = self.pipeline(self._point, self._first)[1:]
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._open and (error is None or isinstance(error, (CeleryAgentsError, ResponseError))):
            try:
                self.pipeline("unwatch", [("UNWATCH",)])
            except (RedisError, OSError) as lost:
                self._use.__exit__(type(lost), lost, lost.__traceback__)
                return
        self._use.__exit__(kind, error, trace)

    def pipeline(self, point: str, commands: Sequence[Command], *, also: Sequence[str] = ()) -> list[Reply]:
        watching: list[Command] = [("WATCH", *also)] if also else []
        replies = self._database._round_trip(point, self._wire, [*watching, *commands])  # pyright: ignore[reportPrivateUsage]
        return raise_errors(replies)[len(watching) :]

    def commit(self, point: str, commands: Sequence[Command]) -> list[Reply]:
        self._open = False  # EXEC ends the watch, whatever its answer
        return self._database._transaction(point, self._wire, commands)  # pyright: ignore[reportPrivateUsage]


def _with_place(command: Command, places: dict[Word, int]) -> Command:
    """The command with the place of its key in place of the key; `places` gets the keys that it lacks.

    A commit has fourteen commands with eleven keys: with places, a step sends 200 bytes less.
    """
    for key in keys_of(command):
        places.setdefault(key, len(places) + 1)
    return (command[0], places[command[1]], *command[2:]) if len(command) > 1 else command


def raise_errors(replies: list[Reply]) -> list[Reply]:
    """Raise the first error; None takes the place of a script that is not known."""
    for place, reply in enumerate(replies):
        if isinstance(reply, NoScriptError):
            replies[place] = None
        elif isinstance(reply, Exception):
            raise _translate(reply)
    return replies


def _translate(error: Exception) -> Exception:
    text = str(error)
    if text.lower().startswith(("unknown command", "unknown subcommand")):  # managed ones take commands away
        return StoreForbidden(f"Redis has no such command: {text}")  # it repeats arguments, such as any session's id
    if "OOM" in text or text.startswith("command not allowed when used memory"):
        return StoreFull("Redis is at its memory limit and refuses writes; free memory or raise maxmemory")
    if isinstance(error, AuthenticationError):
        return LoginRefused(f"Redis refuses this user: {text}")
    if isinstance(error, NoPermissionError):
        return StoreForbidden(f"Redis refuses this user: {text}")
    if "WRONGTYPE" in text:  # a script says first where it was
        return StateUnreadable(WRONG_TYPE, "a key of the session holds another type; somebody else wrote to it")
    return find_slot(error) or error


def _unavailable(error: Exception) -> Exception:
    refused = _translate(error)
    if refused is not error:
        return refused
    away = error if isinstance(error, (RedisIsAway, MasterNotFoundError)) else find_outage(error)
    if away is not None:
        return StoreUnavailable(f"Redis is away: {away}")
    if isinstance(error, MaxConnectionsError):
        return StoreUnavailable(
            "all connections of this process to Redis are in use; raise CELERY_AGENTS_REDIS_CONNECTIONS, or wait in "
            "fewer threads"
        )
    text = str(error)
    advice = next((f"; {advice}" for part, advice in TLS_ADVICE.items() if part in text), "")
    return StoreUnavailable(f"no answer from Redis: {type(error).__name__}: {text}{advice}")
