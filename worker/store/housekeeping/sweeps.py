"""Looking at what is due, pruning the indexes, and what workers tell about themselves."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from ...errors import ConfigurationError, StateUnreadable
from .. import fields
from ..context import StoreContext
from ..database import Command, Reply
from ..keys import AGENTS, SHARDS, WORKERS, ShardKeys
from ..records import StepRef, SweepResult
from ..sessions.parking import park

# What an entry of the registry holds, and what is taken for what it does not say.
_WORKER: Final[Mapping[str, Any]] = {
    "seen": 0, "host": "", "pid": 0, "pool": "", "slots": 0, "running": 0, "abandoned": 0, "draining": False,
    "agents": {}, "missing": [],
}  # fmt: skip
_AGENT: Final[Mapping[str, Any]] = {"seen": 0, "hash": ""}


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """What a sweep knows of the queue before it looks.

    Attributes:
        oldest_ms: When the oldest message still queued was published (Redis ms); -1 when the queue is empty or unknown.
        capacity: Most messages to publish.
    """

    oldest_ms: int = -1
    capacity: int = 1_000_000


def sweep(context: StoreContext, shard: ShardKeys, queue: QueueSnapshot) -> SweepResult:
    """One pass over the due index of a shard. See `StepStore.sweep`."""
    now_reply, uptime = context.database.pipeline("sweep.now", [context.clock.now(), context.clock.uptime()])
    if context.clock.uptime_seconds(uptime) < context.settings.lease_seconds:
        return SweepResult()  # the holders of leases that ended while Redis was down need time to come back
    now_ms = context.clock.milliseconds(now_reply)
    longest_ms = round(context.settings.due_max_seconds * 1000)
    lost, live, queued, broken = context.database.script(
        "sweep.pass",
        "sweep",
        (shard.due,),
        (
            shard.prefix, now_ms, context.settings.sweep_batch, context.lease_ms, context.grace_ms,
            context.due_ms, longest_ms, queue.oldest_ms, queue.capacity,
        ),
    )  # fmt: skip
    refs: list[StepRef] = []
    for session_id, *step in lost:
        try:
            refs.append(_parse_lost(session_id, *step))
        except StateUnreadable:
            broken.append(session_id)
    for session_id in broken:
        park(context, StepRef(session_id.decode(), "", 0), "its control fields cannot be read", any_step=True)
    return SweepResult(tuple(refs), live, queued, now_ms)


def _parse_lost(session_id: bytes, execution_id: bytes, step: bytes, retries: bytes) -> StepRef:
    return StepRef(
        session_id=fields.text(session_id),
        execution_id=fields.text(execution_id),
        step=fields.number(step),
        retries=fields.number(retries),
    )


def publish(context: StoreContext, refs: Sequence[StepRef], at_ms: int) -> bool:
    """Publish the messages of lost steps. See `Housekeeping.publish`."""
    commands = [command for ref in refs for command in context.publisher.commands(ref, at_ms)]
    if commands:
        context.database.pipeline("sweep.publish", commands)
    return bool(commands)


def queue_length(context: StoreContext, queue_key: str) -> int:
    """How many messages wait in a queue."""
    return context.database.pipeline("queue.length", [("LLEN", queue_key)])[0]


def oldest_message(context: StoreContext, queue_key: str) -> bytes | None:
    """Read the message that leaves a queue next."""
    return context.database.pipeline("queue.oldest", [("LINDEX", queue_key, -1)])[0]


def prune(context: StoreContext, shard: ShardKeys) -> int:
    """Take expired sessions out of the indexes, and workers that were not heard of out of the registry.

    Returns:
        How many sessions were gone.
    """
    (now,) = context.database.pipeline("prune.now", [context.clock.now()])
    _, silent = _registered_workers(context)
    if silent:
        context.database.pipeline("registry.forget", [("HDEL", WORKERS, *silent)])
    keys = (shard.ending, shard.sessions, shard.failed, shard.due)
    limit, total = context.settings.sweep_batch, 0
    while True:  # in passes, so that nobody waits for Redis meanwhile; each takes out what it looks at
        args = (shard.prefix, context.clock.milliseconds(now), limit)
        gone, looked_at = context.database.script("prune.pass", "prune", keys, args)
        total += gone
        if looked_at < limit:
            return total


def lock(context: StoreContext, shard: ShardKeys, worker: str, hold_ms: int) -> bool:
    """Become, or stay, the one who sweeps this shard for `hold_ms`."""
    taken, holder = context.database.pipeline(
        "sweep.lock", [("SET", shard.sweeper, worker, "NX", "PX", hold_ms), ("GET", shard.sweeper)]
    )
    if taken is None and fields.text(holder) == worker:
        context.database.pipeline("sweep.hold", [("PEXPIRE", shard.sweeper, hold_ms)])
        return True
    return taken is not None


def now_ms(context: StoreContext) -> int:
    """Redis's time."""
    (reply,) = context.database.pipeline("now", [context.clock.now()])
    return context.clock.milliseconds(reply)


def register(context: StoreContext, worker: str, facts: Mapping[str, Any], agents: Mapping[str, str]) -> None:
    """Tell that a worker lives, what it can do and which agents it offers (name → definition hash)."""
    seen = now_ms(context)
    commands: list[Command] = [("HSET", WORKERS, worker, fields.packed({**facts, "agents": agents, "seen": seen}))]
    if agents:
        words = [w for name, h in agents.items() for w in (name, fields.packed({"hash": h, "seen": seen}))]
        commands.append(("HSET", AGENTS, *words))
    context.database.pipeline("register", commands)


def unregister(context: StoreContext, worker: str) -> None:
    """Tell that a worker has gone."""
    context.database.pipeline("unregister", [("HDEL", WORKERS, worker)])


def workers(context: StoreContext) -> dict[str, dict[str, Any]]:
    """Workers heard of lately."""
    return _registered_workers(context)[0]


def _registered_workers(context: StoreContext) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Workers heard of lately, and the names of all others. Who looks need not be allowed to write."""
    now_reply, flat = context.database.pipeline("registry", [context.clock.now(), ("HGETALL", WORKERS)])
    oldest = context.clock.milliseconds(now_reply) - round(context.settings.agents_seen_seconds * 1000)
    found = fields.pairs(flat)
    lately = {name: facts for name, facts in _facts(found, _WORKER).items() if facts["seen"] >= oldest}
    return lately, [name for name in found if name not in lately]


def agents(context: StoreContext) -> dict[str, dict[str, Any]]:
    """Agents ever registered, with definition hash and last seen (Redis ms)."""
    (flat,) = context.database.pipeline("registry.agents", [("HGETALL", AGENTS)])
    return _facts(fields.pairs(flat), _AGENT)


def _facts(entries: Mapping[str, bytes], usual: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Entries of the registry, with the usual value for what one does not say or says in another form.

    One that cannot be read says nothing, and keeps nobody from reading the others.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, entry in entries.items():
        try:
            said: Any = json.loads(entry)
        except (ValueError, RecursionError):
            said = None
        facts = cast("dict[str, Any]", said) if isinstance(said, dict) else {}
        found[name] = facts | {key: value for key, value in usual.items() if type(facts.get(key)) is not type(value)}
    return found


def check_shards(context: StoreContext) -> None:
    """Compare the number of shards with what this Redis was used with.

    Raises:
        ConfigurationError: They differ; sessions would be looked for in the wrong place.
    """
    wanted = str(context.settings.shards)
    (stored,) = context.database.pipeline("shards", [("GET", SHARDS)])
    if stored is None:
        stored = _first_shards(context, wanted)
    if fields.text(stored) != wanted:
        raise ConfigurationError(
            f"CELERY_AGENTS_SHARDS={wanted}, but this Redis holds sessions in {fields.text(stored)} shards; "
            f"set it to {fields.text(stored)}, or use an empty Redis"
        )


def _first_shards(context: StoreContext, wanted: str) -> Reply:
    """Note the number in an empty Redis; who is not allowed to leaves that to the first worker."""
    try:
        return context.database.pipeline("shards.first", [("SET", SHARDS, wanted, "NX"), ("GET", SHARDS)])[1]
    except ConfigurationError:
        return wanted.encode()


def worker_name(host: str, pid: int) -> str:
    """A name no other worker has, not even after a restart with the same pid."""
    return f"{host}-{pid}-{uuid.uuid4().hex[:8]}"
