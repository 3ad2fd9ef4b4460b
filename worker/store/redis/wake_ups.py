"""Hearing wake-ups: a worker's own pub/sub channel."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ....config.settings import Settings

_Redis: Any = redis.Redis


def wake_ups(settings: Settings, channel: str, ended: threading.Event) -> Iterator[str]:
    """The ids of claims whose steps are asked to stop, as they are published.

    Args:
        ended: Set to end the iteration within a second.
    Raises:
        redis.RedisError: The connection was lost; subscribe again.
    """
    client: Any = _Redis.from_url(
        settings.redis_url, socket_timeout=settings.redis_timeout_seconds, retry=Retry(NoBackoff(), 0), protocol=2
    )
    with client, client.pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.subscribe(channel)
        while not ended.is_set():
            message = subscription.get_message(timeout=1.0)
            if message is not None and message["type"] == "message":
                yield message["data"].decode()
