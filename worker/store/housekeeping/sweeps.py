"""The sweep: find steps whose message or worker was lost.

Sessions whose agent no live worker offers wait in an index until a worker registers the agent.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from ...errors import StateUnreadable
from ...state.values.ids import ID_PATTERN
from .. import fields, primaries
from ..context import StoreContext, StorePart
from ..database import Command, Reply, SlotAway, Word
from ..events import DeadEntry
from ..keys import ShardKeys
from ..lanes import oldest_waiting_ms
from ..records import LAST_STEP, StepRef
from ..sessions.parking import ParkVerbs

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

    def words(self, sessions: Sequence[Word], lanes: Mapping[str, int]) -> list[Word]:
        """The last words that the sweep's script takes.

        Args:
            sessions: The ids of due ones with their claims.
            lanes: `oldest_ms` of their lanes, by the name of the queue, a line feed and the lane.
        """
        oldest = {"": self.oldest_ms, **self.named, **lanes}
        words: list[Word] = [int(self.offers is not None), len(oldest), *sessions]
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
        has_schedules: A schedule is due.
    """

    lost: tuple[StepRef, ...] = ()
    live: int = 0
    queued: int = 0
    at_ms: int = 0
    left: frozenset[str] = frozenset()
    has_schedules: bool = False


class SweepVerbs(StorePart):
    """Finding steps whose message or worker was lost, and those that wait for a worker."""

    def sweep(self, queue: QueueSnapshot, shards: Sequence[ShardKeys] | None = None) -> SweepResult:
        """Look at what is due, postpone every entry that is looked at, and name the steps whose message is lost.

        The caller publishes them. Nothing is named that a live lease holds or whose message may still be queued.

        Args:
            shards: Of one server; one of them is looked at first in this pass, another one in the next. None: all.
        """
        if shards is None:
            return _join(self.sweep(queue, each) for each in self._context.servers())
        return _join(self._context.apart(lambda some: self._sweep(queue, some), shards))

    def _sweep(self, queue: QueueSnapshot, shards: Sequence[ShardKeys]) -> SweepResult:
        context = self._context
        now_ms, due, has_schedules = _find_due(context, shards)
        results = [SweepResult(at_ms=now_ms, has_schedules=has_schedules)]
        # The share of a shard where many have something due: all of them are looked at again in the next pass.
        members = _due_members(context, due, now_ms, -(-context.settings.sweep_batch // max(1, len(due))))
        claims, lanes = _read_controls(context, members, queue)
        for shard, ids in members:
            keys, pairs = _sweep_words(shard, ids, claims)
            words = _pass_words(context, now_ms, queue.capacity - sum(len(each.lost) for each in results))
            words = (len(ids), *words, *queue.words(pairs, lanes))
            reply = context.database.script("sweep.pass", "sweep", (shard.due, shard.unoffered, *keys), words)
            results.append(_read_pass(context, shard, reply, now_ms))
        return _join(results)

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

    def lock_sweep(self, shards: Sequence[ShardKeys], worker: str, hold_ms: int) -> bool:
        """Take the lock of the sweep of a server, or keep it, for `hold_ms`; False: another worker has it.

        Args:
            shards: Those of the server; the lock is a key of the first one whose slot does not move.
        """
        try:
            return self._lock(shards[0].sweeper, worker, hold_ms)
        except SlotAway:
            if len(shards) == 1:
                raise
            return self.lock_sweep(shards[1:], worker, hold_ms)

    def _lock(self, key: str, worker: str, hold_ms: int) -> bool:
        database = self._context.database
        taken, holder = database.pipeline("sweep.lock", [("SET", key, worker, "NX", "PX", hold_ms), ("GET", key)])
        if taken is None and fields.text(holder) == worker:
            database.pipeline("sweep.hold", [("PEXPIRE", key, hold_ms)])
            return True
        return taken is not None

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
        counts = context.read_shards("offer.count", lambda shard: [("ZCARD", shard.unoffered)])
        waiting = [shard for shard, (count,) in counts.items() if count]
        if not waiting:
            return 0
        now_ms = context.now_ms()
        return sum(self._offer(shard, now_ms, agent, queues[agent]) for shard in waiting for agent in queues)

    def _offer(self, shard: ShardKeys, now_ms: int, agent: str, queues: Sequence[str]) -> int:
        context, prefix = self._context, f"{agent} ".encode()
        wait_ms = context.due_ms if context.publisher.count_commands("") else 0  # 0: the queue is in another database
        # All scores are 0, so the members stand in the order of their bytes; "!" follows the blank.
        read: Command = ("ZRANGEBYLEX", shard.unoffered, f"[{agent} ", f"({agent}!", "LIMIT", 0, _BATCH)
        args = (now_ms, context.settings.events_kept, wait_ms, agent, len(queues), *queues)
        total = 0
        while True:  # in batches, so that no client waits for Redis for long; each takes out what it looks at
            (members,) = context.database.pipeline("offer.read", [read])
            if members:
                ids = [member[len(prefix) :] for member in members]
                all_keys = map(shard.session, map(fields.name, ids))
                keys = [key for each in all_keys for key in (each.session, each.ctl, each.events)]
                free = context.database.script(
                    "offer.pass", "offer", (shard.unoffered, shard.due, *keys), (*args, *ids)
                )
                self.publish(list(_readable(free)), now_ms)
                total += len(members)
            if len(members) < _BATCH:
                return total

    def count_unoffered(self) -> dict[str, int]:
        """Count the sessions that wait for a worker that offers their agent, parked ones too, by agent.

        Of more than 100 agents the others are counted together, as `(other)`.
        """
        context, found = self._context, dict[str, int]()
        lowest: dict[ShardKeys, bytes] = dict.fromkeys(context.shards, b"-")
        while lowest:
            if len(found) >= MOST_UNOFFERED:
                counted = [("ZLEXCOUNT", shard.unoffered, low, "+") for shard, low in lowest.items()]
                others = sum(context.database.pipeline("unoffered.count", counted))
                return {**found, OTHER_AGENTS: found.get(OTHER_AGENTS, 0) + others} if others else found
            reads = [("ZRANGEBYLEX", shard.unoffered, low, "+", "LIMIT", 0, 1) for shard, low in lowest.items()]
            firsts = zip(list(lowest), context.database.pipeline("unoffered.next", reads), strict=True)
            # As bytes: an entry that is no text must not stand before the one that is read next.
            agents = {shard: members[0].partition(b" ")[0] for shard, members in firsts if members}
            counts: list[Command] = [
                ("ZLEXCOUNT", shard.unoffered, b"[" + agent + b" ", b"(" + agent + b"!")
                for shard, agent in agents.items()
            ]
            replies = context.database.pipeline("unoffered.count", counts) if counts else []
            for agent, count in zip(agents.values(), replies, strict=True):
                name = fields.name(agent)
                name = name if name in found or len(found) < MOST_UNOFFERED else OTHER_AGENTS
                found[name] = found.get(name, 0) + count
            lowest = {shard: b"[" + agent + b"!" for shard, agent in agents.items()}
        return found


def _find_due(context: StoreContext, shards: Sequence[ShardKeys]) -> tuple[int, list[ShardKeys], bool]:
    """Ask a server for its time, which shards have something due, and whether a schedule is.

    No shard has while holders of leases may come back.
    """
    clock = context.clock
    first = random.randrange(len(shards))
    ordered = [*shards[first:], *shards[:first]]
    asked = [clock.now(), clock.uptime(), primaries.REPLICATION]
    for shard in ordered:
        asked += [("GET", shard.primary), ("ZRANGE", shard.due, 0, 0, "WITHSCORES")]
    if context.shards[0] in shards:  # schedules are there
        asked.append(("ZRANGE", context.shards[0].scheduled, 0, 0, "WITHSCORES"))
    now_reply, uptime, info, *replies = context.database.pipeline("sweep.now", asked)
    now_ms, due, notes = clock.milliseconds(now_reply), list[ShardKeys](), list[Command]()
    of_shards, scheduled = replies[: 2 * len(ordered)], replies[2 * len(ordered) :]
    for shard, stored, found in zip(ordered, of_shards[::2], of_shards[1::2], strict=True):
        primary = primaries.read_primary(shard, now_ms, info, stored)
        notes += primary.notes
        if fields.is_due(found, now_ms) and primary.has_settled(now_ms, context.lease_ms):
            due.append(shard)
    if notes:
        context.database.pipeline("sweep.primary", notes)
    # The holders of leases that ended while Redis was down, or moved, need time to come back.
    has_schedules = any(fields.is_due(first, now_ms) for first in scheduled)
    is_early = clock.uptime_seconds(uptime) < context.settings.lease_seconds
    return now_ms, [] if is_early else due, has_schedules


_Members = list[tuple[ShardKeys, list[bytes]]]


def _due_members(context: StoreContext, due: Sequence[ShardKeys], now_ms: int, limit: int) -> _Members:
    """Read at most `limit` due entries of each shard; those that are no text are put into the dead list."""
    reads: list[Command] = [("ZRANGEBYSCORE", shard.due, "-inf", now_ms, "LIMIT", 0, limit) for shard in due]
    replies = context.database.pipeline("sweep.due", reads) if reads else []
    for shard, found in zip(due, replies, strict=True):
        for session_id in [each for each in found if fields.name(each).encode() != each]:
            found.remove(session_id)
            _park_broken(context, shard, session_id)
    return list(zip(due, replies, strict=True))


def _read_controls(
    context: StoreContext, members: _Members, queue: QueueSnapshot
) -> tuple[dict[bytes, bytes], dict[str, int]]:
    """Read the claims of due sessions, and of their lanes the oldest entries: the script may look at no others."""
    ids = [(shard, name) for shard, names in members for name in names]
    wanted = ("claim", "queue", "lane")
    reads: list[list[Command]] = [[("HMGET", shard.session(fields.name(name)).ctl, *wanted)] for shard, name in ids]
    claims, lanes = dict[bytes, bytes](), dict[str, StepRef]()
    for (_, name), reply in zip(ids, context.read_apart("sweep.claims", reads), strict=True):
        claim, named, lane = (None,) * 3 if isinstance(reply, StateUnreadable) else reply[0]
        claims[name] = claim or b""
        if lane:
            ref = StepRef("", "", 0, queue=fields.any_text(named or b""), lane=fields.any_text(lane))
            lanes[f"{ref.queue}\n{ref.lane}"] = ref
    return claims, _read_lanes(context, lanes, queue) if lanes else {}


def _read_lanes(context: StoreContext, lanes: Mapping[str, StepRef], queue: QueueSnapshot) -> dict[str, int]:
    """Read when the oldest entries of lanes were published; -1 of all lanes of a queue in which no turn is left."""
    reads = {name: command for name, ref in lanes.items() for command in context.publisher.lane_commands(ref)}
    replies = context.ask_queues("sweep.lanes", list(reads.values())) if reads else []
    found = dict.fromkeys(lanes, -1)
    for name, entry in zip(reads, replies, strict=True):
        turns = queue.named.get(lanes[name].queue, -1) if lanes[name].queue else queue.oldest_ms
        found[name] = -1 if turns < 0 else oldest_waiting_ms(entry)
    return found


def _sweep_words(
    shard: ShardKeys, ids: Sequence[bytes], claims: Mapping[bytes, bytes]
) -> tuple[list[str], list[bytes]]:
    """The keys of due sessions, and their ids with their claims."""
    keys: list[str] = []
    for name in ids:
        session = shard.session(fields.name(name))
        keys += [session.session, session.ctl, session.events, shard.lease(fields.name(claims[name]))]
    return keys, [word for name in ids for word in (name, claims[name])]


def _pass_words(context: StoreContext, now_ms: int, capacity: int) -> tuple[Word, ...]:
    """The words that the script takes in each shard."""
    settings = context.settings
    longest_ms = round(settings.due_max_seconds * 1000)
    return (
        now_ms, context.lease_ms, context.grace_ms, context.due_ms, longest_ms, capacity,
        context.agent_grace_ms, settings.events_kept,
    )  # fmt: skip


def _read_pass(context: StoreContext, shard: ShardKeys, reply: Reply, now_ms: int) -> SweepResult:
    """Read what the script has found in a shard, and park what cannot run."""
    steps, live, queued, broken, expired = reply
    lost, left = list[StepRef](), set[str]()
    for session_id, *step, left_queue in steps:
        try:
            lost.append(_read_lost_step(session_id, *step))
            left.add(fields.text(left_queue))
        except StateUnreadable:
            broken.append(session_id)
    for session_id, execution_id, step, agent in expired:
        try:
            _park_unoffered(context, _read_lost_step(session_id, execution_id, step), fields.text(agent))
        except StateUnreadable:
            broken.append(session_id)
    for session_id in broken:
        _park_broken(context, shard, session_id)
    return SweepResult(tuple(lost), live=live, queued=queued, at_ms=now_ms, left=frozenset(left - {""}))


def _join(results: Iterable[SweepResult]) -> SweepResult:
    """Join the results of shards, or of servers; the time is that of the last one."""
    found = list(results)
    return SweepResult(
        lost=tuple(ref for each in found for ref in each.lost),
        live=sum(each.live for each in found),
        queued=sum(each.queued for each in found),
        at_ms=found[-1].at_ms,
        left=frozenset[str]().union(*(each.left for each in found)),
        has_schedules=any(each.has_schedules for each in found),
    )


def _park_unoffered(context: StoreContext, ref: StepRef, agent: str) -> None:
    """Park a session whose grace period is over, unless a worker has registered its agent meanwhile."""
    waited = timedelta(seconds=round(context.settings.agent_grace_seconds))
    reason = f"no worker has offered agent {agent!r} for {waited}"
    ParkVerbs(context).park(ref, reason, only_unoffered=True)


def _read_lost_step(
    session_id: bytes,
    execution_id: bytes,
    step: bytes,
    *more: bytes,
) -> StepRef:
    """Parse a lost step; behind its number are its retries, legs, queue and lane, where the caller needs them.

    Raises:
        StateUnreadable: No worker takes a message of this step, so publishing it would never end.
    """
    retries, legs, queue, lane = more or (b"", b"", b"", b"")
    ref = StepRef(
        session_id=fields.text(session_id),
        execution_id=fields.text(execution_id),
        step=fields.number(step),
        retries=fields.number(retries),
        queue=fields.text(queue),
        lane=fields.text(lane),
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


def _readable(steps: Sequence[Sequence[bytes]]) -> Iterator[StepRef]:
    """The steps that a worker takes; the sweep parks the others."""
    for step in steps:
        with contextlib.suppress(StateUnreadable):
            yield _read_lost_step(*step)
