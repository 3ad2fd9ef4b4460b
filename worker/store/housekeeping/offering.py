"""Sessions whose agent no live worker offers: they wait in an index until a worker registers the agent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ...errors import StateUnreadable
from .. import fields
from ..context import StoreContext
from ..keys import ShardKeys
from ..records import StepRef
from .sweeps import publish, read_lost_step

_BATCH = 1000


def offer(context: StoreContext, queues: Mapping[str, Sequence[str]]) -> int:
    """End the wait of sessions whose agent a worker has registered, and publish their steps. See `Housekeeping.offer`.

    Nobody has a claim of such a step. So it need not wait for the sweep, which after a start of Redis begins late.
    """
    counts = context.database.pipeline("offer.count", [("ZCARD", shard.unoffered) for shard in context.shards])
    waiting = [shard for shard, count in zip(context.shards, counts, strict=True) if count]
    if not waiting:
        return 0
    (now,) = context.database.pipeline("now", [context.clock.now()])
    now_ms = context.clock.milliseconds(now)
    return sum(_offer(context, shard, now_ms, agent, queues[agent]) for shard in waiting for agent in queues)


def _offer(context: StoreContext, shard: ShardKeys, now_ms: int, agent: str, queues: Sequence[str]) -> int:
    wait_ms = context.due_ms if context.publisher.count_commands("") else 0  # 0: the queue is in another database
    args = (shard.prefix, now_ms, _BATCH, context.settings.events_kept, wait_ms, agent, len(queues), *queues)
    total = 0
    while True:  # in batches, so that nobody waits for Redis for long; each takes out what it looks at
        looked_at, free = context.database.script("offer.pass", "offer", (shard.unoffered, shard.due), args)
        publish(context, list(_readable(free)), now_ms)
        total += looked_at
        if looked_at < _BATCH:
            return total


def _readable(steps: Sequence[Sequence[bytes]]) -> Iterator[StepRef]:
    """The steps that a worker takes; the sweep parks the others."""
    for step in steps:
        with contextlib.suppress(StateUnreadable):
            yield read_lost_step(*step)


MOST_UNOFFERED: Final = 100
OTHER_AGENTS: Final = "(other)"
"""Stands for the agents beyond the first 100 by name: anybody who may submit can name any agent."""


def count_unoffered(context: StoreContext) -> dict[str, int]:
    """Count the sessions that wait for a worker, by agent. See `Housekeeping.count_unoffered`."""
    found: dict[str, int] = {}
    for shard in context.shards:
        lowest = b"-"
        while True:
            if len(found) >= MOST_UNOFFERED:
                count_command = ("ZLEXCOUNT", shard.unoffered, lowest, "+")
                (count,) = context.database.pipeline("unoffered.count", [count_command])
                if count:
                    found[OTHER_AGENTS] = found.get(OTHER_AGENTS, 0) + count
                break
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
