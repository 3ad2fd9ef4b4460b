"""The commit: the one transaction that makes a step real.

    WATCH session, ctl, inbox → check → MULTI … EXEC

Nothing that EXEC says is proof: its reply may be lost, and redis then answers as if a watched key had changed. So every
round begins by looking whether this claim has already committed: `last`, or the entry of the step in the steps' list.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from .. import crash_points
from ..errors import ClaimLost, StoreUnavailable, VersionConflict
from ..state import AgentState
from . import fields, journals, loading
from .cache import Held
from .claims import Ctl, ctl_read
from .ground import Ground
from .keys import SessionKeys
from .records import Claim, Claimed, Committed, Fresh, Journal, Loaded, Settle, Settled, StepRef
from .tables import Changed, Command, Watched
from .writes import STANDING, Standing, next_step, saving

_CONFLICTS: Final = 50
_LOST_REPLIES: Final = 5


def commit(
    ground: Ground,
    claim: Claim,
    base: Loaded,
    settle: Settle,
    *,
    results: Mapping[int, bytes],
    carry_on: bool,
) -> Committed:
    """Make a step real, once. See `StepStore.commit`."""
    keys = ground.keys(claim.ref.session_id)
    lost = 0
    for _ in range(_CONFLICTS):
        try:
            return _commit_once(ground, keys, claim, base, settle, results, carry_on)
        except Changed:
            continue
        except StoreUnavailable:
            lost += 1
            if lost > _LOST_REPLIES:
                raise
            ground.clock.pause(0.05 * lost)
    raise StoreUnavailable(f"session {claim.ref.session_id} is too busy to commit step {claim.ref.step}")


def _commit_once(
    ground: Ground,
    keys: SessionKeys,
    claim: Claim,
    base: Loaded,
    settle: Settle,
    results: Mapping[int, bytes],
    carry_on: bool,
) -> Committed:
    ref = claim.ref
    writes = journals.result_commands(ground, claim, results)
    reads: list[Command] = [
        *writes,
        ("HMGET", keys.session, "version", "last", *STANDING),
        ctl_read(keys),
        ("LRANGE", keys.inbox, 0, -1),
        ground.clock.now(),
    ]
    with ground.tables.watch("commit.read", (keys.session, keys.ctl, keys.inbox), reads) as watched:
        if writes:
            crash_points.at("c6")
        (version, last, *standing_reply), ctl_reply, entries, now_reply = watched.replies[len(writes) :]
        ctl = Ctl.read(ctl_reply)
        if writes and ((ctl.execution, ctl.step) != (ref.execution_id, ref.step) or ctl.phase == "end"):
            journals.bury_if_past(ground, claim)
        if fields.text(last) == commit_id(claim) or _stands_in_steps(keys, claim, ctl, watched):
            return _committed_before(ref, fields.number(version), ctl)
        if (ctl.execution, ctl.step, ctl.claim) != (ref.execution_id, ref.step, claim.id):
            raise ClaimLost(f"step {ref.step} of session {ref.session_id} has another claim by now")
        if fields.number(version) != base.version:
            raise VersionConflict(
                f"session {ref.session_id} is at version {fields.number(version)}, not {base.version}"
            )
        now_ms = ground.clock.milliseconds(now_reply)
        standing = Standing.read(*standing_reply)
        cancel = ctl.cancel if ctl.cancel == ref.execution_id else None
        settled = settle(Fresh(base.state, fields.inbox(entries, standing.operations), len(entries), now_ms, cancel))
        following = next_step(ref.session_id, settled.state)
        carried = carry_on and following is not None and following.execution_id == ref.execution_id
        save = saving(
            ground, keys, base.state, settled, standing,
            version=base.version + 1, now_ms=now_ms, extra=("last", commit_id(claim)), carried=carried,
        )  # fmt: skip
        before = ground.cache.get(ref.session_id)
        held = Held(base.version + 1, settled.state, (before.size if before else 0) + save.size)
        ground.cache.announce(ref.session_id, held, commit_id(claim))
        try:
            watched.commit(
                "commit.exec",
                [*_step_commands(ground, keys, claim, settled, len(entries), carried, now_ms), *save.commands],
            )
        except BaseException:
            ground.cache.withdraw(ref.session_id)
            raise
        crash_points.at("c7")
    ground.cache.put(ref.session_id, held)
    nxt = _carried(claim, base, settled.state, following, ctl, now_ms) if carried and following else None
    return Committed(base.version + 1, settled.state, save.next, save.handed_over or carried, carried=nxt)


def commit_id(claim: Claim) -> str:
    """What a commit leaves behind, so that its own worker recognizes it."""
    return f"{claim.ref.step}:{claim.id}"


def _stands_in_steps(keys: SessionKeys, claim: Claim, ctl: Ctl, watched: Watched) -> bool:
    """`last` tells of the newest commit only; a later step of the execution may have overwritten mine."""
    if ctl.execution == claim.ref.execution_id and ctl.step <= claim.ref.step and ctl.phase != "end":
        return False
    (entry,) = watched.ask("commit.entry", [("LINDEX", keys.steps(claim.ref.execution_id), claim.ref.step - 1)])
    return entry is not None and json.loads(entry).get("claim") == claim.id


def _committed_before(ref: StepRef, version: int, ctl: Ctl) -> Committed:
    """The reply was lost, or this is asked again: what follows is what the session waits for now."""
    following = None
    if ctl.phase == "run" and not ctl.claim:
        following = StepRef(ref.session_id, ctl.execution, ctl.step)
    return Committed(version, None, following, handed_over=False, again=True)


def _step_commands(
    ground: Ground,
    keys: SessionKeys,
    claim: Claim,
    settled: Settled,
    entries: int,
    carried: bool,
    now_ms: int,
) -> list[Command]:
    ref = claim.ref
    commands: list[Command] = []
    if entries:
        commands.append(("LTRIM", keys.inbox, entries, -1))
    if not settled.keep_journal or settled.ended is not None:  # only the last execution can be retried
        commands.append(("PEXPIRE", keys.journal(ref.execution_id, ref.step), ground.journal_ms))
    if carried:
        following = ref.step + 1
        commands.append(("HSET", keys.journal(ref.execution_id, following), f"try:{claim.id}", now_ms))
        commands.append(ground.clock.renew_lease(keys.shard.lease(claim.id), ground.lease_ms))
    else:
        commands.append(("DEL", keys.shard.lease(claim.id)))
    return commands


def _carried(claim: Claim, base: Loaded, state: AgentState, following: StepRef, ctl: Ctl, now_ms: int) -> Claimed:
    taken = Claim(claim.id, claim.worker, following, ctl.fence, 1, now_ms)
    loaded = Loaded(
        state, base.version + 1, base.agent, Journal(tries=1), None, 1, 0, 0, base.started_ms, now_ms
    )  # fmt: skip
    return Claimed(taken, loaded)


def reload(ground: Ground, claim: Claim) -> Loaded:
    """The session as stored now, for a step whose version moved. See `StepStore.reload`."""
    ref = claim.ref
    keys = ground.keys(ref.session_id)
    held = ground.cache.get(ref.session_id)
    reads = [
        ctl_read(keys),
        ground.clock.now(),
        ("HGETALL", keys.journal(ref.execution_id, ref.step)),
        *loading.reads(keys, ref.execution_id, held),
    ]
    for _ in range(_CONFLICTS):
        with ground.tables.watch("reload.read", (keys.session, keys.ctl), reads) as watched:
            ctl = Ctl.read(watched.replies[0])
            if (ctl.execution, ctl.step, ctl.claim) != (ref.execution_id, ref.step, claim.id):
                raise ClaimLost(f"step {ref.step} of session {ref.session_id} has another claim by now")
            try:
                stored = loading.finish(ground, keys, ref.execution_id, held, watched, watched.replies[3:])
            except Changed:
                continue
            (version,) = watched.ask("reload.check", [("HGET", keys.session, "version")])
            if fields.number(version) != stored.version:
                continue
            return Loaded(
                stored.state, stored.version, stored.agent, fields.journal(watched.replies[2]),
                ctl.cancel if ctl.cancel == ref.execution_id else None, claim.attempt, ctl.delays, ctl.delayed_ms,
                ctl.started_ms, ground.clock.milliseconds(watched.replies[1]),
            )  # fmt: skip
    raise StoreUnavailable(f"session {ref.session_id} changes too fast to be read")
