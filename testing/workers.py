"""A simulated worker: the product's runner and lease keeper, on the world's time."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Collection
from typing import Any

from ..config.settings import Settings
from ..worker.agent import AgentRegistry
from ..worker.concurrency.event_loop import EventLoopThread
from ..worker.engine import EngineServices, StepRunner
from ..worker.engine.leases import LeaseKeeper
from ..worker.errors import StoreUnavailable
from ..worker.store.store import Store
from .world import SimulatedProcess, World

_Future = concurrent.futures.Future[Any]


class SimulatedWorker(SimulatedProcess):
    """A worker process with one slot."""

    def __init__(
        self, name: str, *, world: World, store: Store, agents: AgentRegistry, settings: Settings,
        loop: EventLoopThread,
    ) -> None:  # fmt: skip
        super().__init__(name)
        self._world = world
        self._renew_seconds = settings.lease_renew_seconds
        self._keeper = LeaseKeeper(store, settings, monotonic=world.monotonic)
        services = EngineServices(
            store=store, settings=settings, keeper=self._keeper, loop=loop, threads=SequentialThreads(),
            monotonic=world.monotonic, sleep=self._sleep,
        )  # fmt: skip
        self.runner = StepRunner(services, agents, worker=name)

    def _sleep(self, seconds: float) -> None:
        """Let the world's time pass, and renew the lease of the step that sleeps."""
        while seconds > 0:
            self._world.advance(min(seconds, self._renew_seconds))
            seconds -= self._renew_seconds
            try:
                self._keeper.tick()
            except StoreUnavailable:
                continue


class SequentialThreads:
    """`Threads` that run plain functions one after another, so that a run can be repeated."""

    def submit(self, call: Callable[..., Any], /, *args: Any) -> _Future:
        """Run the function now."""
        future: _Future = concurrent.futures.Future()
        try:
            future.set_result(call(*args))
        except (Exception, SystemExit, GeneratorExit) as error:  # noqa: BLE001 - whatever a tool raises, as a pool does
            future.set_exception(error)
        return future

    def wait(self, futures: Collection[_Future], seconds: float) -> tuple[set[_Future], set[_Future]]:
        """Wait for all of them: the first one to end would depend on the machine."""
        found = concurrent.futures.wait(futures, seconds)
        return found.done, found.not_done
