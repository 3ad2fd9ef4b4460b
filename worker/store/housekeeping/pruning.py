"""Pruning: take out of the indexes what has expired, and out of the registry who was not heard from."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from ...errors import StateUnreadable
from .. import fields
from ..context import SessionScope, StoreContext, StorePart
from ..database import Changed, Command
from ..flow.verbs import forget_past_flow
from ..keys import ShardKeys
from ..sessions.parking import key_names, key_reads
from .histories import forget_old_losses
from .registry import forget_silent_workers


class PruneVerbs(StorePart):
    """Forgetting what is past."""

    def prune(self, shards: Sequence[ShardKeys] | None = None) -> int:
        """Take expired sessions out of the indexes, and workers that were not heard from out of the registry.

        Args:
            shards: Of one server. None: all.
        Returns:
            How many sessions were gone.
        """
        context = self._context
        if shards is None:
            return sum(self.prune(each) for each in context.servers())
        if context.shards[0] in shards:
            forget_silent_workers(context)
            forget_past_flow(context)
        return sum(context.apart(lambda some: _prune_shards(context, some), shards))


def _prune_shards(context: StoreContext, shards: Sequence[ShardKeys]) -> int:
    """Prune the shards of one server; returns how many sessions were gone."""
    firsts: list[Command] = [
        ("ZRANGE", key, 0, 0, "WITHSCORES") for shard in shards for key in (shard.delayed, shard.ending)
    ]
    now_reply, *found = context.database.pipeline("prune.now", [context.clock.now(), *firsts])
    now_ms, total = context.clock.milliseconds(now_reply), 0
    forget_old_losses(context, shards, now_ms)
    for shard, delayed, ending in zip(shards, found[::2], found[1::2], strict=True):
        if fields.is_due(delayed, now_ms):
            _forget_past_delays(context, shard, now_ms)
        if fields.is_due(ending, now_ms):
            total += _forget_ended(context, shard, now_ms)
    return total


def _forget_ended(context: StoreContext, shard: ShardKeys, now_ms: int) -> int:
    """Take sessions whose keys have expired out of the indexes of a shard; returns how many."""
    indexes = (shard.ending, shard.sessions, shard.failed, shard.due, shard.children, shard.labels)
    limit, total = context.settings.sweep_batch, 0
    read: Command = ("ZRANGEBYSCORE", shard.ending, "-inf", now_ms, "LIMIT", 0, limit)
    while True:  # in passes, so that no client waits for Redis for long; each takes out what it looks at
        (due,) = context.database.pipeline("prune.due", [read])
        if due:
            names = [fields.name(member) for member in due]
            _end_parked(context, names)
            sessions = [shard.session(name) for name in names]
            keys = [key for each in sessions for key in (each.session, each.old_values, each.next)]
            total += context.database.script("prune.pass", "prune", (*indexes, *keys), (now_ms, *due))
        if len(due) < limit:
            return total


def _end_parked(context: StoreContext, session_ids: Sequence[str]) -> None:
    """Delete the parked ones among sessions whose retention is over."""
    scopes = [context.session(each) for each in session_ids]
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
