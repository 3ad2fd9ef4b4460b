"""The Celery app: the step task, the control tasks, and the threads of a worker."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final, assert_never, cast

from celery import Celery, Task, bootsteps
from celery.exceptions import Ignore
from celery.signals import worker_process_init, worker_process_shutdown, worker_shutting_down
from celery.worker import state as worker_state

from ..config.celery import celery_configuration, is_redis, pool_name, queues
from ..config.logs import configure_logging, logged_as
from ..config.settings import Settings
from ..worker.concurrency import fibers
from ..worker.engine import Done, NothingToDo, Outcome, Parked, RetryLater, TakenOver
from ..worker.errors import CeleryAgentsError, ConfigurationError, ExecutionFailed, StoreFull, StoreUnavailable
from ..worker.state import ExecutionStatus
from .consumer.fetching import enable_batch_fetch
from .consumer.free_slots import wake_for_free_slots
from .consumer.local_delivery import LocalDelivery
from .consumer.loop_watch import LoopWatch
from .consumer.one_loop import OneLoop
from .consumer.pool import TaskPool
from .consumer.quarantine import guard_message_decoding
from .consumer.requests import StepRequest
from .consumer.revoking import turn_revokes_into_stops
from .controls import ClientOf, register_controls
from .housekeeping.sweeper import Sweeper, queue_length
from .names import CONTROL, QUARANTINE, STEP
from .observability.doctor import check_server
from .observability.metrics import serve_metrics
from .runtime import LazyRuntime, Runtime
from .step_message import MalformedStep, read_step

log = logging.getLogger(__name__)

_OWN: Final = "celery_agents"
_FORCE_MARGIN_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.05
_WAIT_FOR_REDIS_SECONDS: Final = 1.0


def create_app(settings: Settings) -> Celery:
    """A Celery app of our own: worker, producer and Flower use the same."""
    app = Celery(_OWN, set_as_current=False)
    app.conf.update(celery_configuration(settings))
    # Sent by name too, a wish goes to the queue from which nothing is lost.
    app.conf.task_routes = {name: {"queue": settings.control_queue} for name in CONTROL}
    attach(app, settings)
    return app


def install(app: Celery, settings: Settings | None = None, *, agents: str | None = None) -> None:
    """Add agents to an existing Celery app: tasks and queues with options of their own, no setting changed.

    Call it when the app is configured. Its workers take steps when they consume the queues `celery_agents.steps` and
    `celery_agents.control`, as those started without `-Q` do; the others are as they were.

    Args:
        app: An app whose workers are to run agents too. Its broker is used.
        settings: None: from the environment, with the app's broker.
        agents: Modules that define agents, comma separated; they are imported by the workers. None: as the settings
            say. Only for settings of the environment.

    `celery-agents doctor --app my_project` names settings of the app that conflict, such as a pool without threads.
    """
    chosen = settings or Settings.from_environment(broker_url=_broker_of(app), agents=agents)
    # Without acknowledgement a worker that prefetches would take the whole queue into its memory.
    for queue in queues(chosen, may_be_unacknowledged=bool(app.conf.worker_disable_prefetch)):
        if queue.name not in app.amqp.queues:
            app.amqp.queues.select_add(queue)
    attach(app, chosen)


def _broker_of(app: Celery) -> str | None:
    """Where the app publishes; None when nobody has told it."""
    conf: Any = app.conf
    url = conf.broker_write_url or conf.broker_url
    if isinstance(url, (list, tuple)):
        url = ";".join(map(str, cast("list[object]", url)))
    return url.replace("redis+socket://", "unix://") if url else None


def settings_of(app: Celery) -> Settings:
    """The settings that agents were installed with.

    Raises:
        ConfigurationError: They were not.
    """
    runtime = getattr(app, "celery_agents_runtime", None)
    if not isinstance(runtime, LazyRuntime):
        raise ConfigurationError(f"app {app.main!r} has no agents: call celery_agents.install(app) first")
    return runtime.settings


def attach(app: Celery, settings: Settings) -> LazyRuntime:
    """Register tasks and bootsteps on an app; what they need is made in the worker that runs them."""
    runtime = LazyRuntime(app, settings)
    app.celery_agents_runtime = runtime  # pyright: ignore[reportAttributeAccessIssue]
    _register_step(app, settings, runtime)
    client_of = register_controls(app, settings)
    app.steps["worker"].add(_machinery(app, settings, runtime, client_of))
    app.steps["consumer"].update((runtime.liveness.step(), OneLoop))
    return runtime


def worker_arguments(settings: Settings) -> list[str]:
    """Arguments of `worker_main` for a worker of ours."""
    return [
        "worker",
        f"--concurrency={settings.concurrency}",
        f"--queues={settings.queue},{settings.control_queue}",
        f"--loglevel={settings.log_level}",
        "--without-gossip",
        "--without-mingle",
        *(["--task-events"] if settings.task_events else []),
    ]


def _register_step(app: Celery, settings: Settings, runtime: LazyRuntime) -> None:
    # No limit, no retry and no result of Celery's: the engine has its own, that survive a worker.
    options: dict[str, Any] = {
        "ignore_result": True, "acks_late": not is_redis(settings.broker), "typing": False, "max_retries": 0,
        "queue": settings.queue, "bind": True, "store_errors_even_if_ignored": False,
        "Request": f"{StepRequest.__module__}:{StepRequest.__name__}",
        "throws": (ExecutionFailed,),  # what users' agents do is no error of the worker: no traceback in its log
    }  # fmt: skip

    @app.task(name=STEP, **options)  # pyright: ignore[reportUntypedFunctionDecorator]
    def step(self: Task[Any, Any], *args: Any, **kwargs: Any) -> str:  # pyright: ignore[reportUnusedFunction]
        """Run one step of an agent, if it is due and nobody else runs it."""
        del self
        try:
            ref = read_step(args, kwargs)
        except MalformedStep as error:
            runtime().store.housekeeping.quarantine(repr(kwargs)[:2000], str(error))
            raise Ignore from error
        with logged_as(session_id=ref.session_id, execution_id=ref.execution_id, step=ref.step):
            return translated(_run(runtime(), ref.session_id, ref.execution_id, ref.step), runtime())

    @app.task(name=QUARANTINE, ignore_result=True, queue=settings.control_queue)
    def quarantine(payload: str, reason: str) -> None:  # pyright: ignore[reportUnusedFunction]
        """Put a malformed broker element away."""
        runtime().store.housekeeping.quarantine(payload, reason)


def _run(runtime: Runtime, session_id: str, execution_id: str, step: int) -> Outcome:
    try:
        outcome = runtime.runner.run_step(session_id, execution_id, step)
        runtime.observers.delivered(outcome)
        return outcome
    except (StoreUnavailable, StoreFull) as error:
        runtime.observers.delivered(None)
        log.warning("step %s of session %s stays due: %s", step, session_id, error)
        raise Ignore from error


def translated(outcome: Outcome, runtime: Runtime) -> str:
    """An outcome in Celery's terms.

    Returns:
        The line that Flower shows as the step's result.
    Raises:
        Ignore: There was nothing to do; the row of the step in Flower stays as it is.
        ExecutionFailed: The execution failed with this step; its text is redacted.
    """
    match outcome:
        case Done():
            _publish(runtime, outcome.publish)
            if outcome.status is ExecutionStatus.FAILED:
                log.warning("session %s: execution failed: %s", outcome.ref.session_id, outcome.error)
                raise ExecutionFailed(outcome.ref.execution_id, (outcome.error,))
            return outcome.summary
        case NothingToDo():
            log.debug("step %s of %s: %s", outcome.ref.step, outcome.ref.session_id, outcome.reason)
            raise Ignore
        case RetryLater():
            _publish(runtime, outcome.publish)
            log.info(
                "step %s of session %s is put off for %.1f s: %s",
                outcome.ref.step, outcome.ref.session_id, outcome.seconds, outcome.reason,
            )  # fmt: skip
            raise Ignore
        case TakenOver():
            log.info("step %s of session %s was taken over", outcome.ref.step, outcome.ref.session_id)
            raise Ignore
        case Parked():
            log.error("session %s is parked: %s", outcome.ref.session_id, outcome.reason)
            raise ExecutionFailed(outcome.ref.execution_id, (f"parked: {outcome.reason}",))
        case _ as never:
            assert_never(never)


def _publish(runtime: Runtime, ref: Any) -> None:
    if ref is None:
        return
    try:
        fibers.run_in_thread(runtime.separate_publisher.publish, ref, runtime.store.housekeeping.now_ms())
    except CeleryAgentsError as error:
        log.warning("step %s of session %s waits for the sweep: %s", ref.step, ref.session_id, error)
        return
    from ..worker import crash_points

    crash_points.at("c9")


def _machinery(
    app: Celery, settings: Settings, runtime: LazyRuntime, client_of: ClientOf
) -> type[bootsteps.StartStopStep]:
    """The worker's own threads, begun with its pool and ended after it."""

    def _begin_in_child(**_: Any) -> None:
        if settings.queue in app.amqp.queues.consume_from:
            configure_logging(settings, everybody=app.main == _OWN)
            runtime()

    def _end_in_child(**_: Any) -> None:
        runtime.close()

    class Machinery(bootsteps.StartStopStep):
        requires = ("celery.worker.components:Pool",)

        def __init__(self, parent: Any, **kwargs: Any) -> None:
            super().__init__(parent, **kwargs)
            self.sweeper: Sweeper | None = None
            self.end_metrics: Callable[[], None] | None = None
            self.loop_watch: LoopWatch | None = None
            # Before the pool starts: the children of a prefork pool take over what is connected then.
            worker_process_init.connect(_begin_in_child, weak=False)
            worker_process_shutdown.connect(_end_in_child, weak=False)

        def start(self, parent: Any) -> None:
            configure_logging(settings, everybody=app.main == _OWN)
            consumed = app.amqp.queues.consume_from
            steps = consumed.get(settings.queue)
            if steps is None and settings.control_queue not in consumed:
                return  # a worker of an existing project that has nothing to do with agents
            unacknowledged = settings.queue if steps is not None and steps.no_ack else None
            guard_message_decoding((settings.queue, settings.control_queue), app.tasks, unacknowledged)
            if steps is None:
                return
            runtime.settings = _as_started(settings, parent)
            if unacknowledged is not None:
                enable_batch_fetch(unacknowledged, lambda: parent.max_concurrency or parent.pool.num_processes)
            wake_for_free_slots(parent.pool, parent.hub)
            _wait_for_redis(runtime())
            if unacknowledged is not None and isinstance(parent.pool, TaskPool):
                local = LocalDelivery(parent.pool, runtime().publisher, unacknowledged)
                runtime().runner.sticky.enable(local)
            turn_revokes_into_stops(
                app, lambda session, execution: client_of().stop(session, execution_id=execution, timeout=0)
            )
            connection: Callable[[], Any] = app.connection_for_read
            self.sweeper = Sweeper(runtime, lambda: queue_length(connection, settings.queue, settings.broker))
            self.sweeper.start()
            if (metrics := runtime().observers.metrics) is not None:
                self.end_metrics = serve_metrics(metrics, runtime, settings)
            _watch_abandoned(runtime, settings)
            if isinstance(parent.pool, TaskPool):
                self.loop_watch = LoopWatch(parent.pool.loop, settings.loop_blocked_seconds)
            worker_shutting_down.connect(_on_shutdown(runtime, settings), weak=False)

        def stop(self, parent: Any) -> None:
            # Celery stops this before the pool, whose steps still need their leases and their event loop.
            _let_steps_end(runtime, settings, parent.pool)
            self.terminate(parent)

        def terminate(self, parent: Any) -> None:
            if self.sweeper is not None:
                self.sweeper.close()
            if self.end_metrics is not None:
                self.end_metrics()
            if self.loop_watch is not None:
                self.loop_watch.close()
            runtime.close()

    return Machinery


def _as_started(settings: Settings, worker: Any) -> Settings:
    """The settings, with pool and slots as the worker was started: in an existing project those are not ours.

    Raises:
        ConfigurationError: It would take steps, and knows no agent.
    """
    if not settings.agent_modules:
        raise ConfigurationError(
            f"a worker that consumes {settings.queue} needs agents: name their modules in CELERY_AGENTS_AGENTS, "
            "or choose its queues with -Q"
        )
    pool = pool_name(worker.pool_cls)
    return settings.model_copy(update={"concurrency": worker.max_concurrency or worker.concurrency, "pool": pool})


def _wait_for_redis(runtime: Runtime) -> None:
    """A worker that starts before its Redis waits for it, as Celery does for its broker."""
    while True:
        try:
            runtime.store.housekeeping.check_shards()
            check_server(runtime.store.housekeeping.server_facts())
            _ = runtime.publisher.works  # looks at the broker once, which the first step need not wait for
            return
        except StoreUnavailable as error:
            log.warning("waiting for Redis: %s", error)
            worker_state.maybe_shutdown()  # SIGTERM only leaves a note as long as nothing is consumed
            time.sleep(_WAIT_FOR_REDIS_SECONDS)


def _on_shutdown(runtime: LazyRuntime, settings: Settings) -> Callable[..., None]:
    def on_shutdown(**_: Any) -> None:
        runtime().drain()
        # A plain function that does not end would keep a threads pool, and with it the process, for ever.
        _exit_after(settings.drain_seconds + _FORCE_MARGIN_SECONDS, 0)

    return on_shutdown


def _let_steps_end(runtime: LazyRuntime, settings: Settings, pool: Any) -> None:
    def is_busy() -> bool:
        return (runtime.current is not None and runtime.current.keeper.running > 0) or (
            isinstance(pool, TaskPool) and not pool.is_idle
        )

    deadline = time.monotonic() + settings.drain_seconds + _FORCE_MARGIN_SECONDS / 2
    while is_busy() and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)


def _exit_after(seconds: float, code: int) -> None:
    def leave() -> None:
        time.sleep(seconds)
        log.warning("steps are still running after the drain time; their leases end with this process")
        os._exit(code)

    threading.Thread(target=leave, name="celery-agents-exit", daemon=True).start()


def _watch_abandoned(runtime: LazyRuntime, settings: Settings) -> None:
    """A worker whose slots are lost to functions that never end is worth more restarted."""

    def watch() -> None:
        while True:
            time.sleep(1.0)
            current = runtime.current
            if current is None or current.keeper.abandoned <= settings.abandoned_share * settings.concurrency:
                continue
            log.error("%d of %d slots are lost; draining and exiting", current.keeper.abandoned, settings.concurrency)
            current.drain()
            time.sleep(settings.drain_seconds)
            os._exit(1)

    threading.Thread(target=watch, name="celery-agents-abandoned", daemon=True).start()


__all__ = ["CONTROL", "attach", "create_app", "install", "settings_of", "translated", "worker_arguments"]
