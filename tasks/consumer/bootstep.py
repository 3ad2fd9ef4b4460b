"""The part of a Celery worker that runs agents: started with its pool, stopped after it."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from celery import Celery, bootsteps
from celery.signals import worker_process_init, worker_process_shutdown, worker_shutting_down
from celery.worker import state as worker_state
from kombu.exceptions import OperationalError

from ...config.brokers import is_redis, shares_a_database, takes_steps_itself
from ...config.celery import pool_name
from ...config.logs import configure_logging
from ...config.settings import Settings
from ...worker.errors import ConfigurationError, StoreUnavailable
from ...worker.known_secrets import redact_known
from ..housekeeping.sweeper import Sweeper, queue_length
from ..observability.metrics import serve_metrics
from ..observability.server_policy import check_mode, check_replicas, check_server, describe_wrong_broker
from ..own_app import OwnApp
from ..producer import APP_NAME
from ..runtime import LazyRuntime, Runtime
from .command_checks import check_commands
from .command_limits import limit_commands
from .control_consumer import ControlConsumer
from .exits import FORCE_MARGIN_SECONDS, exit_after, exit_when_slots_are_lost
from .loop_watchdog import LoopWatchdog
from .pool import TaskPool
from .queue_commands import answer_for_queues
from .queue_consumer import QueueConsumer
from .revoking import Stop, turn_revokes_into_stops
from .step_consumer import StepConsumer
from .taken_queues import TakenQueues

log = logging.getLogger(__name__)

_BROKER_SECONDS: Final = 2
_POLL_SECONDS: Final = 0.05
_UNUSABLE: Final = 2  # as the command line has it for a wrong setting
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
        self._runtime = runtime
        self._stop_session = stop
        self._closers: list[Callable[[], object]] = []
        self._taken = TakenQueues(app, settings)
        self._settings = runtime.settings = self._taken.settings
        runtime.queues = tuple(self._taken.steps)
        worker_process_init.connect(self._start_in_child, weak=False)
        worker_process_shutdown.connect(self._stop_in_child, weak=False)

    def start(self, parent: Any) -> None:
        """Start, as far as the worker consumes the queues of agents."""
        self._configure_logging()
        taken = self._taken
        if not taken.all:
            return  # a worker of an existing project that has nothing to do with agents
        check_commands(self._app)
        limit_commands(self._app, parent.pool)
        self._note_quorum_queues()
        if takes_steps_itself(self._settings) and parent.hub is not None:
            self._take_queues()
        if not taken.steps:
            self._open_consumers()
            return
        self._runtime.settings = settings_as_started(self._settings, parent)
        if isinstance(parent.pool, TaskPool):
            self._runtime.loop = parent.pool.loop
        worker_shutting_down.connect(self._on_shutdown, weak=False)
        if taken.has_others and not self._is_store_ready():
            self._begin_later(parent)
        else:
            try:
                wait_for_redis(self._runtime())
                self._check_broker()
                self._begin(parent)
            except ConfigurationError as error:
                raise refuse_to_start(error) from error

    def _note_quorum_queues(self) -> None:
        """Look at the queues of a RabbitMQ; one that does not answer is waited for by Celery."""
        with self._app.connection_for_read() as connection:
            if connection.transport.driver_type != "amqp":
                return
            try:
                connection.ensure_connection(max_retries=1, timeout=_BROKER_SECONDS)
                self._taken.note_quorum_queues(connection)
            except connection.channel_errors as error:  # a refused login is one
                raise refuse_to_start(f"CELERY_AGENTS_BROKER_URL: RabbitMQ refuses this worker: {error}") from error
            except (OperationalError, *connection.connection_errors):
                return

    def _check_broker(self) -> None:
        """End a worker whose broker Celery cannot use; one that does not answer is waited for by Celery."""
        if shares_a_database(self._settings) or not is_redis(self._settings.broker):
            return
        with self._app.connection_for_read() as connection:
            try:
                connection.ensure_connection(max_retries=1, timeout=_BROKER_SECONDS)
                wrong = describe_wrong_broker(connection)
            except (OperationalError, *connection.connection_errors):
                return
        if wrong:
            raise refuse_to_start(wrong)

    def _take_queues(self) -> None:
        """Take our queues by consumers of our own, once they are opened."""
        taken, consumers = self._taken, list[QueueConsumer]()
        if taken.steps:
            consumers.append(StepConsumer(self._app, self._runtime, taken.steps))
        if taken.control is not None:
            consumers.append(ControlConsumer(self._app, self._runtime, (taken.control,)))
        self._runtime.consumers = tuple(consumers)
        taken.set_aside()
        if isinstance(self._app, OwnApp):  # kombu consumes nothing, and need not look at records of other apps
            conf: Any = self._app.conf
            conf.broker_transport_options = {**conf.broker_transport_options, "ack_emulation": False}
        answer_for_queues(consumers, taken.queues())

    def _open_consumers(self) -> None:
        for consumer in self._runtime.consumers:
            consumer.open()

    def _begin(self, parent: Any) -> None:
        """Let steps run: the store answers.

        Raises:
            ConfigurationError: The port of the metrics is taken; nothing has begun.
        """
        if (metrics := self._runtime().observers.metrics) is not None:
            self._closers.append(serve_metrics(metrics, self._runtime, self._settings))
        for consumer in self._runtime.consumers:
            if isinstance(consumer, StepConsumer) and isinstance(parent.pool, TaskPool):
                self._runtime().runner.sticky.enable(consumer)
        self._open_consumers()
        turn_revokes_into_stops(self._app, self._stop_session)
        self._start_threads(parent.pool)

    def _is_store_ready(self) -> bool:
        try:
            examine_store(self._runtime())
        except ConfigurationError as error:
            raise refuse_to_start(error) from error
        except StoreUnavailable as error:
            log.warning("agents wait for their store; the other queues are consumed: %s", error)
            return False
        return True

    def _begin_later(self, parent: Any) -> None:
        """Consume the project's own queues now, and those of agents when the store answers."""
        names, taken, closed = self._taken.set_aside(), self._taken, threading.Event()

        def wait() -> None:
            while not closed.wait(_WAIT_FOR_REDIS_SECONDS):
                try:
                    examine_store(self._runtime())
                    self._begin(parent)
                except StoreUnavailable as error:
                    log.debug("waiting for the store: %s", error)
                except ConfigurationError as error:
                    log.error("agents stay off: %s", error)
                else:
                    taken.consume(parent, names)
                    log.info("the store answers; queues of agents: %s", taken.describe())
                    return

        self._closers.append(closed.set)
        threading.Thread(target=wait, name="celery-agents-store", daemon=True).start()

    def stop(self, parent: Any) -> None:
        """Let running steps end: Celery stops this before the pool, whose steps still need leases and event loop."""
        current = self._runtime.current
        if self._taken.steps and current is not None and not current.runner.draining:
            self._on_shutdown()  # Celery ends by itself, on a command or an error: no signal came
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

    def _start_threads(self, pool: Any) -> None:
        settings, runtime = self._settings, self._runtime
        connection: Callable[[], Any] = self._app.connection_for_read
        queues = tuple(self._taken.steps.values())
        sweeper = Sweeper(runtime, lambda: queue_length(connection, queues, settings.broker))
        sweeper.start()
        self._closers.append(sweeper.close)
        exit_when_slots_are_lost(runtime, settings)
        if isinstance(pool, TaskPool):
            self._closers.append(LoopWatchdog(pool.loop, settings.loop_blocked_seconds).close)

    def _is_busy(self, pool: Any) -> bool:
        current = self._runtime.current
        return (current is not None and current.keeper.running > 0) or (isinstance(pool, TaskPool) and not pool.is_idle)

    def _on_shutdown(self, **_: Any) -> None:
        for consumer in self._runtime.consumers:
            consumer.drain()
        if self._runtime.current is not None:
            self._runtime.current.drain()
        # A plain function that does not end would keep a threads pool, and with it the process, for ever.
        exit_after(self._settings.drain_seconds + FORCE_MARGIN_SECONDS)

    def _start_in_child(self, **_: Any) -> None:
        if self._taken.steps:
            self._configure_logging()
            with contextlib.suppress(StoreUnavailable):
                self._runtime().gate.refresh()

    def _stop_in_child(self, **_: Any) -> None:
        self._runtime.close()

    def _configure_logging(self) -> None:
        configure_logging(self._settings, redact=redact_known, everybody=self._app.main == APP_NAME)


def settings_as_started(settings: Settings, worker: Any) -> Settings:
    """Return the settings with pool and slots as a worker was started: in an existing project those are not ours."""
    slots = worker.max_concurrency or worker.concurrency
    return settings.model_copy(update={"concurrency": slots, "pool": pool_name(worker.pool_cls)})


def examine_store(runtime: Runtime) -> None:
    """Look whether a worker can use the store.

    Raises:
        StoreUnavailable: Redis does not answer.
        ConfigurationError: It may lose sessions, its replicas cannot keep what is promised, or it was used with
            another number of shards.
    """
    runtime.store.context.check_shards()
    if runtime.store.context.fleet.is_apart:
        nodes = runtime.store.housekeeping.node_facts().values()
        servers = [each for each in nodes if not isinstance(each, StoreUnavailable)]
    else:
        servers = [runtime.store.housekeeping.server_facts()]
        check_mode(servers[0])
    for facts in servers:
        check_server(facts)
    check_replicas(servers, runtime.settings)
    runtime.gate.refresh()  # before a step begins that people have paused


def refuse_to_start(why: object) -> SystemExit:
    """Log why this worker cannot start, and give what ends it without a traceback."""
    log.critical("the worker cannot start: %s", why)
    return SystemExit(_UNUSABLE)


def wait_for_redis(runtime: Runtime) -> None:
    """Wait until the store answers, as Celery waits for its broker; end the worker where it cannot be used."""
    while True:
        try:
            examine_store(runtime)
            return
        except ConfigurationError as error:
            raise refuse_to_start(error) from error
        except StoreUnavailable as error:
            log.warning("waiting for Redis: %s", error)
            worker_state.maybe_shutdown()  # SIGTERM only leaves a note as long as nothing is consumed
            time.sleep(_WAIT_FOR_REDIS_SECONDS)
