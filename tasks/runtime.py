"""What one worker process needs to run steps: store, leases, event loop, runner."""

from __future__ import annotations

import logging
import os
import socket
import threading
from typing import Any

from celery import Celery

from ..config.settings import Settings
from ..worker import crash_points
from ..worker.agent import AgentRegistry
from ..worker.engine import EventLoopThread, Interruption, LeaseKeeper, StepRunner
from ..worker.engine.runner import schema_version
from ..worker.errors import CeleryAgentsError
from ..worker.store import redis_store
from ..worker.store.housekeeping.registry import worker_name
from ..worker.store.keys import WAKE_CHANNEL
from .housekeeping.callbacks import CallbackCaller
from .observability.liveness import Liveness
from .observability.observers import Observers
from .publishing import SeparatePublisher, TransactionPublisher

log = logging.getLogger(__name__)


class Runtime:
    """One process's engine. Made once; a forked child makes its own."""

    def __init__(self, app: Celery, settings: Settings, liveness: Liveness) -> None:
        self.settings = settings
        self._pulse = liveness
        self.name = worker_name(socket.gethostname().replace(":", "-"), os.getpid())
        self.separate_publisher = SeparatePublisher(app, settings)
        self.publisher = TransactionPublisher(app, settings)
        self.store = redis_store(settings, name=f"celery-agents-{self.name}", publisher=self.publisher)
        self.agents = AgentRegistry.from_modules(settings.agent_modules)
        self.observers = Observers(settings)
        self.callbacks = CallbackCaller(app, self.store, settings)
        self.loop = EventLoopThread()
        self.keeper = LeaseKeeper(self.store, settings, publish=self.separate_publisher.publish)
        self.runner = StepRunner(
            self.store, self.agents, settings, worker=self.name, keeper=self.keeper, loop=self.loop,
            observer=self.observers.observer,
        )  # fmt: skip
        self._ended = threading.Event()
        self._listener = threading.Thread(target=self._listen, name="celery-agents-wake", daemon=True)
        if settings.crash is not None:
            crash_points.arm(settings.crash)

    def start(self) -> None:
        """Begin to keep leases and to listen for stops."""
        self.keeper.start()
        self._listener.start()

    def close(self) -> None:
        """End the threads; leases that are left end by themselves."""
        self._ended.set()
        self.keeper.close()
        self.loop.close()
        self.observers.close()

    def drain(self) -> None:
        """Running steps may finish; what is async and does not is cancelled after the drain time and given back."""
        self.runner.draining = True
        ending = threading.Timer(self.settings.drain_seconds, self.keeper.interrupt_all, args=(Interruption.DRAIN,))
        ending.daemon = True
        ending.start()

    @property
    def facts(self) -> dict[str, Any]:
        """What other workers and `doctor` may know of this one."""
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "slots": self.settings.concurrency,
            "running": self.keeper.running,
            "abandoned": self.keeper.abandoned,
            "draining": self.runner.draining,
            "schema": schema_version(),
            "pool": self.settings.pool,
            **self._pulse.facts,
        }

    def _listen(self) -> None:
        """Hear stops of this worker's claims; when the connection is lost, the heartbeat still brings them."""
        while not self._ended.is_set():
            try:
                self._hear()
            except Exception as error:  # noqa: BLE001 - whatever ends a subscription, it is made again
                log.debug("the wake-up channel was lost: %s", error)
                self._ended.wait(1.0)

    def _hear(self) -> None:
        from ..worker.store.redis.wake_ups import wake_ups

        for claim_id in wake_ups(self.settings, WAKE_CHANNEL + self.name, self._ended):
            self.keeper.wake(claim_id)


class LazyRuntime:
    """The runtime of this process, made on first use and anew after a fork."""

    def __init__(self, app: Celery, settings: Settings) -> None:
        self._app = app
        self.settings = settings
        self.liveness = Liveness()
        self._lock = threading.Lock()
        self._runtime: Runtime | None = None
        self._pid = 0

    def __call__(self) -> Runtime:
        if self._runtime is None or self._pid != os.getpid():
            with self._lock:
                if self._runtime is None or self._pid != os.getpid():
                    runtime = Runtime(self._app, self.settings, self.liveness)
                    runtime.start()
                    self._runtime, self._pid = runtime, os.getpid()
        return self._runtime

    @property
    def current(self) -> Runtime | None:
        """The runtime, if this process has one."""
        return self._runtime if self._pid == os.getpid() else None

    def close(self) -> None:
        """End this process's runtime."""
        if self.current is not None:
            try:
                self.current.store.registry.unregister(self.current.name)
            except CeleryAgentsError as error:
                log.debug("not unregistered: %s", error)
            self.current.close()
            self._runtime = None
