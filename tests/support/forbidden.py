"""Commands of Redis that the users of deploy/redis/users.acl may not give."""

from __future__ import annotations

from typing import Any

SESSION, CTL, LEASE, DUE = "ca:{0}:s:x", "ca:{0}:s:x:ctl", "ca:{0}:lease:x", "ca:{0}:due"
STEPS, CONTROL = "celery_agents.steps", "celery_agents.control"
PIDBOX, EVENTS = "/0.celery-agents.pidbox", "/0.celery-agents.events/*"

EVERYBODY: list[tuple[Any, ...]] = [
    ("FLUSHALL",), ("FLUSHDB",), ("KEYS", "*"), ("SCAN", "0"), ("CONFIG", "GET", "*"), ("CONFIG", "SET", "save", ""),
    ("ACL", "LIST"), ("ACL", "SETUSER", "x", "on"), ("DEBUG", "SLEEP", "0"), ("SHUTDOWN", "NOSAVE"), ("MONITOR",),
    ("CLIENT", "LIST"), ("CLIENT", "KILL", "TYPE", "normal"), ("CLIENT", "PAUSE", "1"), ("REPLICAOF", "NO", "ONE"),
    ("SAVE",), ("BGREWRITEAOF",), ("MIGRATE", "h", "1", "k", "0", "1"), ("RENAME", SESSION, "ca:y"), ("SWAPDB", "0", "1"),
    ("GET", "foreign"), ("SET", "foreign", "1"), ("DEL", "foreign"), ("LPUSH", "other-queue", "x"), ("DUMP", SESSION),
    ("SUBSCRIBE", "somebody"), ("PSUBSCRIBE", "*"), ("PUBLISH", "somebody", "x"), ("SELECT", "1"), ("MODULE", "LIST"),
    ("SCRIPT", "FLUSH"), ("SCRIPT", "KILL"), ("OBJECT", "ENCODING", SESSION), ("RANDOMKEY",), ("SORT", STEPS),
    ("CLUSTER", "NODES"), ("CLUSTER", "FAILOVER"), ("CLUSTER", "RESET"), ("CLUSTER", "SETSLOT", "0", "STABLE"), ("CLUSTER", "FORGET", "x"),
    ("CLUSTER", "ADDSLOTS", "0"), ("ASKING",), ("READONLY",),
]  # fmt: skip
SCRIPTS: list[tuple[Any, ...]] = [
    ("EVAL", "return 1", "0"), ("EVALSHA", "0" * 40, "0"), ("SCRIPT", "LOAD", "return 1"), ("SCRIPT", "EXISTS", "x"), ("EVAL_RO", "return 1", "0"),
    ("FCALL", "x", "0"),
]  # fmt: skip
# What one of the users is for, and no other may.
MAY: dict[str, list[tuple[Any, ...]]] = {
    "operator": [
        ("SCRIPT", "KILL"),
        ("CLIENT", "LIST"),
        ("CLIENT", "KILL", "TYPE", "normal"),
        ("RENAME", SESSION, "ca:y"),
    ],
    "worker": [("CLUSTER", "NODES")],  # whether a cluster has as many replicas as have to confirm
    "monitor": [("CLUSTER", "NODES")],
}
MAY_NOT: dict[str, list[tuple[Any, ...]]] = {
    "producer": [
        ("SET", LEASE, "me"), ("BRPOP", STEPS, "1"), ("RPOP", CONTROL), ("LTRIM", "unacked", "0", "0"), ("INFO",),
        ("PUBLISH", PIDBOX, "{}"), ("PSUBSCRIBE", EVENTS), ("SUBSCRIBE", "ca:wake:x"), ("SETNX", CTL, "a"),
        ("EVAL", "return 1", "0"), ("EVALSHA", "0" * 40, "0"), ("SCRIPT", "LOAD", "return 1"), ("HGET", "unacked", "x"),
        ("LPUSH", "x.reply.celery-agents.pidbox", "x"), ("HSET", "unacked", "x", "y"), ("SADD", "_kombu.binding.celery", "x"),
        ("SADD", "_kombu.binding.celery-agents.pidbox", "x"), ("SADD", "_kombu.binding.reply.celery-agents.pidbox", "x"), ("HSET", "flower.unacked", "x", "y"),
    ],
    "submitter": [
        ("LPUSH", STEPS, "x"), ("LPUSH", "celery", "x"), ("RPOP", CONTROL), ("BRPOP", CONTROL, "1"), ("LRANGE", CONTROL, "0", "-1"), ("DEL", CONTROL),
        ("LTRIM", CONTROL, "0", "0"), ("HGETALL", SESSION), ("HSET", SESSION, "a", "b"), ("SMEMBERS", "ca:agents"), ("SADD", DUE, "x"), ("INFO",),
        ("LPUSH", "ca:shards", "x"), ("LPUSH", DUE, "x"), ("PUBLISH", "ca:wake:x", "x"), ("PUBLISH", PIDBOX, "{}"), ("LPUSH", "unacked", "x"),
        ("SADD", "_kombu.binding.celery_agents.steps", "x"), ("HSET", "unacked", "x", "y"),
    ],
    "worker": [("PSUBSCRIBE", "/0.*"), ("PUBLISH", "/1.celery-agents.pidbox", "{}"), ("HGETALL", "another:service")],
    "monitor": [
        ("HSET", SESSION, "a", "b"), ("DEL", SESSION), ("SET", "ca:shards", "2"), ("ZADD", DUE, "1", "x"), ("ZREM", DUE, "x"),
        ("LPUSH", STEPS, "x"), ("LPUSH", CONTROL, "x"), ("RPOP", STEPS), ("BRPOP", STEPS, "1"), ("PUBLISH", PIDBOX, "{}"),
        ("PUBLISH", "ca:wake:x", "x"), ("PSUBSCRIBE", EVENTS), ("PEXPIRE", SESSION, "1"), ("XTRIM", "ca:{0}:dead", "MAXLEN", "0"),
        ("SADD", "_kombu.binding.x", "x"), ("HDEL", "ca:workers", "x"), ("PERSIST", SESSION), ("HSET", "unacked", "x", "y"),
        ("HGETALL", "flower.unacked"), ("HDEL", "unacked", "x"), *SCRIPTS,
    ],
    "keda": [
        ("HGETALL", SESSION), ("LPUSH", STEPS, "x"), ("ZADD", DUE, "1", "x"), ("LLEN", CONTROL), ("TYPE", SESSION), ("INFO",), ("MULTI",),
        ("EVAL", "return redis.call('HGETALL', KEYS[1])", "1", SESSION), ("EVAL", "return redis.call('DEL', KEYS[1])", "1", DUE),
        ("SCRIPT", "LOAD", "return 1"), ("EVALSHA", "0" * 40, "0"),
    ],
    "operator": [
        ("HGETALL", SESSION), ("HSET", SESSION, "a", "b"), ("DEL", SESSION), ("LPUSH", STEPS, "x"), ("ZADD", DUE, "1", "x"), ("GET", "ca:shards"),
        ("RENAME", SESSION, "elsewhere"), ("PUBLISH", PIDBOX, "{}"), *SCRIPTS,
    ],
    "http": [
        ("SET", LEASE, "me"), ("BRPOP", STEPS, "1"), ("RPOP", CONTROL), ("INFO",), ("PUBLISH", PIDBOX, "{}"), ("SUBSCRIBE", "ca:wake:x"),
        ("EVAL", "return 1", "0"), ("EVALSHA", "0" * 40, "0"), ("HGET", "unacked", "x"), ("HSET", "unacked", "x", "y"), ("XTRIM", "ca:{0}:dead", "MAXLEN", "0"),
        ("SADD", "_kombu.binding.celery", "x"), ("LPUSH", "x.reply.celery-agents.pidbox", "x"), ("HSET", "flower.unacked", "x", "y"),
    ],
    "flower": [
        ("HGETALL", SESSION), ("HGET", SESSION, "state"), ("LRANGE", SESSION + ":m:messages:0", "0", "-1"), ("GET", "ca:shards"),
        ("LPUSH", STEPS, "x"), ("LPUSH", CONTROL, "x"), ("BRPOP", STEPS, "1"), ("LLEN", STEPS), ("DEL", SESSION),
        ("ZADD", DUE, "1", "x"), ("PUBLISH", "ca:wake:x", "x"), ("SUBSCRIBE", "ca:wake:x"), ("INFO",), ("XREAD", "STREAMS", "ca:x", "0"),
        *SCRIPTS, ("HSET", "unacked", "x", "y"), ("ZADD", "unacked_index", "1", "x"),
        ("SET", "unacked_mutex", "x"), ("HGET", "unacked", "x"), ("SADD", "_kombu.binding.celery_agents.control", "x"), ("DEL", "unacked"),
    ],
}  # fmt: skip
