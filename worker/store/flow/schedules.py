"""Schedules in the store: a hash of them by name, and a sorted set by the time at which to look at each.

Both are keys of the first shard, whose sweep reads the earliest time with what it reads anyway. A worker changes a
schedule only where it is as the worker has read it: a worker that was paused can neither undo an edit nor take a slot
twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ...flow.schedules import Schedule, ScheduleStatus
from ...flow.slots import look_at_ms
from .. import fields
from ..context import StorePart, TooManyConflicts
from ..database import Changed, Command
from ..keys import ShardKeys
from .stored_values import read_stored

_CONFLICTS: Final = 100
_BATCH: Final = 100
_UNREADABLE_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class DueSchedule:
    """A schedule that a worker has to look at, exactly as it is stored.

    Attributes:
        raw: What it is stored as; a change names it.
        now_ms: Redis time of the read.
    """

    raw: bytes
    status: ScheduleStatus
    now_ms: int


class ScheduleVerbs(StorePart):
    """Setting, reading and removing schedules, and changing those that are due."""

    def set_schedule(self, schedule: Schedule, *, by: str = "", deployed: str | None = None) -> ScheduleStatus:
        """Set a schedule, in place of the one with its name; what became of the slots before is kept.

        The next slot stays where cron and zone do; else it is the first one behind Redis's time. A slot whose message
        is being submitted is submitted as it was.

        Args:
            deployed: Digest of the schedule, where it is an agent's. None: what was deployed last stays known.
        """

        def change(old: ScheduleStatus | None, now_ms: int) -> ScheduleStatus:
            made = _next_revision(old, schedule, now_ms).changed(by=by, since_ms=now_ms)
            return made if deployed is None else made.changed(deployed=deployed)

        with self._context.acknowledging(self._shard):
            return self._set(schedule.name, change)

    def remove_schedule(self, name: str) -> bool:
        """Remove a schedule; False: there is none. A message that is being submitted may still be."""
        with self._context.acknowledging(self._shard):
            commands: list[Command] = [("HDEL", self._shard.schedules, name), ("ZREM", self._shard.scheduled, name)]
            return bool(self._context.database.transaction("schedules.remove", commands)[0])

    def schedule(self, name: str) -> ScheduleStatus | None:
        """Read a schedule; None: there is none, or it cannot be read."""
        (raw,) = self._context.database.pipeline("schedules.get", [("HGET", self._shard.schedules, name)])
        return read_stored(ScheduleStatus, raw)

    def schedules(self) -> list[ScheduleStatus]:
        """Read all schedules that can be read, by name."""
        (flat,) = self._context.database.pipeline("schedules.list", [("HGETALL", self._shard.schedules)])
        found = (read_stored(ScheduleStatus, raw) for raw in fields.named_pairs(flat).values())
        return sorted((each for each in found if each is not None), key=lambda each: each.schedule.name)

    def deploy_schedules(self, schedules: Sequence[Schedule], by: str) -> list[str]:
        """Set the schedules of agents that are not as these were last deployed; an edit by a client stays until then.

        Returns:
            The names of those that were set.
        """
        names = [each.name for each in schedules]
        (raws,) = self._context.database.pipeline("schedules.deployed", [("HMGET", self._shard.schedules, *names)])
        known = ("" if (found := read_stored(ScheduleStatus, raw)) is None else found.deployed for raw in raws)
        changed = [each for each, digest in zip(schedules, known, strict=True) if each.digest != digest]
        for each in changed:
            self.set_schedule(each, by=by, deployed=each.digest)
        return [each.name for each in changed]

    def due_schedules(self) -> list[DueSchedule]:
        """Read at most a hundred schedules that are due, those that have been for longest first; two round trips."""
        context, shard = self._context, self._shard
        first: Command = ("ZRANGE", shard.scheduled, 0, _BATCH - 1, "WITHSCORES")
        now_reply, flat = context.database.pipeline("schedules.due", [context.clock.now(), first])
        now_ms = context.clock.milliseconds(now_reply)
        names = [name for name, at in zip(flat[::2], flat[1::2], strict=True) if float(at) <= now_ms]
        if not names:
            return []
        (raws,) = context.database.pipeline("schedules.read", [("HMGET", shard.schedules, *names)])
        found: list[DueSchedule] = []
        for name, raw in zip(names, raws, strict=True):
            status = read_stored(ScheduleStatus, raw)
            if status is not None:
                found.append(DueSchedule(raw, status, now_ms))
            else:
                self._set_aside(name, raw, now_ms)
        return found

    def change_schedule(self, due: DueSchedule, status: ScheduleStatus, look_ms: int | None) -> DueSchedule | None:
        """Store a schedule anew, where it is as it was read; one round trip.

        Args:
            look_ms: When to look at it again (Redis ms). None: never.
        Returns:
            The schedule as it is stored now. None: somebody else has changed it, and nothing was written.
        Raises:
            StoreUnavailable: No answer in time. It may have been stored; read it again.
        """
        shard, name, raw = self._shard, status.schedule.name, status.to_json()
        look: Command = ("ZREM", shard.scheduled, name)
        if look_ms is not None:
            look = ("ZADD", shard.scheduled, look_ms, name)
        guard = (("HGET", shard.schedules, name), (due.raw,))
        writes: list[Command] = [("HSET", shard.schedules, name, raw), look]
        done = self._context.database.compare_and_apply("schedules.change", [guard], writes)
        return None if done is None else replace(due, raw=raw, status=status)

    def put_off_schedule(self, due: DueSchedule, wait_ms: int) -> None:
        """Look at a schedule again after a while, as it is: its message cannot be submitted now."""
        again: Command = ("ZADD", self._shard.scheduled, "XX", due.now_ms + wait_ms, due.status.schedule.name)
        self._context.database.pipeline("schedules.later", [again])

    @property
    def _shard(self) -> ShardKeys:
        return self._context.shards[0]

    def _set_aside(self, name: bytes, raw: bytes | None, now_ms: int) -> None:
        """Look no more at a name without a schedule, and seldom at a schedule that cannot be read."""
        shard = self._shard
        command: Command = ("ZREM", shard.scheduled, name)
        if raw is not None:
            command = ("ZADD", shard.scheduled, "XX", now_ms + _UNREADABLE_MS, name)
        guard = (("HGET", shard.schedules, name), (raw or b"",))
        self._context.database.compare_and_apply("schedules.aside", [guard], [command])

    def _set(self, name: str, change: Callable[[ScheduleStatus | None, int], ScheduleStatus]) -> ScheduleStatus:
        """Change a schedule by WATCH, as clients do, who run no scripts."""
        context, shard = self._context, self._shard
        reads: list[Command] = [("HGET", shard.schedules, name), context.clock.now()]
        for _ in range(_CONFLICTS):
            with (
                contextlib.suppress(Changed),
                context.database.watch("schedules.watch", (shard.schedules,), reads) as watched,
            ):
                raw, now_reply = watched.replies
                now_ms = context.clock.milliseconds(now_reply)
                status = change(read_stored(ScheduleStatus, raw), now_ms)
                watched.commit("schedules.set", list(self._writes(status, now_ms)))
                return status
        raise TooManyConflicts("the schedules change too fast to set one; try again")

    def _writes(self, status: ScheduleStatus, now_ms: int) -> Iterable[Command]:
        name, look_ms = status.schedule.name, look_at_ms(status, now_ms)
        yield ("HSET", self._shard.schedules, name, status.to_json())
        assert look_ms is not None, "a schedule without any slot is refused"
        yield ("ZADD", self._shard.scheduled, look_ms, name)


def _next_revision(old: ScheduleStatus | None, schedule: Schedule, now_ms: int) -> ScheduleStatus:
    slot_ms = next(schedule.slots_after(now_ms), None)
    if old is None:
        return ScheduleStatus(schedule=schedule, slot_ms=slot_ms)
    if (old.schedule.cron, old.schedule.zone) == (schedule.cron, schedule.zone) and old.slot_ms is not None:
        slot_ms = old.slot_ms
    return old.changed(schedule=schedule, revision=old.revision + 1, slot_ms=slot_ms)
