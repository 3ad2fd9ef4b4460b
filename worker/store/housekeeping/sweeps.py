"""The sweep: find steps whose message or worker was lost, and take out of the indexes what has expired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import StateUnreadable
from .. import fields
from ..context import StoreContext
from ..keys import ShardKeys
from ..records import StepRef, SweepResult
from ..sessions.parking import park
from .registry import forget_silent_workers


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The queue as a sweep knows it beforehand.

    Attributes:
        oldest_ms: When the oldest message still queued was published (Redis ms); -1 when the queue is empty or unknown.
        capacity: Most messages to publish.
    """

    oldest_ms: int = -1
    capacity: int = 1_000_000


def sweep(context: StoreContext, shard: ShardKeys, queue: QueueSnapshot) -> SweepResult:
    """Make one pass over the due index of a shard. See `Housekeeping.sweep`."""
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
    return SweepResult(lost=tuple(refs), live=live, queued=queued, at_ms=now_ms)


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


def prune(context: StoreContext, shard: ShardKeys) -> int:
    """Take expired sessions out of the indexes, and workers that were not heard from out of the registry.

    Returns:
        How many sessions were gone.
    """
    forget_silent_workers(context)
    (now,) = context.database.pipeline("prune.now", [context.clock.now()])
    keys = (shard.ending, shard.sessions, shard.failed, shard.due)
    limit, total = context.settings.sweep_batch, 0
    while True:  # in passes, so that nobody waits for Redis for long; each takes out what it looks at
        args = (shard.prefix, context.clock.milliseconds(now), limit)
        gone, looked_at = context.database.script("prune.pass", "prune", keys, args)
        total += gone
        if looked_at < limit:
            return total


def lock(context: StoreContext, shard: ShardKeys, worker: str, hold_ms: int) -> bool:
    """Take or keep the lock of a shard's sweep for `hold_ms`."""
    taken, holder = context.database.pipeline(
        "sweep.lock", [("SET", shard.sweeper, worker, "NX", "PX", hold_ms), ("GET", shard.sweeper)]
    )
    if taken is None and fields.text(holder) == worker:
        context.database.pipeline("sweep.hold", [("PEXPIRE", shard.sweeper, hold_ms)])
        return True
    return taken is not None


def now_ms(context: StoreContext) -> int:
    """Ask Redis for its time in milliseconds."""
    (reply,) = context.database.pipeline("now", [context.clock.now()])
    return context.clock.milliseconds(reply)
