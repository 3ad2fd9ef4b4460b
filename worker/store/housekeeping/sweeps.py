"""The sweep: find steps whose message or worker was lost, and take out of the indexes what has expired.

Sessions whose agent no live worker offers wait in an index until a worker registers the agent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from ...errors import StateUnreadable
from ...state.values.ids import ID_PATTERN
from .. import fields, primaries
from ..context import SessionScope, StoreContext, StorePart
from ..database import Changed, Command, Word
from ..events import DeadEntry
from ..flow.verbs import forget_past_flow
from ..keys import ShardKeys
from ..records import LAST_STEP, StepRef
from ..sessions.parking import ParkVerbs, key_names, key_reads
from .histories import forget_old_losses
from .registry import forget_silent_workers

_BATCH: Final = 1000
MOST_UNOFFERED: Final = 100
OTHER_AGENTS: Final = "(other)"
"""Represents the agents beyond the first 100 by name: a client that may submit can name any agent."""
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


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The result of a pass over the due index.

    Attributes:
        at_ms: Redis time of the pass; messages of the lost steps have to carry it, since the pass has stored it.
        left: Names of queues from which sessions were moved: no worker that offers their agents takes these.
    """

    lost: tuple[StepRef, ...] = ()
    live: int = 0
    queued: int = 0
    at_ms: int = 0
    left: frozenset[str] = frozenset()


class SweepVerbs(StorePart):
    """Finding steps whose message or worker was lost, what has expired, and what waits for a worker."""

    def sweep(self, shard: int, queue: QueueSnapshot) -> SweepResult:
        """Look at what is due in a shard, postpone every entry it looks at, and name the steps whose message is lost.

        The caller publishes them. Nothing is named that a live lease holds or whose message may still be queued.
        """
        context, keys = self._context, self._context.shards[shard]
        clock, settings = context.clock, context.settings
        asked = [clock.now(), clock.uptime(), *primaries.reads(keys)]
        now_reply, uptime, info, stored = context.database.pipeline("sweep.now", asked)
        now_ms, longest_ms = clock.milliseconds(now_reply), round(settings.due_max_seconds * 1000)
        primary = primaries.read_primary(keys, now_ms, info, stored)
        if primary.notes:
            context.database.pipeline("sweep.primary", primary.notes)
        # The holders of leases that ended while Redis was down, or moved, need time to come back.
        has_settled = primary.has_settled(now_ms, context.lease_ms)
        if clock.uptime_seconds(uptime) < settings.lease_seconds or not has_settled:
            return SweepResult()
        words = (
            keys.prefix, now_ms, settings.sweep_batch, context.lease_ms, context.grace_ms, context.due_ms, longest_ms,
            queue.capacity, context.agent_grace_ms, settings.events_kept, *queue.words(),
        )  # fmt: skip
        found = context.database.script("sweep.pass", "sweep", (keys.due, keys.unoffered), words)
        lost, live, queued, broken, expired = found
        refs: list[StepRef] = []
        left: set[str] = set()
        for session_id, *step, left_queue in lost:
            try:
                refs.append(_read_lost_step(session_id, *step))
                left.add(fields.text(left_queue))
            except StateUnreadable:
                broken.append(session_id)
        for session_id, execution_id, step, agent in expired:
            try:
                _park_unoffered(context, _read_lost_step(session_id, execution_id, step), fields.text(agent))
            except StateUnreadable:
                broken.append(session_id)
        for session_id in broken:
            _park_broken(context, keys, session_id)
        return SweepResult(lost=tuple(refs), live=live, queued=queued, at_ms=now_ms, left=frozenset(left - {""}))

    def publish(self, refs: Sequence[StepRef], at_ms: int) -> bool:
        """Publish the messages of lost steps in one round trip.

        Args:
            at_ms: The time of the sweep that found them.
        Returns:
            False: The queue is not in the store's database, and nothing was published.
        """
        commands = [command for ref in refs for command in self._context.publisher.commands(ref, at_ms)]
        if commands:
            self._context.database.pipeline("sweep.publish", commands)
        return bool(commands)

    def lock_sweep(self, shard: int, worker: str, hold_ms: int) -> bool:
        """Take the lock of a shard's sweep, or keep it, for `hold_ms`; False: another worker has it."""
        database, key = self._context.database, self._context.shards[shard].sweeper
        taken, holder = database.pipeline("sweep.lock", [("SET", key, worker, "NX", "PX", hold_ms), ("GET", key)])
        if taken is None and fields.text(holder) == worker:
            database.pipeline("sweep.hold", [("PEXPIRE", key, hold_ms)])
            return True
        return taken is not None

    def prune(self, shard: int) -> int:
        """Take expired sessions out of the indexes, and workers that were not heard from out of the registry.

        Returns:
            How many sessions were gone.
        """
        context, keys = self._context, self._context.shards[shard]
        forget_silent_workers(context)
        forget_past_flow(context)
        now_ms = context.now_ms("prune.now")
        _forget_past_delays(context, keys, now_ms)
        forget_old_losses(context, shard, now_ms)
        indexes = (keys.ending, keys.sessions, keys.failed, keys.due, keys.children)
        limit, total = context.settings.sweep_batch, 0
        while True:  # in passes, so that no client waits for Redis for long; each takes out what it looks at
            _end_parked(context, keys, now_ms)
            gone, looked_at = context.database.script("prune.pass", "prune", indexes, (keys.prefix, now_ms, limit))
            total += gone
            if looked_at < limit:
                return total

    def offer(self, queues: Mapping[str, Sequence[str]]) -> int:
        """End the wait of sessions whose agents a worker has registered.

        Their steps are published at once where the queue is in the store's database, else by the next sweep. No worker
        has a claim of such a step, so it need not wait for the sweep, which after a start of Redis begins late.

        Args:
            queues: The agents, each with the queues that the worker takes, the preferred one first.
        Returns:
            How many sessions had waited.
        """
        context = self._context
        counts = context.database.pipeline("offer.count", [("ZCARD", shard.unoffered) for shard in context.shards])
        waiting = [shard for shard, count in zip(context.shards, counts, strict=True) if count]
        if not waiting:
            return 0
        now_ms = context.now_ms()
        return sum(self._offer(shard, now_ms, agent, queues[agent]) for shard in waiting for agent in queues)

    def _offer(self, shard: ShardKeys, now_ms: int, agent: str, queues: Sequence[str]) -> int:
        context = self._context
        wait_ms = context.due_ms if context.publisher.count_commands("") else 0  # 0: the queue is in another database
        args = (shard.prefix, now_ms, _BATCH, context.settings.events_kept, wait_ms, agent, len(queues), *queues)
        total = 0
        while True:  # in batches, so that no client waits for Redis for long; each takes out what it looks at
            looked_at, free = context.database.script("offer.pass", "offer", (shard.unoffered, shard.due), args)
            self.publish(list(_readable(free)), now_ms)
            total += looked_at
            if looked_at < _BATCH:
                return total

    def count_unoffered(self) -> dict[str, int]:
        """Count the sessions that wait for a worker that offers their agent, parked ones too, by agent.

        Of more than 100 agents the others are counted together, as `(other)`.
        """
        found: dict[str, int] = {}
        for shard in self._context.shards:
            lowest = b"-"
            while True:
                if len(found) >= MOST_UNOFFERED:
                    count_command = ("ZLEXCOUNT", shard.unoffered, lowest, "+")
                    (count,) = self._context.database.pipeline("unoffered.count", [count_command])
                    if count:
                        found[OTHER_AGENTS] = found.get(OTHER_AGENTS, 0) + count
                    break
                (members,) = self._context.database.pipeline(
                    "unoffered.next", [("ZRANGEBYLEX", shard.unoffered, lowest, "+", "LIMIT", 0, 1)]
                )
                if not members:
                    break
                # As bytes: an entry that is no text must not stand before the one that is read next.
                agent = members[0].partition(b" ")[0]
                name, after = fields.name(agent), agent + b"!"
                count_command = ("ZLEXCOUNT", shard.unoffered, b"[" + agent + b" ", b"(" + after)
                (count,) = self._context.database.pipeline("unoffered.count", [count_command])
                found[name] = found.get(name, 0) + count
                lowest = b"[" + after
        return found


def _park_unoffered(context: StoreContext, ref: StepRef, agent: str) -> None:
    """Park a session whose grace period is over, unless a worker has registered its agent meanwhile."""
    waited = timedelta(seconds=round(context.settings.agent_grace_seconds))
    reason = f"no worker has offered agent {agent!r} for {waited}"
    ParkVerbs(context).park(ref, reason, only_unoffered=True)


def _read_lost_step(
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
    is_id = ID_PATTERN.fullmatch(ref.execution_id) and fields.is_session_id(session_id)
    are_counts = 0 <= ref.retries < _MOST_RETRIES and 0 <= ref.legs < _MOST_LEGS
    if not is_id or not 1 <= ref.step < LAST_STEP or not are_counts:
        raise StateUnreadable("ctl", "its execution, step, number of retries or number of waits is none")
    return ref


def _park_broken(context: StoreContext, shard: ShardKeys, session_id: bytes) -> None:
    """Park a session whose control fields cannot be read."""
    reason = "its control fields cannot be read"
    name = fields.name(session_id)
    if name.encode() == session_id:
        ParkVerbs(context).park(StepRef(name, "", 0), reason, any_step=True)
        return
    entry = DeadEntry(kind="step", reason=f"{reason}, nor its id", session_id=name)
    context.database.pipeline("park.broken", [("ZREM", shard.due, session_id), entry.command(context, shard)])


def _end_parked(context: StoreContext, shard: ShardKeys, now_ms: int) -> None:
    """Delete the parked sessions whose retention is over, among those that the next pass looks at."""
    limit = context.settings.sweep_batch
    (due,) = context.database.pipeline(
        "prune.due", [("ZRANGEBYSCORE", shard.ending, "-inf", now_ms, "LIMIT", 0, limit)]
    )
    scopes = [context.session(member.decode("utf-8", "replace")) for member in due]
    reads: list[list[Command]] = [[("HGET", scope.keys.ctl, "phase")] for scope in scopes]
    for scope, phase in zip(scopes, context.read_apart("prune.phases", reads), strict=True):
        if phase == [b"parked"]:
            # After a conflict, a client has taken it up again.
            with contextlib.suppress(Changed, StateUnreadable):
                _delete_parked(scope)


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


def _readable(steps: Sequence[Sequence[bytes]]) -> Iterator[StepRef]:
    """The steps that a worker takes; the sweep parks the others."""
    for step in steps:
        with contextlib.suppress(StateUnreadable):
            yield _read_lost_step(*step)
