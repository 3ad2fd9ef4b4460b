"""The services that the engine of one process works with, handed down as one value."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...config.settings import Settings
from ..concurrency import fibers
from ..concurrency.event_loop import EventLoopThread
from ..concurrency.tool_threads import Threads
from ..mcp.connections import ServerConnections
from ..store.store import Store
from .leases import LeaseKeeper
from .live_writer import LiveWriter
from .observer import StepObserver

if TYPE_CHECKING:
    from .run import Run


@dataclass(frozen=True, kw_only=True)
class EngineServices:
    """The store, the leases, the event loop and the clocks that every part of the engine uses.

    Attributes:
        keeper: Keeps the leases; its maker starts it or calls its `tick`.
        threads: Runs the plain tools of a step side by side.
        monotonic: This machine's clock, in seconds.
        sleep: Waits a number of seconds.
        connections: The connections to MCP servers; its maker closes them.
        observer: Is told what steps do. None: nobody is.
        live: Writes what steps emit while they run; its maker closes it.
    """

    store: Store
    settings: Settings
    keeper: LeaseKeeper
    loop: EventLoopThread
    threads: Threads
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = fibers.sleep
    connections: ServerConnections = field(default_factory=ServerConnections)
    observer: StepObserver | None = None
    live: LiveWriter = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "live", LiveWriter(self.store))

    def redis_ms(self, run: Run) -> int:
        """Redis's time now, at the earliest; see `Run.redis_ms`."""
        return run.redis_ms(self.monotonic())
