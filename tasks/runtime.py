"""The parts that one worker process needs to run steps: store, leases, event loop, runner."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from celery import Celery

from ..config.brokers import shares_a_database
from ..config.settings import Settings
from ..config.version import __version__
from ..worker import crash_points
from ..worker.concurrency import fibers
from ..worker.concurrency.event_loop import EventLoopThread
from ..worker.concurrency.tool_threads import ToolThreads
from ..worker.engine import EngineServices, StepRunner, schema_version
from ..worker.engine.leases import Interruption, LeaseKeeper
from ..worker.errors import CeleryAgentsError
from ..worker.flow.concurrency import is_concurrency
from ..worker.known_secrets import remember_secrets
from ..worker.mcp.connections import ServerConnections
from ..worker.mcp.server import require_servers
from ..worker.redaction import describe_exception
from ..worker.store.housekeeping.registry import offered_queues, worker_name
from ..worker.store.keys import FLOW_CHANNEL, WAKE_CHANNEL
from ..worker.store.records import StepRef
from ..worker.store.redis.wake_ups import wake_ups
from ..worker.store.store import redis_store
from .agent_modules import import_agents
from .broker_keys import broker_key_types
from .client.client import AgentClient
from .consumer.internals import missing_internals, plain_socket
from .consumer.refusals import refusals
from .housekeeping.archiving import ArchiveProgress
from .housekeeping.callbacks import CallbackCaller
from .housekeeping.provider_jobs import JobCleaner
from .housekeeping.schedules import ScheduleRunner
from .observability.liveness import Liveness
from .observability.observers import Observers
from .publishing import StepPublisher

if TYPE_CHECKING:
    from .consumer.queue_consumer import QueueConsumer

log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1.0
_LAST_SECONDS: Final = 5.0
"""For what capabilities have begun, when the worker ends."""


class WakeUpListener:
    """A thread that subscribes to the channels of wake-ups.

    While the connection is lost nothing is heard. The heartbeat of the leases finds a stop too, only later; so does
    the registration limits and pauses.
    """

    def __init__(self, settings: Settings, channels: Mapping[str, Callable[[str], object]]) -> None:
        """
        Args:
            channels: By name, what is called in the thread with what is heard; with "" when listening begins.
        """
        self._settings = settings
        self._channels = channels
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="celery-agents-wake", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Let the thread end within a second."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                for channel, heard in wake_ups(self._settings, list(self._channels), self._ended):
                    self._channels[channel](heard)
            except Exception as error:  # noqa: BLE001 - whatever ends a subscription, it is made again
                log.debug("the wake-up channel was lost: %s", error)
                self._ended.wait(_RETRY_SECONDS)


class Runtime:
    """The engine of one process and what it runs with; a forked child makes its own.

    Attributes:
        queues: Names of the queues of steps that the worker takes; "" is the common one.
        problems: Sentences about Redis that the housekeeping job `inspection` found last.
        histories_lost: How many sessions this worker has found whose history Redis has lost, "behind" or "gone".
        archive_progress: How far this worker is with moving sessions to the archive.
        redis_memory_share: The part of Redis's memory limit that was used then; 0 without a limit.
    """

    def __init__(self, app: Celery, owner: LazyRuntime) -> None:
        settings, queues = owner.settings, owner.queues
        remember_secrets(settings.secrets)
        self.settings = settings
        self.queues = queues
        self._liveness = owner.liveness
        self.name = worker_name(socket.gethostname().replace(":", "-"), os.getpid())
        self.publisher = StepPublisher(app, settings)
        self.store = redis_store(
            settings, name=f"celery-agents-{self.name}", publisher=self.publisher, plain_socket=plain_socket
        )
        self.agents = import_agents(settings)
        require_servers(server for agent in self.agents for server in agent.mcp)
        self.connections = ServerConnections()
        self.observers = Observers(settings, [each.name for each in self.agents])
        self.broker_key_types = broker_key_types(app, settings, queues) if shares_a_database(settings) else {}
        self.problems: tuple[str, ...] = ()
        self.redis_memory_share = 0.0
        self.histories_lost = {"behind": 0, "gone": 0}
        self.archive_progress = ArchiveProgress()
        self.callbacks = CallbackCaller(app, self.store, settings)
        self.schedules = ScheduleRunner(self.store, lambda: AgentClient(settings=settings, app=app))
        self._own_loop = EventLoopThread()
        self.loop = owner.loop or self._own_loop
        self.keeper = LeaseKeeper(self.store, settings, publish=self.publish)
        services = EngineServices(
            store=self.store, settings=settings, keeper=self.keeper, loop=self.loop,
            threads=ToolThreads(), observer=self.observers.observer, connections=self.connections,
        )  # fmt: skip
        self.live = services.live
        self.gate = services.gate
        self.concurrency = services.concurrency
        self.spending = services.spending
        self.cleaner = JobCleaner(self.store, self.agents, loop=self.loop, spending=services.spending)
        self.runner = StepRunner(services, self.agents, worker=self.name)
        self._wake_ups = WakeUpListener(
            settings, {WAKE_CHANNEL + self.name: self.keeper.wake, FLOW_CHANNEL: self._read_flow}
        )
        if settings.crash is not None:
            crash_points.arm(settings.crash)

    def start(self) -> None:
        """Start to renew leases, and to listen for stops and for changes of limits and pauses."""
        self.keeper.start()
        self._wake_ups.start()

    def _read_flow(self, changed: str) -> None:
        self.gate.refresh()  # all is read: that is little, and two changes may come at once
        if is_concurrency(changed):  # a higher limit lets some go
            self.concurrency.call_waiting()

    def publish(self, ref: StepRef) -> None:
        """Publish a step that no transaction has published; a fiber lets others run meanwhile.

        Raises:
            StoreUnavailable: The broker did not take it, or the store does not answer: it waits for the sweep.
        """
        fibers.run_in_thread(self.publisher.publish, ref, self.store.housekeeping.now_ms(ref.session_id))

    def close(self) -> None:
        """Stop the threads; leases that are left expire by themselves."""
        self._wake_ups.close()
        self.callbacks.close()
        self.schedules.close()
        self.keeper.close()
        self.live.close()
        self.connections.close()
        self._own_loop.close()
        self.observers.close()
        ends = time.monotonic() + _LAST_SECONDS
        for capability in (each for agent in self.agents for each in agent.commit_listeners):
            try:
                fibers.bounded(capability.close, max(0.0, ends - time.monotonic()))
            except Exception as error:  # noqa: BLE001 - a capability of the user's; the others are to end, too
                log.warning("capability %s was not closed: %s", capability.name, describe_exception(error).message)

    def drain(self) -> None:
        """Let running steps finish; async calls that still run after the drain time are cancelled."""
        self.runner.draining = True
        timer = threading.Timer(self.settings.drain_seconds, self.keeper.interrupt_all, args=(Interruption.DRAIN,))
        timer.daemon = True
        timer.start()

    @property
    def offers(self) -> dict[str, tuple[str, ...]]:
        """The agents that this worker offers, each with the queues that it takes, the agent's own first."""
        return offered_queues({self.name: {**self.facts, "agents": self.agents.hashes}})

    @property
    def facts(self) -> dict[str, Any]:
        """The worker's entry in the registry, which other workers and `doctor` read."""
        return {
            "version": __version__,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "slots": self.settings.concurrency,
            "lease_ms": round(self.settings.lease_seconds * 1000),
            "running": self.keeper.running,
            "abandoned": self.keeper.abandoned,
            "draining": self.runner.draining,
            "live_dropped": self.live.dropped,
            "schema": schema_version(),
            "pool": self.settings.pool,
            "missing": missing_internals(),
            "webhooks": self.settings.webhook_secret is not None,
            "queues": list(self.queues),
            "agent_queues": {agent.name: agent.queue for agent in self.agents if agent.queue},
            "agent_budgets": {
                agent.name: limits.to_dict()
                for agent in self.agents
                if not (limits := agent.effective_budget).is_empty()
            },
            "group": self.agents.group,
            "models": sorted({model for agent in self.agents for model in agent.models}),
            "groups": sorted({agent.provider_group for agent in self.agents if agent.provider_group}),
            "concurrency": sorted({name for agent in self.agents for name in agent.named_limits}),
            "schedules": [each.name for agent in self.agents for each in agent.schedules],
            "refused": refusals.facts,
            "problems": list(self.problems),
            "tools": self.connections.notes.describe(),
            **self._liveness.facts,
        }


class LazyRuntime:
    """The runtime of this process, made on first use and made again after a fork.

    Attributes:
        queues: Names of the queues of steps that the worker takes; "" is the common one.
        consumers: What takes the messages of our queues; none where kombu does.
        loop: The event loop on which the pool of the worker runs steps: connections of models belong to one loop.
            None: the pool has none, and the runtime makes its own.
    """

    def __init__(self, app: Celery, settings: Settings) -> None:
        self._app = app
        self.settings = settings
        self.consumers: tuple[QueueConsumer, ...] = ()
        self.queues: tuple[str, ...] = ("",)
        self.loop: EventLoopThread | None = None
        self.liveness = Liveness()
        self._lock = threading.Lock()
        self._runtime: Runtime | None = None
        self._pid = 0

    def __call__(self) -> Runtime:
        if self._runtime is None or self._pid != os.getpid():
            with self._lock:
                if self._runtime is None or self._pid != os.getpid():
                    runtime = Runtime(self._app, self)
                    runtime.start()
                    self._runtime, self._pid = runtime, os.getpid()
        return self._runtime

    @property
    def current(self) -> Runtime | None:
        """The runtime, if this process has one."""
        return self._runtime if self._pid == os.getpid() else None

    def close(self) -> None:
        """Close the runtime of this process, if it has one."""
        if self.current is not None:
            try:
                self.current.store.registry.unregister(self.current.name)
            except CeleryAgentsError as error:
                log.debug("not unregistered: %s", error)
            self.current.close()
            self._runtime = None
