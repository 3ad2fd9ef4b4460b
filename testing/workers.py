"""Simulated workers: the product's runner, lease keeper and store on virtual time."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Collection
from typing import Any

from ..config.settings import Settings
from ..worker.agent import AgentRegistry
from ..worker.engine import EventLoopThread, LeaseKeeper, StepRunner
from ..worker.errors import StoreUnavailable
from ..worker.store import Store
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
        self.runner = StepRunner(
            store, agents, settings, worker=name, keeper=self._keeper, loop=loop,
            monotonic=world.monotonic, sleep=self._sleep, threads=SequentialThreads(),
        )  # fmt: skip

    def _sleep(self, seconds: float) -> None:
        """Let time pass while the step sleeps, and renew its lease."""
        while seconds > 0:
            self._world.advance(min(seconds, self._renew_seconds))
            seconds -= self._renew_seconds
            try:
                self._keeper.tick()
            except StoreUnavailable:
                continue


class SequentialThreads:
    """`Threads` that run plain functions one after another, so that every run has the same order."""

    def submit(self, call: Callable[..., Any], /, *args: Any) -> _Future:
        """Run the function now."""
        future: _Future = concurrent.futures.Future()
        try:
            future.set_result(call(*args))
        except (Exception, SystemExit, GeneratorExit) as error:  # noqa: BLE001 - whatever a tool raises, as a pool does
            future.set_exception(error)
        return future

    def wait(self, futures: Collection[_Future], seconds: float) -> tuple[set[_Future], set[_Future]]:
        """Wait for all: waiting for the first would make the order depend on the machine."""
        found = concurrent.futures.wait(futures, seconds)
        return found.done, found.not_done
