"""The Celery app of a worker: tasks, queues and the parts of a worker that run agents."""

from __future__ import annotations

import os
from functools import partial
from typing import Any, Final, cast

from celery import Celery
from celery.utils.nodenames import default_nodename, host_format

from ..config.brokers import is_redis
from ..config.celery import own_sentinel_url, queues
from ..config.logs import try_to_print
from ..config.settings import Settings
from .consumer.bootstep import worker_bootstep
from .consumer.queue_consumer import consumer_step
from .controls import LazyClient, register_controls
from .producer import attach_settings, create_producer_app
from .runtime import LazyRuntime
from .step import register_step

# What a Celery worker tells its child processes. A worker that is started by a task of another worker inherits it, and
# its own children would take it for theirs.
_TOLD_BY_A_PARENT: Final = ("CELERY_LOG_REDIRECT", "CELERY_LOG_REDIRECT_LEVEL", "FORKED_BY_MULTIPROCESSING")


def create_app(settings: Settings) -> Celery:
    """Create a Celery app of our own, for workers and for Flower."""
    app = create_producer_app(settings)
    attach(app, settings)
    return app


def install(app: Celery, settings: Settings | None = None, *, agents: str | None = None) -> None:
    """Add agents to an existing Celery app: tasks and queues with options of their own, no setting changed.

    Call it when the app is configured. Its workers take steps when they consume the queues `celery_agents.steps` and
    `celery_agents.control`, as those started without `-Q` do; the others are as they were. A worker that consumes
    `celery_agents.steps` takes the queues that its agents name, too.

    Args:
        app: An app whose workers are to run agents too. Its broker is used.
        settings: None: from the environment, with the app's broker. The broker is the store, too, when it is a Redis
            and the environment names no other (`CELERY_AGENTS_REDIS_URL`).
        agents: Modules that define agents, comma separated; they are imported by the workers. None: as the settings
            say. Only for settings of the environment.

    `celery-agents doctor --app my_project` names settings of the app that conflict, such as a pool without threads.
    """
    broker = _broker_of(app)
    store = broker if broker is not None and is_redis(broker) and ";" not in broker else None
    chosen = settings or Settings.from_environment(default_redis_url=store, broker_url=broker, agents=agents)
    for queue in queues(chosen):
        if queue.name not in app.amqp.queues:
            app.amqp.queues.select_add(queue)
    attach(app, chosen)


def attach(app: Celery, settings: Settings) -> LazyRuntime:
    """Register tasks and bootsteps on an app; a worker makes its runtime when it first needs it."""
    attach_settings(app, settings)
    runtime = LazyRuntime(app, settings)
    client = LazyClient(app, settings)
    register_step(app, settings, runtime)
    register_controls(app, settings, client)
    app.steps["worker"].add(worker_bootstep(app, settings, runtime, stop=client.stop))
    app.steps["consumer"].update((runtime.liveness.step(), consumer_step(runtime)))
    return runtime


def create_worker(app: Celery, settings: Settings, name: str | None = None) -> Any:
    """Create a worker of an app of our own, as `celery worker` does with options for each of these.

    Celery's command line is left out: it takes a sixth of the time that a worker needs to start, and reads options from
    the environment.

    Args:
        name: Its node name, in which `%h` means the machine's; None: Celery's default.
    """
    for variable in _TOLD_BY_A_PARENT:
        os.environ.pop(variable, None)
    app_class: Any = app
    worker = app_class.Worker(
        hostname=host_format(default_nodename(name or "")),
        concurrency=settings.concurrency,
        queues=[settings.queue, settings.control_queue],
        loglevel=settings.log_level,
        without_gossip=True,
        without_mingle=True,
        task_events=settings.task_events or None,
        # A person's wish that is no option of Celery alone (https://no-color.org); any text turns colors off.
        quiet=settings.log_format == "json",  # its banner is no line of a log
        no_color=True if os.environ.get("NO_COLOR") else None,
    )
    worker.emit_banner = partial(try_to_print, worker.emit_banner)
    return worker


def _broker_of(app: Celery) -> str | None:
    """Return the URL to which an app publishes; None when it is not configured."""
    conf: Any = app.conf
    url = conf.broker_write_url or conf.broker_url
    if isinstance(url, (list, tuple)):
        url = ";".join(map(str, cast("list[object]", url)))
    if url and url.startswith("sentinel://"):
        return own_sentinel_url(url, dict(conf.broker_transport_options or {}), is_tls=bool(conf.broker_use_ssl))
    return url.replace("redis+socket://", "unix://") if url else None
