"""Looking at what is due, pruning the indexes, and what workers tell about themselves."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from ..errors import ConfigurationError, StateUnreadable
from . import fields
from .actions import park
from .ground import Ground
from .keys import AGENTS, SHARDS, WORKERS, ShardKeys
from .records import StepRef, Swept
from .tables import Command, Reply

# What an entry of the registry holds, and what is taken for what it does not say.
_WORKER: Final[Mapping[str, Any]] = {
    "seen": 0, "host": "", "pid": 0, "pool": "", "slots": 0, "running": 0, "abandoned": 0, "draining": False,
    "agents": {},
}  # fmt: skip
_AGENT: Final[Mapping[str, Any]] = {"seen": 0, "hash": ""}


@dataclass(frozen=True, slots=True)
class Lookout:
    """What a sweep knows of the queue before it looks.

    Attributes:
        oldest_ms: When the oldest message still queued was published (Redis ms); -1 when the queue is empty or unknown.
        capacity: Most messages to publish.
    """

    oldest_ms: int = -1
    capacity: int = 1_000_000


def sweep(ground: Ground, shard: ShardKeys, lookout: Lookout) -> Swept:
    """One pass over the due index of a shard. See `StepStore.sweep`."""
    now_reply, uptime = ground.tables.ask("sweep.now", [ground.clock.now(), ground.clock.uptime()])
    if ground.clock.uptime_seconds(uptime) < ground.settings.lease_seconds:
        return Swept()  # the holders of leases that ended while Redis was down need time to come back
    now_ms = ground.clock.milliseconds(now_reply)
    longest_ms = round(ground.settings.due_max_seconds * 1000)
    lost, live, queued, broken = ground.tables.script(
        "sweep.pass",
        "sweep",
        (shard.due,),
        (
            shard.prefix, now_ms, ground.settings.sweep_batch, ground.lease_ms, ground.grace_ms,
            ground.due_ms, longest_ms, lookout.oldest_ms, lookout.capacity,
        ),
    )  # fmt: skip
    refs: list[StepRef] = []
    for session_id, *step in lost:
        try:
            refs.append(StepRef(fields.text(session_id), fields.text(step[0]), *map(fields.number, step[1:])))
        except StateUnreadable:
            broken.append(session_id)
    for session_id in broken:
        park(ground, StepRef(session_id.decode(), "", 0), "its control fields cannot be read", whatever_step=True)
    return Swept(tuple(refs), live, queued, now_ms)


def prune(ground: Ground, shard: ShardKeys) -> int:
    """Take expired sessions out of the indexes, and workers that were not heard of out of the registry.

    Returns:
        How many sessions were gone.
    """
    (now,) = ground.tables.ask("prune.now", [ground.clock.now()])
    _, silent = _registered_workers(ground)
    if silent:
        ground.tables.ask("registry.forget", [("HDEL", WORKERS, *silent)])
    keys = (shard.ending, shard.sessions, shard.failed, shard.due)
    limit, total = ground.settings.sweep_batch, 0
    while True:  # in passes, so that nobody waits for Redis meanwhile; each takes out what it looks at
        args = (shard.prefix, ground.clock.milliseconds(now), limit)
        gone, looked_at = ground.tables.script("prune.pass", "prune", keys, args)
        total += gone
        if looked_at < limit:
            return total


def lock(ground: Ground, shard: ShardKeys, worker: str, hold_ms: int) -> bool:
    """Become, or stay, the one who sweeps this shard for `hold_ms`."""
    taken, holder = ground.tables.ask(
        "sweep.lock", [("SET", shard.sweeper, worker, "NX", "PX", hold_ms), ("GET", shard.sweeper)]
    )
    if taken is None and fields.text(holder) == worker:
        ground.tables.ask("sweep.hold", [("PEXPIRE", shard.sweeper, hold_ms)])
        return True
    return taken is not None


def now_ms(ground: Ground) -> int:
    """Redis's time."""
    (reply,) = ground.tables.ask("now", [ground.clock.now()])
    return ground.clock.milliseconds(reply)


def register(ground: Ground, worker: str, facts: Mapping[str, Any], agents: Mapping[str, str]) -> None:
    """Tell that a worker lives, what it can do and which agents it offers (name → definition hash)."""
    seen = now_ms(ground)
    commands: list[Command] = [("HSET", WORKERS, worker, fields.packed({**facts, "agents": agents, "seen": seen}))]
    if agents:
        words = [w for name, h in agents.items() for w in (name, fields.packed({"hash": h, "seen": seen}))]
        commands.append(("HSET", AGENTS, *words))
    ground.tables.ask("register", commands)


def unregister(ground: Ground, worker: str) -> None:
    """Tell that a worker has gone."""
    ground.tables.ask("unregister", [("HDEL", WORKERS, worker)])


def workers(ground: Ground) -> dict[str, dict[str, Any]]:
    """Workers heard of lately."""
    return _registered_workers(ground)[0]


def _registered_workers(ground: Ground) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Workers heard of lately, and the names of all others. Who looks need not be allowed to write."""
    now_reply, flat = ground.tables.ask("registry", [ground.clock.now(), ("HGETALL", WORKERS)])
    oldest = ground.clock.milliseconds(now_reply) - round(ground.settings.agents_seen_seconds * 1000)
    found = fields.pairs(flat)
    lately = {name: facts for name, facts in _facts(found, _WORKER).items() if facts["seen"] >= oldest}
    return lately, [name for name in found if name not in lately]


def agents(ground: Ground) -> dict[str, dict[str, Any]]:
    """Agents ever registered, with definition hash and last seen (Redis ms)."""
    (flat,) = ground.tables.ask("registry.agents", [("HGETALL", AGENTS)])
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


def check_shards(ground: Ground) -> None:
    """Compare the number of shards with what this Redis was used with.

    Raises:
        ConfigurationError: They differ; sessions would be looked for in the wrong place.
    """
    wanted = str(ground.settings.shards)
    (stored,) = ground.tables.ask("shards", [("GET", SHARDS)])
    if stored is None:
        stored = _first_shards(ground, wanted)
    if fields.text(stored) != wanted:
        raise ConfigurationError(
            f"CELERY_AGENTS_SHARDS={wanted}, but this Redis holds sessions in {fields.text(stored)} shards; "
            f"set it to {fields.text(stored)}, or use an empty Redis"
        )


def _first_shards(ground: Ground, wanted: str) -> Reply:
    """Note the number in an empty Redis; who is not allowed to leaves that to the first worker."""
    try:
        return ground.tables.ask("shards.first", [("SET", SHARDS, wanted, "NX"), ("GET", SHARDS)])[1]
    except ConfigurationError:
        return wanted.encode()


def worker_name(host: str, pid: int) -> str:
    """A name no other worker has, not even after a restart with the same pid."""
    return f"{host}-{pid}-{uuid.uuid4().hex[:8]}"
