"""The store of sessions and steps: four parts by trade, on one database."""

from __future__ import annotations

from collections.abc import Callable

from ...config.settings import Settings
from .cache import SessionCache
from .children.trees import Trees
from .clock import Clock, RedisClock
from .context import NoPublisher, StepPublisher, StoreContext
from .database import Database
from .housekeeping.registry import WorkerRegistry
from .housekeeping.store import Housekeeping
from .live.store import LiveText
from .memory.database import MemoryDatabase
from .redis.connection import PlainSocket
from .redis.database import RedisDatabase, connect
from .requests.store import RequestActions
from .sessions.store import SessionActions
from .steps.store import DatabaseStepStore, StepStore
from .tool_lists import ToolLists


class Store:
    """Sessions and steps on one database.

    Attributes:
        steps: What the engine needs to run a step.
        sessions: What clients do to sessions and read of them.
        requests: What clients do to requests of sessions that wait.
        housekeeping: Sweep, callbacks, pruning, and what operators look at.
        registry: What workers tell about themselves.
        tool_lists: Lists of tools of remote servers.
        live: Text that is written while a step runs.
        trees: Sessions with those that their agents have started.
        context: What the parts share.
    """

    steps: StepStore

    def __init__(self, database: Database, settings: Settings, *, clock: Clock, publisher: StepPublisher) -> None:
        self.context = StoreContext(
            database=database,
            clock=clock,
            settings=settings,
            publisher=publisher,
            cache=SessionCache(settings.cache_bytes),
        )
        self.steps = DatabaseStepStore(self.context)
        self.sessions = SessionActions(self.context)
        self.requests = RequestActions(self.context)
        self.housekeeping = Housekeeping(self.context)
        self.registry = WorkerRegistry(self.context)
        self.tool_lists = ToolLists(self.context)
        self.live = LiveText(self.context)
        self.trees = Trees(self.context)

    def close(self) -> None:
        """Close the connections of the database; a later call opens new ones."""
        self.context.database.close()


def redis_store(
    settings: Settings,
    *,
    name: str,
    publisher: StepPublisher | None = None,
    database: RedisDatabase | None = None,
    plain_socket: PlainSocket | None = None,
) -> Store:
    """Make a store on the Redis of the settings; nothing is sent yet.

    Args:
        name: Shown by `CLIENT LIST`.
        publisher: Publishes next steps inside the store's transactions. None: the caller publishes them.
        database: Used instead of a new connection pool.
        plain_socket: Lets the fibers of a loop share one connection; see `PlainSocket`.
    """
    chosen = database or connect(
        settings.redis_url,
        timeout_seconds=settings.redis_timeout_seconds,
        connections=max(settings.redis_connections, 2 * settings.concurrency + 16),
        name=name,
        plain_socket=plain_socket,
    )
    return Store(chosen, settings, clock=RedisClock(), publisher=publisher or NoPublisher())


def memory_store(
    settings: Settings, *, now_ms: Callable[[], int] | None = None, publisher: StepPublisher | None = None
) -> Store:
    """Make a store that lives as long as the object."""
    clock = RedisClock() if now_ms is None else RedisClock(lambda: now_ms() / 1000)
    return Store(MemoryDatabase(now_ms), settings, clock=clock, publisher=publisher or NoPublisher())
