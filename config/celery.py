"""Celery's configuration, derived from the settings, with the reason next to each value."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qs, parse_qsl, quote, urlencode, urlsplit

from kombu import Exchange, Queue

from .brokers import is_redis
from .redis_urls import ONE_SERVER, SENTINEL_SECONDS, SentinelUrl, uses_sentinels
from .settings import GROUP_MARK, Settings
from .urls import split_url

GREENLETS: Final = "celery_agents.tasks.consumer.pool:TaskPool"
"""Our own pool, as Celery's setting `worker_pool` takes it."""

CONTROL_EXCHANGE: Final = "celery-agents"
"""Remote control of our own app. Under Celery's name, `celery`, every other app of the broker commands our workers."""

EVENT_EXCHANGE: Final = "celery-agents.events"
"""Where our own app sends its events, for Flower. Another app's may hold pickle, at which a reader of ours fails."""

# Brokers that keep empty queues drop the queue of a worker group this long after its last worker.
_GROUP_QUEUE_SECONDS: Final = 86_400.0


def queues(settings: Settings) -> list[Queue]:
    """Declare two queues: steps, whose messages are hints, and control, whose messages hold the whole request."""
    control = Queue(
        settings.control_queue, Exchange(settings.control_queue, type="direct"), routing_key=settings.control_queue
    )
    return [step_queue(settings, ""), control]


def step_queue(settings: Settings, name: str) -> Queue:
    """Declare a queue of step messages.

    Args:
        name: As an agent gives it; "" for the common queue.
    """
    full = settings.step_queue(name)
    return Queue(
        full,
        Exchange(full, type="direct"),
        routing_key=full,
        # A worker group has another name when its agents change. Redis removes empty queues by itself.
        expires=_GROUP_QUEUE_SECONDS if name.startswith(GROUP_MARK) else None,
    )


def is_our_queue(settings: Settings, queue: object) -> bool:
    """Whether the broker's queue of this name holds our messages: steps or control."""
    return queue == settings.control_queue or settings.queue_name(queue) is not None


def celery_configuration(settings: Settings) -> dict[str, Any]:
    """Everything a Celery app of ours is configured with."""
    configuration: dict[str, Any] = {
        "broker_url": _kombu_url(settings.broker),
        "result_backend": None,  # the session is the result; a backend costs 40 to 110 % more a step
        "task_ignore_result": True,
        "task_serializer": "json",
        "accept_content": ["json"],  # anything else in a broker is code execution
        "task_queues": queues(settings),
        "task_default_queue": settings.queue,
        "task_create_missing_queues": False,  # a typo in a queue's name fails where it is made
        "task_publish_retry_policy": {"max_retries": 3, "interval_start": 0.1, "interval_step": 0.3, "interval_max": 1},
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,  # a worker waits for its Redis however long it takes
        "broker_pool_limit": 50,
        "broker_pool_acquire_timeout": 10,
        "worker_pool": GREENLETS if settings.pool == "greenlets" else settings.pool,
        "worker_concurrency": settings.concurrency,
        "worker_prefetch_multiplier": 1,
        # After a lost connection Celery sets the prefetch count in a thread, whose reply another one reads.
        "worker_enable_prefetch_count_reduction": False,
        "worker_send_task_events": settings.task_events,
        "task_send_sent_event": settings.task_events,
        "worker_enable_remote_control": True,  # Flower's inspect and revoke
        "control_exchange": CONTROL_EXCHANGE,
        "event_exchange": EVENT_EXCHANGE,
        "event_queue_prefix": EVENT_EXCHANGE,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
        "enable_utc": True,
        "timezone": "UTC",
    }
    if is_redis(settings.broker):
        configuration["broker_transport_options"] = _redis_transport_options()
    if uses_sentinels(settings.broker):
        _find_by_sentinels(configuration, SentinelUrl.parse(settings.broker))
    return configuration


def _redis_transport_options() -> dict[str, Any]:
    """Options of kombu's Redis transport."""
    return {
        "socket_timeout": 30,  # kombu's default waits for ever for a server that has gone
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        "health_check_interval": 25,
        "visibility_timeout": 3600,  # of control messages alone; they take milliseconds
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 10,
        "client_name": "celery-agents",
    }


def _find_by_sentinels(configuration: dict[str, Any], url: SentinelUrl) -> None:
    """Configure kombu's transport for Sentinels, whose URL takes neither the primary's name nor options."""
    server = urlsplit(url.server)
    user, at, _ = server.netloc.rpartition("@")
    options = {name: value for name, value in parse_qsl(server.query) if name.startswith("ssl_")}
    tls = {"ssl_cert_reqs": ssl.CERT_REQUIRED, **options} if url.is_tls else {}
    configuration["broker_url"] = ";".join(
        f"sentinel://{user}{at}{f'[{host}]' if ':' in host else host}:{port}{server.path}"
        for host, port in url.sentinels
    )
    configuration["broker_transport_options"] |= {
        "master_name": url.primary,
        "sentinel_kwargs": {
            "socket_timeout": SENTINEL_SECONDS, "username": url.username, "password": url.password,
            "retry": None,  # a Sentinel that is away is passed over at once
            **({"ssl": True, **tls} if tls else {}),
        },
    }  # fmt: skip
    if tls:
        configuration["broker_use_ssl"] = tls


def own_sentinel_url(url: str, options: Mapping[str, Any], *, is_tls: bool) -> str:
    """Write the Sentinels of an app in one URL, as the settings take it.

    Args:
        url: In kombu's spelling: `sentinel://` of each, with semicolons between them.
        options: The app's transport options.
    """
    first, *others = url.split(";")
    parts = urlsplit(first)
    hosts = ",".join([parts.netloc, *(urlsplit(other).netloc.rpartition("@")[2] for other in others)])
    credentials = {
        f"sentinel_{name}": value
        for name, value in dict(options.get("sentinel_kwargs") or {}).items()
        if name in ("username", "password") and value
    }
    name, scheme = options.get("master_name", ""), "rediss+sentinel" if is_tls else "redis+sentinel"
    query = f"?{urlencode(credentials)}" if credentials else ""
    return f"{scheme}://{hosts}/{quote(name, safe='')}/{parts.path.strip('/') or 0}{query}"


def _kombu_url(url: str) -> str:
    """Write the URL of one Redis for kombu, which takes no options of redis-py and checks no certificate unasked."""
    if not url.startswith(ONE_SERVER):
        return url
    parts = split_url(url)
    options = {name: values[0] for name, values in parse_qs(parts.query).items()}
    user, at, host = parts.netloc.rpartition("@")
    if not at and "password" in options:
        user, at = f"{quote(options.get('username', ''), safe='')}:{quote(options['password'], safe='')}", "@"
    if parts.scheme == "unix":
        return f"redis+socket://{user}{at}{host}{parts.path}?virtual_host={options.get('db', '0')}"
    tls = {name: value for name, value in options.items() if name.startswith("ssl_")}
    query = f"?{urlencode({'ssl_cert_reqs': 'required', **tls})}" if parts.scheme == "rediss" else ""
    return f"{parts.scheme}://{user}{at}{host}/{options.get('db', parts.path.strip('/'))}{query}"


def pool_name(pool_class: type) -> str:
    """Name of a Celery pool class, as the setting `pool` knows it: greenlets, threads, prefork or solo."""
    if f"{pool_class.__module__}:{pool_class.__qualname__}" == GREENLETS:
        return "greenlets"
    return pool_class.__module__.rpartition(".")[2].replace("thread", "threads")
