"""Databases for simulated workers: faults strike before and after each round trip."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from ..worker.errors import ConfigurationError
from ..worker.store.database import Command, Database, Guard, Reply, WatchedTransaction, Word
from ..worker.store.redis.database import RedisDatabase, connect
from .world import World

_UPTIME: Final = b"uptime_in_seconds:1000000\r\n"


class FaultyDatabase:
    """`Database` whose round trips may be refused, and whose replies may be lost."""

    def __init__(self, inner: Database, world: World) -> None:
        self._inner = inner
        self._world = world

    def pipeline(self, point: str, commands: Sequence[Command]) -> list[Reply]:
        """See `Database.pipeline`."""
        self._world.at(f"before {point}")
        replies = self._inner.pipeline(point, commands)
        self._world.at(f"after {point}")
        return replies

    def transaction(self, point: str, commands: Sequence[Command]) -> list[Reply]:
        """See `Database.transaction`."""
        self._world.at(f"before {point}")
        replies = self._inner.transaction(point, commands)
        self._world.at(f"after {point}")
        return replies

    def compare_and_apply(self, point: str, guards: Sequence[Guard], commands: Sequence[Command]) -> list[Reply] | None:
        """See `Database.compare_and_apply`."""
        self._world.at(f"before {point}")
        replies = self._inner.compare_and_apply(point, guards, commands)
        self._world.at(f"after {point}")
        return replies

    @contextmanager
    def watch(self, point: str, keys: Sequence[str], reads: Sequence[Command]) -> Generator[WatchedTransaction]:
        """See `Database.watch`."""
        self._world.at(f"before {point}")
        with self._inner.watch(point, keys, reads) as watched:
            self._world.at(f"after {point}")
            yield _FaultyTransaction(watched, self._world)

    def script(self, point: str, name: str, keys: Sequence[str], args: Sequence[Word]) -> Reply:
        """See `Database.script`."""
        self._world.at(f"before {point}")
        reply = self._inner.script(point, name, keys, args)
        self._world.at(f"after {point}")
        return reply

    def script_command(self, name: str, keys: Sequence[str], args: Sequence[Word]) -> Command | None:
        """See `Database.script_command`."""
        return self._inner.script_command(name, keys, args)

    def place(self, key: str) -> str:
        """See `Database.place`."""
        return self._inner.place(key)

    def close(self) -> None:
        """See `Database.close`."""
        self._inner.close()


class _FaultyTransaction:
    def __init__(self, inner: WatchedTransaction, world: World) -> None:
        self._inner = inner
        self._world = world
        self.replies = inner.replies

    def pipeline(self, point: str, commands: Sequence[Command], *, also: Sequence[str] = ()) -> list[Reply]:
        self._world.at(f"before {point}")
        replies = self._inner.pipeline(point, commands, also=also)
        self._world.at(f"after {point}")
        return replies

    def commit(self, point: str, commands: Sequence[Command]) -> list[Reply]:
        self._world.at(f"before {point}")
        replies = self._inner.commit(point, commands)
        self._world.at(f"after {point}")
        return replies


class RedisOnVirtualTime:
    """A real Redis on virtual time: `TIME` gives the world's time, and leases end by it.

    Leases are stored as keys without a TTL, and deleted when they have ended.
    """

    def __init__(self, redis: RedisDatabase) -> None:
        self._redis = redis
        self._world: World | None = None
        self._leases: dict[str, int] = {}

    @classmethod
    def empty(cls, url: str) -> RedisOnVirtualTime:
        """Connect to an empty database: everything in it is deleted after each run.

        Raises:
            ConfigurationError: The database is not empty, or the URL is wrong.
            StoreUnavailable: Redis does not answer.
        """
        redis = connect(url, timeout_seconds=10.0, connections=32, name="celery-agents-testing")
        (size,) = redis.pipeline("size", [("DBSIZE",)])
        if size:
            redis.close()
            raise ConfigurationError(
                f"the Redis database for assert_survives holds {size} keys; it has to be empty, because it is emptied "
                "after each run. Give another database, such as redis://127.0.0.1:6379/15."
            )
        return cls(redis)

    def enter(self, world: World) -> None:
        """Start a run with an empty database."""
        self.clear()
        self._world = world

    def clear(self) -> None:
        """Delete the keys of the last run."""
        (keys,) = self._redis.pipeline("keys", [("KEYS", "ca:*")])
        if keys:
            self._redis.pipeline("clear", [("DEL", *keys)])
        self._leases.clear()

    def close(self) -> None:
        """Empty the database and close the connections."""
        self.clear()
        self._redis.close()

    def pipeline(self, point: str, commands: Sequence[Command]) -> list[Reply]:
        """See `Database.pipeline`."""
        return self._read_replies(commands, self._redis.pipeline(point, self._prepare(commands)))

    def transaction(self, point: str, commands: Sequence[Command]) -> list[Reply]:
        """See `Database.transaction`."""
        return self._read_replies(commands, self._redis.transaction(point, self._prepare(commands)))

    def compare_and_apply(self, point: str, guards: Sequence[Guard], commands: Sequence[Command]) -> list[Reply] | None:
        """See `Database.compare_and_apply`."""
        replies = self._redis.compare_and_apply(point, guards, self._prepare(commands))
        return None if replies is None else self._read_replies(commands, replies)

    def watch(
        self, point: str, keys: Sequence[str], reads: Sequence[Command]
    ) -> AbstractContextManager[WatchedTransaction]:
        """See `Database.watch`."""
        return self._watch(point, keys, reads)

    @contextmanager
    def _watch(self, point: str, keys: Sequence[str], reads: Sequence[Command]) -> Generator[WatchedTransaction]:
        with self._redis.watch(point, keys, self._prepare(reads)) as watched:
            yield _TransactionOnVirtualTime(self, watched, reads)

    def script(self, point: str, name: str, keys: Sequence[str], args: Sequence[Word]) -> Reply:
        """See `Database.script`."""
        self._end_leases()
        return self._redis.script(point, name, keys, args)

    def script_command(self, name: str, keys: Sequence[str], args: Sequence[Word]) -> Command | None:
        """See `Database.script_command`."""
        return self._redis.script_command(name, keys, args)

    def place(self, key: str) -> str:
        """See `Database.place`."""
        return self._redis.place(key)

    def _now(self) -> int:
        return self._world.now_ms() if self._world is not None else 0

    def _end_leases(self) -> None:
        ended = [key for key, until in self._leases.items() if until <= self._now()]
        if ended:
            self._redis.pipeline("expire", [("DEL", *ended)])
            for key in ended:
                del self._leases[key]

    def _prepare(self, commands: Sequence[Command]) -> list[Command]:
        self._end_leases()
        return [self._translate(command) for command in commands]

    def _translate(self, command: Command) -> Command:
        match command:
            case ("SET", str() as key, worker, "PX", int() as lease_ms):
                self._leases[key] = self._now() + lease_ms
                return ("SET", key, worker)
            case ("PEXPIRE", str() as key, int() as lease_ms) if key in self._leases:
                self._leases[key] = self._now() + lease_ms
                return ("EXISTS", key)
            case _:
                return command

    def _read_replies(self, commands: Sequence[Command], replies: list[Reply]) -> list[Reply]:
        return [self._read_reply(command, reply) for command, reply in zip(commands, replies, strict=True)]

    def _read_reply(self, command: Command, reply: Reply) -> Reply:
        match command:
            case ("TIME",):
                now = self._now()
                return [b"%d" % (now // 1000), b"%d" % (now % 1000 * 1000)]
            case ("INFO", "server"):
                return _UPTIME
            case _:
                return reply


class _TransactionOnVirtualTime:
    def __init__(self, database: RedisOnVirtualTime, inner: WatchedTransaction, reads: Sequence[Command]) -> None:
        self._database = database
        self._inner = inner
        self.replies = database._read_replies(reads, inner.replies)  # pyright: ignore[reportPrivateUsage]

    def pipeline(self, point: str, commands: Sequence[Command], *, also: Sequence[str] = ()) -> list[Reply]:
        sent = self._database._prepare(commands)  # pyright: ignore[reportPrivateUsage]
        return self._database._read_replies(commands, self._inner.pipeline(point, sent, also=also))  # pyright: ignore[reportPrivateUsage]

    def commit(self, point: str, commands: Sequence[Command]) -> list[Reply]:
        sent = self._database._prepare(commands)  # pyright: ignore[reportPrivateUsage]
        return self._database._read_replies(commands, self._inner.commit(point, sent))  # pyright: ignore[reportPrivateUsage]
