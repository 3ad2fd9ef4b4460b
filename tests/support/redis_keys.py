"""What a test may leave behind in Redis: keys with a time to live, the permanent ones, those of live sessions."""

from __future__ import annotations

import re

import redis

from celery_agents.worker.store.keys import PERMANENT, FleetKeys, SessionKeys, ShardKeys, shard_keys, shard_of
from celery_agents.worker.store.shards import NEW

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
    if PERMANENT.match(name):
        return True
    match = _SESSION.match(name)
    if match is None:
        return False
    shard = ShardKeys(int(match["shard"]))
    if client.zscore(shard.due, match["session"]) is not None:
        return True
    return client.hget(shard.session(match["session"]).ctl, "phase") == "wait"


def session_key(session_id: str, rest: str = "") -> str:
    """The key of a session in a store of as many shards as a new one has; `rest` such as ":ctl"."""
    return session_keys(session_id).session + rest


def session_keys(session_id: str) -> SessionKeys:
    """The keys of a session in such a store."""
    return shard_of_session(session_id).session(session_id)


def shard_of_session(session_id: str) -> ShardKeys:
    """The keys of a session's shard, in such a store."""
    return ShardKeys(shard_of(session_id, NEW))


def count_entries(client: redis.Redis, *indexes: str) -> list[int]:
    """Count the entries of indexes in all shards, such as "due", at one moment."""
    shards = _shards(client)
    with client.pipeline() as transaction:
        for index in indexes:
            for shard in shards:
                transaction.zcard(getattr(shard, index))
        counts = transaction.execute()
    return [sum(counts[start : start + len(shards)]) for start in range(0, len(counts), len(shards))]


def due_sessions(client: redis.Redis) -> list[str]:
    """The sessions of the due index, shard by shard."""
    with client.pipeline(transaction=False) as pipeline:
        for shard in _shards(client):
            pipeline.zrange(shard.due, 0, -1)
        return [name for names in pipeline.execute() for name in names]


def _shards(client: redis.Redis) -> tuple[ShardKeys, ...]:
    """The shards of the store, which has its own number of them or is new."""
    fleet = FleetKeys(is_apart=isinstance(client, redis.RedisCluster))
    stored = client.get(fleet.shards) or str(NEW)
    return shard_keys(int((stored.decode() if isinstance(stored, bytes) else str(stored)).split()[0]))
