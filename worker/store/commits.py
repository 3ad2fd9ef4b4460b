"""The commit: the one transaction that makes a step real.

    WATCH session, ctl, inbox → check → MULTI … EXEC

In the ordinary case everything that is checked is known beforehand: then one script compares it and writes. Results of
tool calls need no record of their own there, because the step that holds them is written in the same moment.

Nothing that EXEC says is proof: its reply may be lost, and redis then answers as if a watched key had changed. So every
round begins by looking whether this claim has already committed: `last`, or the entry of the step in the steps' list.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Final, cast

from .. import crash_points
from ..errors import ClaimLost, StoreUnavailable, VersionConflict
from . import decoding, fields, journals, loading
from .cache import Held
from .claims import Ctl, ctl_read, release
from .ground import Ground
from .keys import SessionKeys
from .records import Claim, Claimed, Committed, Fresh, Journal, Loaded, Settle, Settled, StepRef
from .standing import STANDING, Standing
from .tables import Changed, Command, Guard, Watched
from .writes import next_step, saving

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
    lost, as_expected = 0, True
    for _ in range(_CONFLICTS):
        try:
            if as_expected:
                as_expected = False
                committed = _commit_as_expected(ground, keys, claim, base, settle, carry_on)
                if committed is not None:
                    return committed
            return _commit_once(ground, keys, claim, base, settle, results, carry_on)
        except Changed:
            continue
        except StoreUnavailable:
            lost += 1
            if lost > _LOST_REPLIES:
                raise
            ground.clock.pause(0.05 * lost)
    raise StoreUnavailable(f"session {claim.ref.session_id} is too busy to commit step {claim.ref.step}")


def _commit_as_expected(
    ground: Ground, keys: SessionKeys, claim: Claim, base: Loaded, settle: Settle, carry_on: bool
) -> Committed | None:
    """The commit of a claim that still stands on the version it began with, with an empty inbox and no stop asked for.

    None when any of that is not so, or nobody knows: nothing was written.
    """
    ref = claim.ref
    estimate_ms = ground.clock.estimate_ms()
    if estimate_ms is None:
        return None
    now_ms = max(estimate_ms, claim.now_ms)
    settled = settle(Fresh(base.state, (), 0, now_ms, None))
    if settled.keep_journal:  # it has to hold the results first
        return None
    ready = _ready(ground, keys, claim, base, settled, base.held.standing, 0, carry_on, now_ms)
    guards: list[Guard] = [
        (("HMGET", keys.session, "version"), (base.version,)),
        (("HMGET", keys.ctl, "execution", "step", "claim", "cancel"), (ref.execution_id, ref.step, claim.id, "")),
        (("EXISTS", keys.inbox), (0,)),
    ]
    try:
        with _announced(ground, ref.session_id, ready):
            if ground.tables.attempt("commit.attempt", guards, ready.commands) is None:
                raise Changed
            crash_points.at("c7")
    except Changed:
        return None
    return ready.committed


@dataclass(frozen=True, slots=True)
class _Ready:
    """A commit, ready to be written: what it makes of the session here, and what is answered when it has happened."""

    commands: list[Command]
    held: Held
    committed: Committed


def _ready(
    ground: Ground,
    keys: SessionKeys,
    claim: Claim,
    base: Loaded,
    settled: Settled,
    standing: Standing,
    entries: int,
    carry_on: bool,
    now_ms: int,
) -> _Ready:
    ref, version = claim.ref, base.version + 1
    following = next_step(ref.session_id, settled.state)
    carried = carry_on and following is not None and following.execution_id == ref.execution_id
    save = saving(
        ground, keys, base.state, settled, standing,
        version=version, now_ms=now_ms, extra=("last", commit_id(claim)), carried=carried,
    )  # fmt: skip
    held = Held(version, settled.state, base.held.size + save.size, base.agent, save.standing)
    nxt = _carried(claim, base, held, following, now_ms) if carried and following else None
    # What needs memory comes first: a script that has begun to write is not refused any more.
    commands = [*save.commands, *_step_commands(ground, keys, claim, settled, entries, carried, now_ms)]
    return _Ready(
        commands, held, Committed(version, settled.state, save.next, save.handed_over or carried, carried=nxt)
    )


@contextlib.contextmanager
def _announced(ground: Ground, session_id: str, ready: _Ready) -> Generator[None]:
    """Tell the cache what the session becomes, before it does: the next message leaves inside the commit."""
    ground.cache.announce(session_id, ready.held)
    try:
        yield
    except BaseException:
        ground.cache.withdraw(session_id)
        raise
    if ready.committed.next is None:
        ground.cache.drop(session_id)  # whoever comes back to it reads it once
    else:
        ground.cache.put(session_id, ready.held)


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
            return _committed_before(ground, claim, fields.number(version), ctl)
        if (ctl.execution, ctl.step, ctl.claim) != (ref.execution_id, ref.step, claim.id):
            raise ClaimLost(f"step {ref.step} of session {ref.session_id} has another claim by now")
        if fields.number(version) != base.version:
            raise VersionConflict(
                f"session {ref.session_id} is at version {fields.number(version)}, not {base.version}"
            )
        now_ms = ground.clock.milliseconds(now_reply)
        standing = Standing.read(*standing_reply)
        cancel = ctl.cancel if ctl.cancel == ref.execution_id else None
        settled = settle(Fresh(base.state, decoding.inbox(entries, standing.operations), len(entries), now_ms, cancel))
        ready = _ready(ground, keys, claim, base, settled, standing, len(entries), carry_on, now_ms)
        with _announced(ground, ref.session_id, ready):
            watched.commit("commit.exec", ready.commands)
            crash_points.at("c7")
    return ready.committed


def commit_id(claim: Claim) -> str:
    """What a commit leaves behind, so that its own worker recognizes it."""
    return f"{claim.ref.step}:{claim.id}"


def _stands_in_steps(keys: SessionKeys, claim: Claim, ctl: Ctl, watched: Watched) -> bool:
    """`last` tells of the newest commit only; a later step of the execution may have overwritten mine."""
    if ctl.execution == claim.ref.execution_id and ctl.step <= claim.ref.step and ctl.phase != "end":
        return False
    (entry,) = watched.ask("commit.entry", [("LINDEX", keys.steps(claim.ref.execution_id), claim.ref.step - 1)])
    if entry is None:
        return False
    step = fields.read_json(entry, "steps")
    return isinstance(step, dict) and cast("dict[str, object]", step).get("claim") == claim.id


def _committed_before(ground: Ground, claim: Claim, version: int, ctl: Ctl) -> Committed:
    """The reply was lost, or this is asked again: what follows is what the session waits for now."""
    if ctl.phase != "run" or ctl.claim not in ("", claim.id):
        return Committed(version, None, None, handed_over=False, again=True)
    following = StepRef(claim.ref.session_id, ctl.execution, ctl.step)
    handed_over = False
    if ctl.claim:  # carried on, as this claim had asked; what it was to go on with was known to the lost round only
        handed_over = release(ground, replace(claim, ref=following), delay_ms=None, give_back=True) is None
    return Committed(version, None, following, handed_over=handed_over, again=True)


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


def _carried(claim: Claim, base: Loaded, held: Held, following: StepRef, now_ms: int) -> Claimed:
    taken = Claim(claim.id, claim.worker, following, claim.fence, 1, now_ms)
    return Claimed(taken, Loaded(held, Journal(tries=1), None, 1, 0, 0, base.started_ms, now_ms))


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
                stored, decoding.journal(watched.replies[2]),
                ctl.cancel if ctl.cancel == ref.execution_id else None, claim.attempt, ctl.delays, ctl.delayed_ms,
                ctl.started_ms, ground.clock.milliseconds(watched.replies[1]),
            )  # fmt: skip
    raise StoreUnavailable(f"session {ref.session_id} changes too fast to be read")
