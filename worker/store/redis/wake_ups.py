"""Hearing wake-ups: a worker's own pub/sub channel."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Final

import redis

from ....config.settings import Settings
from .pools import make_pool

_Redis: Any = redis.Redis
_CHECK_SECONDS: Final = 10


def wake_ups(settings: Settings, channel: str, ended: threading.Event) -> Iterator[str]:
    """The ids of claims whose steps are asked to stop, as they are published.

    Args:
        ended: Set to end the iteration within a second.
    Raises:
        redis.RedisError: The connection was lost; subscribe again.
    """
    # A connection that only listens hears nothing of a server that is gone.
    pool = make_pool(
        settings.redis_url, timeout_seconds=settings.redis_timeout_seconds, health_check_interval=_CHECK_SECONDS
    )
    client: Any = _Redis.from_pool(pool)
    with client, client.pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.subscribe(channel)
        while not ended.is_set():
            message = subscription.get_message(timeout=1.0)
            if message is not None and message["type"] == "message":
                yield message["data"].decode()
