"""Redis keys in which kombu keeps queues, bindings and unacknowledged messages, by its documented options."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Mapping
from typing import Any, Final

from celery import Celery
from kombu import Queue

from ..config.celery import queues, step_queue
from ..config.settings import Settings
from ..worker.store.lanes import queue_types

# kombu's defaults of `sep`, `priority_steps` and `visibility_timeout`; the first priority has no key of its own.
_SEPARATOR: Final = "\x06\x16"
_PRIORITY_STEPS: Final = (0, 3, 6, 9)
_VISIBILITY_SECONDS: Final = 3_600


def broker_key_types(app: Celery, settings: Settings, names: Iterable[str] = ()) -> dict[str, str]:
    """Return the broker's keys that our queues use, each with the type that Redis's TYPE names.

    Args:
        names: Names of queues of agents besides the common one.
    """
    own_hash, own_index = record_keys(app, settings.control_queue)
    hashes, indexes = (unacked_key(app), own_hash), (unacked_index_key(app), own_index)
    types: dict[str, str] = {**dict.fromkeys(hashes, "hash"), **dict.fromkeys(indexes, "zset")}
    for queue in (*queues(settings), *(step_queue(settings, name) for name in names if name)):
        types |= queue_key_types(app, queue)
    return types


def queue_key_types(app: Celery, queue: Queue) -> dict[str, str]:
    """Return the keys of one queue: its lists by priority with their shares, and the set of its bindings."""
    bindings = f"{_prefix(_options(app))}_kombu.binding.{queue.exchange.name}"
    return {**queue_types(queue_keys(app, queue.name)), bindings: "set"}


def queue_key(app: Celery, queue: str, priority: int = 0) -> str:
    """Return the list of a queue's messages of a priority, given the broker's name of the queue."""
    return queue_keys(app, queue)[bisect(_priority_steps(_options(app)), priority) - 1]


def queue_keys(app: Celery, queue: str) -> tuple[str, ...]:
    """Return the lists of a queue by the broker's name of it, the highest priority first."""
    options = _options(app)
    name, separator = f"{_prefix(options)}{queue}", str(options.get("sep", _SEPARATOR))
    return tuple(f"{name}{separator}{step}" if step else name for step in _priority_steps(options))


def unacked_key(app: Celery) -> str:
    """Return the hash of the messages that were delivered and not acknowledged."""
    options = _options(app)
    return f"{_prefix(options)}{options.get('unacked_key', 'unacked')}"


def unacked_index_key(app: Celery) -> str:
    """Return the sorted set of those messages by the time of their delivery, in seconds."""
    options = _options(app)
    return f"{_prefix(options)}{options.get('unacked_index_key', 'unacked_index')}"


def record_keys(app: Celery, queue: str) -> tuple[str, str]:
    """Return the hash of the messages that our own consumer took from a queue, and the sorted set of their times."""
    name = f"{_prefix(_options(app))}{queue}.unacked"
    return name, f"{name}_index"


def visibility_seconds(app: Celery) -> float:
    """Return after how long a message that is not acknowledged is delivered again."""
    return float(_options(app).get("visibility_timeout", _VISIBILITY_SECONDS))


def _options(app: Celery) -> Mapping[str, Any]:
    conf: Any = app.conf
    return dict(conf.broker_transport_options or {})


def _priority_steps(options: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(options.get("priority_steps") or _PRIORITY_STEPS)


def _prefix(options: Mapping[str, Any]) -> str:
    return str(options.get("global_keyprefix", ""))
