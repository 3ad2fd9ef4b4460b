"""Hearing what is published: wake-ups on a worker's own pub/sub channel, and changes of limits and pauses."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final

import redis

from ....config.redis_urls import ClusterUrl, uses_cluster
from ....config.settings import Settings
from .pools import make_pool

_Redis: Any = redis.Redis
_CHECK_SECONDS: Final = 10


def wake_ups(settings: Settings, channels: Sequence[str], ended: threading.Event) -> Iterator[tuple[str, str]]:
    """Hear what is published, each with its channel; first of all each channel with "", once it is subscribed to.

    Args:
        ended: Set to end the iteration within a second.
    Raises:
        redis.RedisError: The connection was lost; subscribe again.
    """
    # A connection that only listens hears nothing of a server that is gone.
    url, place = settings.redis_url, dict[str, Any]()
    if uses_cluster(url):  # each node hears what is published on any
        named = ClusterUrl.parse(url)
        url, (place["host"], place["port"]) = named.server, random.choice(named.nodes)
    pool = make_pool(url, timeout_seconds=settings.redis_timeout_seconds, health_check_interval=_CHECK_SECONDS, **place)
    client: Any = _Redis.from_pool(pool)
    with client, client.pubsub() as subscription:
        subscription.subscribe(*channels)
        while not ended.is_set():
            message = subscription.get_message(timeout=1.0)
            if message is not None and message["type"] in ("message", "subscribe"):
                data = message["data"].decode() if message["type"] == "message" else ""
                yield message["channel"].decode(), data
