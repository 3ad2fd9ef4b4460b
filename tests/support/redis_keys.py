"""What a test may leave behind in Redis: keys with a time to live, the permanent ones, those of live sessions."""

from __future__ import annotations

import re

import redis

# Celery's and kombu's own: bindings of queues, unacknowledged messages, and the queues themselves.
_BROKER = re.compile(r"^(_kombu\..*|unacked.*|celery.*|.*\.reply\.celery(-agents)?\.pidbox|.*celery_agents.*)$")
_SESSION = re.compile(r"^ca:\{(?P<shard>\d+)\}:s:(?P<session>[A-Za-z0-9_.-]+)(:.*)?$")


def immortal_keys(client: redis.Redis) -> list[str]:
    """The keys that have no time to live and should: nobody will ever remove them.

    A session's keys have none while an execution of it is active, which is while it is in the due index, or waiting.
    """
    names = list(client.scan_iter(count=1000))
    with client.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.pttl(name)
        lives = dict(zip(names, pipeline.execute(), strict=True))
    suspects = [name for name in names if lives[name] == -1 and not _BROKER.match(name)]
    return sorted(name for name in suspects if not _may_stay(client, name))


def _may_stay(client: redis.Redis, name: str) -> bool:
    from celery_agents.worker.store import keys

    if keys.PERMANENT.match(name):
        return True
    match = _SESSION.match(name)
    if match is None:
        return False
    shard = keys.ShardKeys(int(match["shard"]))
    if client.zscore(shard.due, match["session"]) is not None:
        return True
    return client.hget(shard.session(match["session"]).ctl, "phase") == "wait"
