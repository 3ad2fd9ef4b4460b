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

from ... import crash_points
from ...errors import ClaimLost, StoreUnavailable, VersionConflict
from .. import decoding, fields
from ..bookkeeping import BOOKKEEPING, Bookkeeping
from ..cache import CachedSession
from ..context import StoreContext
from ..database import Changed, Command, Guard, WatchedTransaction
from ..keys import SessionKeys
from ..records import Claim, Claimed, Committed, Journal, LoadedSession, NextState, Snapshot, StepRef, Transition
from ..sessions import loading
from ..sessions.saving import next_step, saving
from . import journals
from .claims import ControlFields, control_command, release

_CONFLICTS: Final = 50
_LOST_REPLIES: Final = 5


def commit(
    context: StoreContext,
    claim: Claim,
    base: LoadedSession,
    transition: Transition,
    *,
    results: Mapping[int, bytes],
    keep_claim: bool,
) -> Committed:
    """Make a step real, once. See `StepStore.commit`."""
    keys = context.keys(claim.ref.session_id)
    lost, as_expected = 0, True
    for _ in range(_CONFLICTS):
        try:
            if as_expected:
                as_expected = False
                committed = _commit_as_expected(context, keys, claim, base, transition, keep_claim)
                if committed is not None:
                    return committed
            return _commit_once(context, keys, claim, base, transition, results, keep_claim)
        except Changed:
            continue
        except StoreUnavailable:
            lost += 1
            if lost > _LOST_REPLIES:
                raise
            context.clock.pause(0.05 * lost)
    raise StoreUnavailable(f"session {claim.ref.session_id} is too busy to commit step {claim.ref.step}")


def _commit_as_expected(
    context: StoreContext,
    keys: SessionKeys,
    claim: Claim,
    base: LoadedSession,
    transition: Transition,
    keep_claim: bool,
) -> Committed | None:
    """The commit of a claim that still stands on the version it began with, with an empty inbox and no stop asked for.

    None when any of that is not so, or nobody knows: nothing was written.
    """
    ref = claim.ref
    estimate_ms = context.clock.estimate_ms()
    if estimate_ms is None:
        return None
    now_ms = max(estimate_ms, claim.now_ms)
    next_state = transition(Snapshot(base.state, (), 0, now_ms, None))
    if next_state.keep_journal:  # it has to hold the results first
        return None
    ready = _ready(context, keys, claim, base, next_state, base.held.bookkeeping, 0, keep_claim, now_ms)
    guards: list[Guard] = [
        (("HMGET", keys.session, "version"), (base.version,)),
        (("HMGET", keys.ctl, "execution", "step", "claim", "cancel"), (ref.execution_id, ref.step, claim.id, "")),
        (("EXISTS", keys.inbox), (0,)),
    ]
    try:
        with _announced(context, ref.session_id, ready):
            if context.database.compare_and_apply("commit.attempt", guards, ready.commands) is None:
                raise Changed
            crash_points.at("c7")
    except Changed:
        return None
    return ready.committed


@dataclass(frozen=True, slots=True)
class _Ready:
    """A commit, ready to be written: what it makes of the session here, and what is answered when it has happened."""

    commands: list[Command]
    held: CachedSession
    committed: Committed


def _ready(
    context: StoreContext,
    keys: SessionKeys,
    claim: Claim,
    base: LoadedSession,
    next_state: NextState,
    bookkeeping: Bookkeeping,
    entries: int,
    keep_claim: bool,
    now_ms: int,
) -> _Ready:
    ref, version = claim.ref, base.version + 1
    following = next_step(ref.session_id, next_state.state)
    carried = keep_claim and following is not None and following.execution_id == ref.execution_id
    save = saving(
        context, keys, base.state, next_state, bookkeeping,
        version=version, now_ms=now_ms, extra=("last", commit_id(claim)), carried=carried,
    )  # fmt: skip
    held = CachedSession(version, next_state.state, base.held.size + save.size, base.agent, save.bookkeeping)
    nxt = _carried(claim, base, held, following, now_ms) if carried and following else None
    # What needs memory comes first: a script that has begun to write is not refused any more.
    commands = [*save.commands, *_step_commands(context, keys, claim, next_state, entries, carried, now_ms)]
    return _Ready(
        commands, held, Committed(version, next_state.state, save.next, save.is_published or carried, carried=nxt)
    )


@contextlib.contextmanager
def _announced(context: StoreContext, session_id: str, ready: _Ready) -> Generator[None]:
    """Tell the cache what the session becomes, before it does: the next message leaves inside the commit."""
    context.cache.stage(session_id, ready.held)
    try:
        yield
    except BaseException:
        context.cache.unstage(session_id)
        raise
    if ready.committed.next is None:
        context.cache.drop(session_id)  # whoever comes back to it reads it once
    else:
        context.cache.put(session_id, ready.held)


def _commit_once(
    context: StoreContext,
    keys: SessionKeys,
    claim: Claim,
    base: LoadedSession,
    transition: Transition,
    results: Mapping[int, bytes],
    keep_claim: bool,
) -> Committed:
    ref = claim.ref
    writes = journals.result_commands(context, claim, results)
    reads: list[Command] = [
        *writes,
        ("HMGET", keys.session, "version", "last", *BOOKKEEPING),
        control_command(keys),
        ("LRANGE", keys.inbox, 0, -1),
        context.clock.now(),
    ]
    with context.database.watch("commit.read", (keys.session, keys.ctl, keys.inbox), reads) as watched:
        if writes:
            crash_points.at("c6")
        (version, last, *standing_reply), ctl_reply, entries, now_reply = watched.replies[len(writes) :]
        ctl = ControlFields.read(ctl_reply)
        if writes and ((ctl.execution, ctl.step) != (ref.execution_id, ref.step) or ctl.phase == "end"):
            journals.bury_if_past(context, claim)
        if fields.text(last) == commit_id(claim) or _stands_in_steps(keys, claim, ctl, watched):
            return _committed_before(context, claim, fields.number(version), ctl)
        if (ctl.execution, ctl.step, ctl.claim) != (ref.execution_id, ref.step, claim.id):
            raise ClaimLost(f"step {ref.step} of session {ref.session_id} has another claim by now")
        if fields.number(version) != base.version:
            raise VersionConflict(
                f"session {ref.session_id} is at version {fields.number(version)}, not {base.version}"
            )
        now_ms = context.clock.milliseconds(now_reply)
        bookkeeping = Bookkeeping.read(*standing_reply)
        cancel = ctl.cancel if ctl.cancel == ref.execution_id else None
        next_state = transition(
            Snapshot(base.state, decoding.inbox(entries, bookkeeping.operations), len(entries), now_ms, cancel)
        )
        ready = _ready(context, keys, claim, base, next_state, bookkeeping, len(entries), keep_claim, now_ms)
        with _announced(context, ref.session_id, ready):
            watched.commit("commit.exec", ready.commands)
            crash_points.at("c7")
    return ready.committed


def commit_id(claim: Claim) -> str:
    """What a commit leaves behind, so that its own worker recognizes it."""
    return f"{claim.ref.step}:{claim.id}"


def _stands_in_steps(keys: SessionKeys, claim: Claim, ctl: ControlFields, watched: WatchedTransaction) -> bool:
    """`last` tells of the newest commit only; a later step of the execution may have overwritten mine."""
    if ctl.execution == claim.ref.execution_id and ctl.step <= claim.ref.step and ctl.phase != "end":
        return False
    (entry,) = watched.pipeline("commit.entry", [("LINDEX", keys.steps(claim.ref.execution_id), claim.ref.step - 1)])
    if entry is None:
        return False
    step = fields.read_json(entry, "steps")
    return isinstance(step, dict) and cast("dict[str, object]", step).get("claim") == claim.id


def _committed_before(context: StoreContext, claim: Claim, version: int, ctl: ControlFields) -> Committed:
    """The reply was lost, or this is asked again: what follows is what the session waits for now."""
    if ctl.phase != "run" or ctl.claim not in ("", claim.id):
        return Committed(version, None, None, is_published=False, again=True)
    following = StepRef(claim.ref.session_id, ctl.execution, ctl.step)
    is_published = False
    if ctl.claim:  # carried on, as this claim had asked; what it was to go on with was known to the lost round only
        is_published = release(context, replace(claim, ref=following), delay_ms=None, give_back=True) is None
    return Committed(version, None, following, is_published=is_published, again=True)


def _step_commands(
    context: StoreContext,
    keys: SessionKeys,
    claim: Claim,
    next_state: NextState,
    entries: int,
    carried: bool,
    now_ms: int,
) -> list[Command]:
    ref = claim.ref
    commands: list[Command] = []
    if entries:
        commands.append(("LTRIM", keys.inbox, entries, -1))
    if not next_state.keep_journal or next_state.ended is not None:  # only the last execution can be retried
        commands.append(("PEXPIRE", keys.journal(ref.execution_id, ref.step), context.journal_ms))
    if carried:
        following = ref.step + 1
        commands.append(("HSET", keys.journal(ref.execution_id, following), f"try:{claim.id}", now_ms))
        commands.append(context.clock.renew_lease(keys.shard.lease(claim.id), context.lease_ms))
    else:
        commands.append(("DEL", keys.shard.lease(claim.id)))
    return commands


def _carried(claim: Claim, base: LoadedSession, held: CachedSession, following: StepRef, now_ms: int) -> Claimed:
    taken = Claim(claim.id, claim.worker, following, claim.fence, 1, now_ms)
    return Claimed(taken, LoadedSession(held, Journal(tries=1), None, 1, 0, 0, base.started_ms, now_ms))


def reload(context: StoreContext, claim: Claim) -> LoadedSession:
    """The session as stored now, for a step whose version moved. See `StepStore.reload`."""
    ref = claim.ref
    keys = context.keys(ref.session_id)
    held = context.cache.get(ref.session_id)
    reads = [
        control_command(keys),
        context.clock.now(),
        ("HGETALL", keys.journal(ref.execution_id, ref.step)),
        *loading.reads(keys, ref.execution_id, held),
    ]
    for _ in range(_CONFLICTS):
        with context.database.watch("reload.read", (keys.session, keys.ctl), reads) as watched:
            ctl = ControlFields.read(watched.replies[0])
            if (ctl.execution, ctl.step, ctl.claim) != (ref.execution_id, ref.step, claim.id):
                raise ClaimLost(f"step {ref.step} of session {ref.session_id} has another claim by now")
            try:
                stored = loading.finish(context, keys, ref.execution_id, held, watched, watched.replies[3:])
            except Changed:
                continue
            (version,) = watched.pipeline("reload.check", [("HGET", keys.session, "version")])
            if fields.number(version) != stored.version:
                continue
            return LoadedSession(
                stored, decoding.journal(watched.replies[2]),
                ctl.cancel if ctl.cancel == ref.execution_id else None, claim.attempt, ctl.delays, ctl.delayed_ms,
                ctl.started_ms, context.clock.milliseconds(watched.replies[1]),
            )  # fmt: skip
    raise StoreUnavailable(f"session {ref.session_id} changes too fast to be read")
