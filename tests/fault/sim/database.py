"""The store's Redis as the simulation sees it: every round trip is a point, every lease and every moment is virtual."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.retry import Retry

from celery_agents.worker.store.context import Publisher
from celery_agents.worker.store.database import Command, Guard, Reply, Word
from celery_agents.worker.store.records import StepRef
from celery_agents.worker.store.redis.database import RedisDatabase, raise_errors
from celery_agents.worker.store.redis.scripts import SCRIPTS

from .world import World

# Placeholders, replaced when the command is sent: Redis knows the time when it runs a command, not when it was written.
_NOW = b"\x00now"
_UPTIME = b"\x00uptime"
QUEUE = "sim:queue"


class Until(bytes):
    """Value of a lease: the virtual time at which it ends, filled in when it is sent."""

    lease_ms = 0

    @classmethod
    def after(cls, lease_ms: int) -> Until:
        value = cls(b"\x00until")
        value.lease_ms = lease_ms
        return value


class Renewed(str):
    """Key of a lease, with the time it is renewed for."""

    lease_ms = 0

    @classmethod
    def of(cls, key: str, lease_ms: int) -> Renewed:
        value = cls(key)
        value.lease_ms = lease_ms
        return value


class SimClock:
    """`Clock` on virtual time. Leases are plain keys that the simulation deletes when their time has come."""

    def __init__(self, world: World, *, guesses: bool) -> None:
        """
        Args:
            guesses: Without, claims and commits go the long way, since nobody knows what time it is.
        """
        self._world = world
        self._guesses = guesses

    def at(self, place: str) -> SimClock:
        """This one: the simulation has one server."""
        return self

    def now(self) -> Command:
        return ("ECHO", _NOW)

    def milliseconds(self, reply: Reply) -> int:
        return int(reply)

    def estimate_ms(self) -> int | None:
        return int(self._world.now) if self._guesses else None

    def uptime(self) -> Command:
        return ("ECHO", _UPTIME)

    def uptime_seconds(self, reply: Reply) -> float:
        return float(reply)

    def start_lease(self, key: str, worker: str, lease_ms: int) -> Command:
        del worker
        return ("SET", key, Until.after(lease_ms))

    def renew_lease(self, key: str, lease_ms: int) -> Command:
        # Not refused when memory is short, as PEXPIRE is not; what was renewed is noted when it was.
        return ("EXISTS", Renewed.of(key, lease_ms))

    def pause(self, seconds: float) -> None:
        self._world.sleep(seconds)


def in_virtual_time(name: str, text: str) -> str:
    """A script that is told what time it is, by its second argument, where the product's asks Redis."""
    asks = "redis.call('TIME')"
    assert asks in text or name != "holders", "the script no longer asks Redis for the time"
    return text if name != "holders" else text.replace(asks, "{math.floor(ARGV[2] / 1000), ARGV[2] % 1000 * 1000}")


class StoreContext:
    """The Redis of all seeds of this process."""

    def __init__(self, url: str) -> None:
        pool = ConnectionPool.from_url(
            url, max_connections=64, socket_timeout=10, retry=Retry(NoBackoff(), 0), protocol=2, health_check_interval=0,
        )  # fmt: skip
        self.database = RedisDatabase(pool)
        loads: list[Command] = [("SCRIPT", "LOAD", in_virtual_time(name, text)) for name, text in SCRIPTS.items()]
        shas = self.database.pipeline("load", loads)
        self._scripts = {name: sha.decode() for name, sha in zip(SCRIPTS, shas, strict=True)}

    def clear(self) -> None:
        self.database.pipeline("clear", [("CONFIG", "SET", "maxmemory", 0), ("FLUSHDB",)])
        # Lost connections forget them. A seed would have round trips, or lack them, by what the one before it has lost.
        self.database._loaded.update(self._scripts)


class QueueHandover(Publisher):
    """The commit publishes the next message itself, as with a broker on the same Redis."""

    def commands(self, ref: StepRef, now_ms: int) -> Sequence[Command]:
        del now_ms
        return (("RPUSH", QUEUE, f"{ref.session_id} {ref.execution_id} {ref.step}"),)

    def count_commands(self, queue: str) -> Sequence[Command]:
        """Nobody asks: whether a session stays is the simulation's choice."""
        del queue
        return ()


Observer = Callable[[str, Sequence[Command], Sequence[Reply]], None]


class SimTables(RedisDatabase):
    """`RedisDatabase` whose round trips can be delayed, refused, and lose their replies."""

    def __init__(self, shared: RedisDatabase, world: World, observe: Observer, restarted: list[float]) -> None:
        # The connections outlive the run: opening one costs as much as ten round trips.
        self.is_node = shared.is_node
        self._connections = shared._connections
        self._loaded = shared._loaded
        self._no_scripts_until = shared._no_scripts_until
        self._world = world
        self._observe = observe
        self._restarted = restarted
        self._attempted: dict[int, Sequence[Command]] = {}

    def compare_and_apply(self, point: str, guards: Sequence[Guard], commands: Sequence[Command]) -> list[Reply] | None:
        self._attempted[get_ident()] = commands
        try:
            return super().compare_and_apply(point, guards, commands)
        finally:
            del self._attempted[get_ident()]

    def script(self, point: str, name: str, keys: Sequence[str], args: Sequence[Word]) -> Reply:
        return super().script(point, name, keys, self._with_time(name, args))

    def script_command(self, name: str, keys: Sequence[str], args: Sequence[Word]) -> Command | None:
        return super().script_command(name, keys, self._with_time(name, args))

    @staticmethod
    def _with_time(name: str, args: Sequence[Word]) -> Sequence[Word]:
        return (*args, _NOW) if name == "holders" else args

    def _observe_attempt(self, point: str, reply: Reply) -> None:
        """What a script has written counts as if it had been a transaction."""
        if isinstance(reply, list):
            self._observe(point, self._sent(self._attempted[get_ident()]), reply)
        else:
            self._world.tally.answers[f"{point} {'refused' if isinstance(reply, Exception) else 'declined'}"] += 1

    def _round_trip(self, point: str, connection: Any, commands: Sequence[Command]) -> list[Reply]:
        world = self._world
        if world.current is None:
            return super()._round_trip(point, connection, self._sent(commands))
        world.point(f"<{point}")
        fault = self._fault(point)
        if fault == "refuse":
            raise ConnectionError("the connection was refused")
        sent = self._sent(commands)
        replies = super()._round_trip(point, connection, sent)
        if get_ident() in self._attempted and commands[0][0] == "EVALSHA":
            self._observe_attempt(point, replies[0])
        else:
            self._observe(point, sent, replies)
        if fault == "swallow":
            raise ConnectionError("the reply was lost")
        world.point(f">{point}")
        return replies

    def _fault(self, point: str) -> str | None:
        world = self._world
        if not world.faults_on:
            return None
        fault = world.planned(("swallow", "refuse"), point) if world.plan else None
        kind = fault.kind if fault is not None else None
        if kind is None and world.rates.swallow + world.rates.refuse > 0:
            chance = world.rng.random()
            if chance < world.rates.swallow:
                kind = "swallow"
            elif chance < world.rates.swallow + world.rates.refuse:
                kind = "refuse"
        if kind is not None:
            world.fired(kind)
            actor = world.current
            assert actor is not None
            world.say(f"{actor.name}: {kind} at {point}")
        return kind

    def _load(self, wire: Any, name: str) -> str:
        """Load a script again: a lost connection has made the store forget which ones its server knows."""
        text = in_virtual_time(name, SCRIPTS[name])
        self._loaded[name] = sha = raise_errors(self._round_trip("script.load", wire, [("SCRIPT", "LOAD", text)]))[
            0
        ].decode()
        return sha

    def _in_script(self, word: Word, now: int) -> Word:
        if isinstance(word, Until):
            return now + word.lease_ms
        return now if word == _NOW else word

    def _sent(self, commands: Sequence[Command]) -> list[Command]:
        now = int(self._world.now)
        sent: list[Command] = []
        for command in commands:
            match command:
                case ("ECHO", word):
                    sent.append(("ECHO", now if word == _NOW else (now - self._restarted[0]) / 1000))
                case ("SET", key, Until() as until, *rest):
                    sent.append(("SET", key, now + until.lease_ms, *rest))
                case ("EVALSHA", *words):
                    sent.append(("EVALSHA", *(self._in_script(word, now) for word in words)))
                case _:
                    sent.append(command)
        return sent
