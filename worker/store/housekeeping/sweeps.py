"""The sweep: find steps whose message or worker was lost, and take out of the indexes what has expired."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from ...errors import InvalidInput, StateUnreadable
from ...state import ID_PATTERN, read_session_id
from .. import fields
from ..context import SessionScope, StoreContext
from ..database import Changed, Command, Word
from ..dead import DeadEntry
from ..keys import ShardKeys
from ..records import LAST_STEP, StepRef, SweepResult
from ..sessions.parked_keys import key_names, key_reads
from ..sessions.parking import park
from .registry import forget_silent_workers

_MOST_RETRIES: Final = 10**9
_MOST_LEGS: Final = 10**9


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The queues as a sweep knows them beforehand.

    Attributes:
        oldest_ms: When the oldest message still in the common queue was published (Redis ms); -1 when the queue is
            empty or unknown.
        capacity: Most messages to publish.
        named: `oldest_ms` of the other queues, by name. A queue that is not named counts as empty.
        offers: The agents that live workers offer, each with the queues that these workers take, the preferred one
            first. None: not known, and every step is published to the queue that its session names.
    """

    oldest_ms: int = -1
    capacity: int = 1_000_000
    named: Mapping[str, int] = field(default_factory=dict[str, int])
    offers: Mapping[str, Sequence[str]] | None = None

    def words(self) -> list[Word]:
        """The words that the sweep's script takes."""
        oldest = {"": self.oldest_ms, **self.named}
        words: list[Word] = [int(self.offers is not None), len(oldest)]
        words += [word for pair in oldest.items() for word in pair]
        for agent, queues in (self.offers or {}).items():
            words += [agent, len(queues), *queues]
        return words


def sweep(context: StoreContext, shard: ShardKeys, queue: QueueSnapshot) -> SweepResult:
    """Make one pass over the due index of a shard. See `Housekeeping.sweep`."""
    now_reply, uptime = context.database.pipeline("sweep.now", [context.clock.now(), context.clock.uptime()])
    if context.clock.uptime_seconds(uptime) < context.settings.lease_seconds:
        return SweepResult()  # the holders of leases that ended while Redis was down need time to come back
    now_ms = context.clock.milliseconds(now_reply)
    longest_ms = round(context.settings.due_max_seconds * 1000)
    lost, live, queued, broken, expired = context.database.script(
        "sweep.pass",
        "sweep",
        (shard.due, shard.unoffered),
        (
            shard.prefix, now_ms, context.settings.sweep_batch, context.lease_ms, context.grace_ms,
            context.due_ms, longest_ms, queue.capacity, context.agent_grace_ms, context.settings.events_kept,
            *queue.words(),
        ),
    )  # fmt: skip
    refs: list[StepRef] = []
    left: set[str] = set()
    for session_id, *step, left_queue in lost:
        try:
            refs.append(read_lost_step(session_id, *step))
            left.add(fields.text(left_queue))
        except StateUnreadable:
            broken.append(session_id)
    for session_id, execution_id, step, agent in expired:
        try:
            _park_unoffered(context, read_lost_step(session_id, execution_id, step), fields.text(agent))
        except StateUnreadable:
            broken.append(session_id)
    for session_id in broken:
        _park_broken(context, shard, session_id)
    return SweepResult(lost=tuple(refs), live=live, queued=queued, at_ms=now_ms, left=frozenset(left - {""}))


def _park_unoffered(context: StoreContext, ref: StepRef, agent: str) -> None:
    """Park a session whose grace period is over, unless a worker has registered its agent meanwhile."""
    waited = timedelta(seconds=round(context.settings.agent_grace_seconds))
    park(context, ref, f"no worker has offered agent {agent!r} for {waited}", only_unoffered=True)


def read_lost_step(
    session_id: bytes, execution_id: bytes, step: bytes, retries: bytes = b"", legs: bytes = b"", queue: bytes = b""
) -> StepRef:
    """Parse a lost step.

    Raises:
        StateUnreadable: No worker takes a message of this step, so publishing it would never end.
    """
    ref = StepRef(
        session_id=fields.text(session_id),
        execution_id=fields.text(execution_id),
        step=fields.number(step),
        retries=fields.number(retries),
        queue=fields.text(queue),
        legs=fields.number(legs),
    )
    is_id = ID_PATTERN.fullmatch(ref.execution_id) and _is_session_id(ref.session_id)
    are_counts = 0 <= ref.retries < _MOST_RETRIES and 0 <= ref.legs < _MOST_LEGS
    if not is_id or not 1 <= ref.step < LAST_STEP or not are_counts:
        raise StateUnreadable("ctl", "its execution, step, number of retries or number of waits is none")
    return ref


def _is_session_id(text: str) -> bool:
    try:
        read_session_id(text)
    except InvalidInput:
        return False
    return True


def _park_broken(context: StoreContext, shard: ShardKeys, session_id: bytes) -> None:
    """Park a session whose control fields cannot be read."""
    reason = "its control fields cannot be read"
    name = fields.name(session_id)
    if name.encode() == session_id:
        park(context, StepRef(name, "", 0), reason, any_step=True)
        return
    entry = DeadEntry(kind="step", reason=f"{reason}, nor its id", session_id=name)
    context.database.pipeline("park.broken", [("ZREM", shard.due, session_id), entry.command(context, shard)])


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
    _forget_past_delays(context, shard, context.clock.milliseconds(now))
    keys = (shard.ending, shard.sessions, shard.failed, shard.due, shard.children)
    limit, total = context.settings.sweep_batch, 0
    now_ms = context.clock.milliseconds(now)
    while True:  # in passes, so that nobody waits for Redis for long; each takes out what it looks at
        _end_parked(context, shard, now_ms)
        args = (shard.prefix, now_ms, limit)
        gone, looked_at = context.database.script("prune.pass", "prune", keys, args)
        total += gone
        if looked_at < limit:
            return total


def _end_parked(context: StoreContext, shard: ShardKeys, now_ms: int) -> None:
    """Delete the parked sessions whose retention is over, among those that the next pass looks at."""
    limit = context.settings.sweep_batch
    (due,) = context.database.pipeline(
        "prune.due", [("ZRANGEBYSCORE", shard.ending, "-inf", now_ms, "LIMIT", 0, limit)]
    )
    scopes = [context.session(member.decode("utf-8", "replace")) for member in due]
    for scope, phase in zip(scopes, _read_phases(context, scopes), strict=True):
        if phase == b"parked":
            # After a conflict somebody has taken it up again.
            with contextlib.suppress(Changed, StateUnreadable):
                _delete_parked(scope)


def _read_phases(context: StoreContext, scopes: Sequence[SessionScope]) -> list[bytes | None]:
    reads: list[Command] = [("HGET", scope.keys.ctl, "phase") for scope in scopes]
    try:
        return context.database.pipeline("prune.phases", reads) if reads else []
    except StateUnreadable:  # a key of another type: of one session, and the others are to be seen
        return [None] if len(scopes) == 1 else [each for one in scopes for each in _read_phases(context, [one])]


def _delete_parked(scope: SessionScope) -> None:
    ctl = scope.keys.ctl
    reads: list[Command] = [("HGET", ctl, "phase"), *key_reads(scope)]
    with scope.database.watch("prune.parked", (ctl,), reads) as watched:
        phase, *replies = watched.replies
        if phase == b"parked":
            watched.commit("prune.delete", [("DEL", *key_names(scope, replies))])


def _forget_past_delays(context: StoreContext, shard: ShardKeys, now_ms: int) -> None:
    """Take steps whose next try is due out of the list of delayed steps."""
    while True:
        command: Command = ("ZRANGEBYSCORE", shard.delayed, "-inf", now_ms, "LIMIT", 0, context.settings.sweep_batch)
        (past,) = context.database.pipeline("prune.delayed", [command])
        if not past:
            return
        # A step that is delayed again in between is not counted until its next try, which the listing can bear.
        context.database.pipeline("prune.undelay", [("ZREM", shard.delayed, *past)])


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
