"""The part of a Celery worker that runs agents: started with its pool, stopped after it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from celery import Celery, bootsteps
from celery.signals import worker_process_init, worker_process_shutdown, worker_shutting_down
from celery.worker import state as worker_state

from ...config.celery import pool_name
from ...config.logs import configure_logging
from ...config.settings import Settings
from ...worker.errors import ConfigurationError, StoreUnavailable
from ..housekeeping.sweeper import Sweeper, queue_length
from ..observability.doctor import check_server
from ..observability.metrics import serve_metrics
from ..producer import APP_NAME
from ..runtime import LazyRuntime, Runtime
from .decoding_net import install_decoding_net
from .exits import FORCE_MARGIN_SECONDS, exit_after, exit_when_slots_are_lost
from .features import APPLY_TARGET, LOCAL_DELIVERY, MULTIPLEXING, TEMPLATE_CHECK
from .fetching import enable_batch_fetch
from .free_slots import wake_for_free_slots
from .kombu_internals import written_message
from .local_delivery import LocalDelivery
from .loop_watchdog import LoopWatchdog
from .pool import TaskPool
from .revoking import Stop, turn_revokes_into_stops

log = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.05
_WAIT_FOR_REDIS_SECONDS: Final = 1.0


def worker_bootstep(
    app: Celery, settings: Settings, runtime: LazyRuntime, *, stop: Stop
) -> type[bootsteps.StartStopStep]:
    """Return a bootstep for the workers of an app; Celery wants a class and makes the instance.

    Args:
        stop: Stops the session of a revoked step.
    """

    class AgentsBootstep(WorkerBootstep):
        def __init__(self, parent: Any, **kwargs: Any) -> None:
            super().__init__(parent, **kwargs)
            self.prepare(app, settings, runtime, stop)

    return AgentsBootstep


class WorkerBootstep(bootsteps.StartStopStep):
    """Starts what a worker needs besides Celery to run agents, and stops it after the pool."""

    requires = ("celery.worker.components:Pool",)

    def prepare(self, app: Celery, settings: Settings, runtime: LazyRuntime, stop: Stop) -> None:
        """Take what `start` needs, before the pool starts: a prefork child inherits what is connected then."""
        self._app = app
        self._settings = settings
        self._runtime = runtime
        self._stop_session = stop
        self._closers: list[Callable[[], object]] = []
        worker_process_init.connect(self._start_in_child, weak=False)
        worker_process_shutdown.connect(self._stop_in_child, weak=False)

    def start(self, parent: Any) -> None:
        """Start, as far as the worker consumes the queues of agents."""
        self._configure_logging()
        settings, consumed = self._settings, self._app.amqp.queues.consume_from
        steps = consumed.get(settings.queue)
        if steps is None and settings.control_queue not in consumed:
            return  # a worker of an existing project that has nothing to do with agents
        no_ack_queue = settings.queue if steps is not None and steps.no_ack else None
        install_decoding_net((settings.queue, settings.control_queue), self._app.tasks, no_ack_queue)
        if steps is None:
            return
        self._runtime.settings = settings_as_started(settings, parent)
        wait_for_redis(self._runtime(), self._app)
        self._speed_up(parent, no_ack_queue)
        turn_revokes_into_stops(self._app, self._stop_session)
        self._start_threads(parent.pool)
        worker_shutting_down.connect(self._on_shutdown, weak=False)

    def stop(self, parent: Any) -> None:
        """Let running steps end: Celery stops this before the pool, whose steps still need leases and event loop."""
        deadline = time.monotonic() + self._settings.drain_seconds + FORCE_MARGIN_SECONDS / 2
        while self._is_busy(parent.pool) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        self.terminate(parent)

    def terminate(self, parent: Any) -> None:
        """Stop all threads at once."""
        del parent
        while self._closers:
            self._closers.pop(0)()
        self._runtime.close()

    def _speed_up(self, parent: Any, no_ack_queue: str | None) -> None:
        """Use what Celery and kombu do not promise; each of it stays off where it is missing."""
        if no_ack_queue is not None:
            enable_batch_fetch(no_ack_queue, lambda: parent.max_concurrency or parent.pool.num_processes)
        wake_for_free_slots(parent.pool, parent.hub)
        if isinstance(parent.pool, TaskPool):
            APPLY_TARGET.is_available()
            MULTIPLEXING.is_available()
        if no_ack_queue is not None and isinstance(parent.pool, TaskPool) and LOCAL_DELIVERY.is_available():
            local = LocalDelivery(parent.pool, self._runtime().publisher, no_ack_queue)
            self._runtime().runner.sticky.enable(local)

    def _start_threads(self, pool: Any) -> None:
        settings, runtime = self._settings, self._runtime
        connection: Callable[[], Any] = self._app.connection_for_read
        sweeper = Sweeper(runtime, lambda: queue_length(connection, settings.queue, settings.broker))
        sweeper.start()
        self._closers.append(sweeper.close)
        if (metrics := runtime().observers.metrics) is not None:
            self._closers.append(serve_metrics(metrics, runtime, settings))
        exit_when_slots_are_lost(runtime, settings)
        if isinstance(pool, TaskPool):
            self._closers.append(LoopWatchdog(pool.loop, settings.loop_blocked_seconds).close)

    def _is_busy(self, pool: Any) -> bool:
        current = self._runtime.current
        return (current is not None and current.keeper.running > 0) or (isinstance(pool, TaskPool) and not pool.is_idle)

    def _on_shutdown(self, **_: Any) -> None:
        self._runtime().drain()
        # A plain function that does not end would keep a threads pool, and with it the process, for ever.
        exit_after(self._settings.drain_seconds + FORCE_MARGIN_SECONDS)

    def _start_in_child(self, **_: Any) -> None:
        if self._settings.queue in self._app.amqp.queues.consume_from:
            self._configure_logging()
            self._runtime()

    def _stop_in_child(self, **_: Any) -> None:
        self._runtime.close()

    def _configure_logging(self) -> None:
        configure_logging(self._settings, everybody=self._app.main == APP_NAME)


def settings_as_started(settings: Settings, worker: Any) -> Settings:
    """Return the settings with pool and slots as a worker was started: in an existing project those are not ours.

    Raises:
        ConfigurationError: The worker would take steps, and knows no agent.
    """
    if not settings.agent_modules:
        raise ConfigurationError(
            f"a worker that consumes {settings.queue} needs agents: name their modules in CELERY_AGENTS_AGENTS, "
            "or choose its queues with -Q"
        )
    slots = worker.max_concurrency or worker.concurrency
    return settings.model_copy(update={"concurrency": slots, "pool": pool_name(worker.pool_cls)})


def wait_for_redis(runtime: Runtime, app: Celery) -> None:
    """Wait until Redis answers, as Celery waits for its broker, and compare our messages with kombu's."""
    while True:
        try:
            runtime.store.housekeeping.check_shards()
            check_server(runtime.store.housekeeping.server_facts())
            if runtime.publisher.works and TEMPLATE_CHECK.is_available():
                runtime.publisher.compare(partial(written_message, app))
            return
        except StoreUnavailable as error:
            log.warning("waiting for Redis: %s", error)
            worker_state.maybe_shutdown()  # SIGTERM only leaves a note as long as nothing is consumed
            time.sleep(_WAIT_FOR_REDIS_SECONDS)
