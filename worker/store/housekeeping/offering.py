"""Sessions whose agent no live worker offers: they wait in an index until a worker registers the agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .. import fields
from ..context import StoreContext
from ..keys import ShardKeys

_BATCH = 1000


def offer(context: StoreContext, queues: Mapping[str, Sequence[str]]) -> int:
    """End the wait of sessions whose agent a worker has registered. See `Housekeeping.offer`."""
    counts = context.database.pipeline("offer.count", [("ZCARD", shard.unoffered) for shard in context.shards])
    waiting = [shard for shard, count in zip(context.shards, counts, strict=True) if count]
    if not waiting:
        return 0
    (now,) = context.database.pipeline("now", [context.clock.now()])
    now_ms = context.clock.milliseconds(now)
    return sum(_offer(context, shard, now_ms, agent, queues[agent]) for shard in waiting for agent in queues)


def _offer(context: StoreContext, shard: ShardKeys, now_ms: int, agent: str, queues: Sequence[str]) -> int:
    args = (shard.prefix, now_ms, _BATCH, context.settings.events_kept, agent, len(queues), *queues)
    total = 0
    while True:  # in batches, so that nobody waits for Redis for long; each takes out what it looks at
        looked_at = context.database.script("offer.pass", "offer", (shard.unoffered, shard.due), args)
        total += looked_at
        if looked_at < _BATCH:
            return total


def count_unoffered(context: StoreContext) -> dict[str, int]:
    """Count the sessions that wait for a worker, by agent. See `Housekeeping.unoffered`."""
    found: dict[str, int] = {}
    for shard in context.shards:
        lowest = b"-"
        while True:
            (members,) = context.database.pipeline(
                "unoffered.next", [("ZRANGEBYLEX", shard.unoffered, lowest, "+", "LIMIT", 0, 1)]
            )
            if not members:
                break
            # As bytes: an entry that is no text must not stand before the one that is read next.
            agent = members[0].partition(b" ")[0]
            name, after = fields.name(agent), agent + b"!"
            count_command = ("ZLEXCOUNT", shard.unoffered, b"[" + agent + b" ", b"(" + after)
            (count,) = context.database.pipeline("unoffered.count", [count_command])
            found[name] = found.get(name, 0) + count
            lowest = b"[" + after
    return found
