"""Claiming a step, keeping the claim alive, giving it back.

WATCH session, ctl → read everything → decide → MULTI claim, fence, attempts+1, lease, due → EXEC

Where this process holds the session, as it is or as it was, and where the session is new, one script compares all
that is expected, writes, and reads what is not held; anything unexpected is left to the long way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ... import crash_points
from ...errors import StateTooNew, StateUnreadable, StoreUnavailable
from ...state import DEFAULT, AgentState, ExecutionStatus
from .. import decoding, fields
from ..bookkeeping import remembers
from ..cache import CachedSession
from ..context import StoreContext
from ..database import Changed, Command, Guard, Reply, WatchedTransaction
from ..events import event_commands
from ..keys import SessionKeys
from ..records import (
    Claim,
    Claimed,
    ClaimResult,
    Journal,
    LoadedSession,
    NewEvent,
    NotClaimed,
    NotClaimedReason,
    Renewal,
    StepRef,
    Suspect,
)
from ..sessions import loading
from ..sessions.saving import milliseconds

# A claim competes with actions and the sweep; each attempt takes about a millisecond.
_CONFLICTS: Final = 50
# What a script reads takes Redis three times as long: of steps that others made, so many are read with a claim.
_FEW: Final = 4
_CTL: Final = (
    "execution",
    "step",
    "claim",
    "phase",
    "fence",
    "attempts",
    "delays",
    "delayed",
    "not_before",
    "cancel",
    "started",
)


@dataclass(frozen=True, slots=True)
class ControlFields:
    """The control hash of a session."""

    execution: str
    step: int
    claim: str
    phase: str
    fence: int
    attempts: int
    delays: int
    delayed_ms: int
    not_before_ms: int
    cancel: str
    started_ms: int

    @classmethod
    def read(cls, reply: Reply) -> ControlFields:
        """From the reply to `_CTL`."""
        f = reply
        return cls(
            fields.text(f[0]), fields.number(f[1]), fields.text(f[2]), fields.text(f[3]), fields.number(f[4]),
            fields.number(f[5]), fields.number(f[6]), fields.milliseconds(f[7]), fields.milliseconds(f[8]),
            fields.text(f[9]), fields.milliseconds(f[10]),
        )  # fmt: skip


def control_command(keys: SessionKeys) -> Command:
    """The command whose reply `Ctl.read` takes."""
    return ("HMGET", keys.ctl, *_CTL)


def claim(context: StoreContext, ref: StepRef, claim_id: str, worker: str, *, alone: bool) -> ClaimResult:
    """Take the right to run a step. See `StepStore.claim`."""
    keys = context.keys(ref.session_id)
    claimed = _claim_as_expected(context, keys, ref, claim_id, worker)
    if claimed is not None:
        return claimed
    for _ in range(_CONFLICTS):
        try:
            return _claim_once(context, keys, ref, claim_id, worker, alone)
        except Changed:
            continue  # the next look decides anew; it also finds a claim whose EXEC reply was lost
    return NotClaimed(NotClaimedReason.BUSY)


# Of the control hash of a step that nobody has begun, after execution and step.
_UNTOUCHED: Final = {"claim": "", "phase": "run", "attempts": 0, "delays": 0, "not_before": 0, "cancel": ""}


def _claim_as_expected(
    context: StoreContext, keys: SessionKeys, ref: StepRef, claim_id: str, worker: str
) -> Claimed | None:
    """The first claim of a step; None when anything is not as expected."""
    latest, now_ms = context.cache.latest(ref.session_id), context.clock.estimate_ms()
    if now_ms is None:
        return None
    attempt = _Attempt(context, keys, ref, claim_id, worker, now_ms)
    if latest is not None and _steps_behind(latest.state, ref) == 0:
        return _claim_held(attempt, latest)
    # What was only announced is no beginning of what is read.
    held = None if latest is None else context.cache.get(ref.session_id)
    behind = None if held is None else _steps_behind(held.state, ref)
    if held is None or behind is None or not remembers(behind):
        return _claim_unseen(attempt)
    if behind < 0:
        return None
    return _claim_from_behind(attempt, held) if behind <= _FEW else _claim_and_read(attempt, held)


def _claim_held(attempt: _Attempt, held: CachedSession) -> Claimed | None:
    """The first claim of a step whose session stands as it is held.

    Its version alone does not tell: another worker's commit may bear the same, of one that was announced here, and of
    one that Redis lost.
    """
    guards: list[Guard] = [
        (("HMGET", attempt.keys.session, "version", "lineage"), (held.version, held.bookkeeping.lineage))
    ]
    taken, _ = attempt.make("claim.attempt", guards)
    return _first(attempt, taken, held) if taken is not None else None


def _claim_from_behind(attempt: _Attempt, held: CachedSession) -> Claimed | None:
    """The first claim of a step, by a worker that holds the session as it was a few steps ago: it reads what is new."""
    reads = loading.reads(attempt.keys, attempt.ref.execution_id, held)
    taken, replies = attempt.make("claim.behind", (), (), reads)
    return _with_reads(attempt, taken, held, replies)


def _claim_unseen(attempt: _Attempt) -> Claimed | None:
    """The first claim of a step, by a worker that holds nothing of its session that it could go on from."""
    if attempt.context.cache.has_met_newer:
        return None
    return (_claim_new(attempt) if attempt.ref.step == 1 else None) or _claim_and_read(attempt, None)


def _claim_new(attempt: _Attempt) -> Claimed | None:
    """The first claim of a new session's first step, read with it: it is one message."""
    keys, ref = attempt.keys, attempt.ref
    not_begun, writes = _beginning(attempt)
    guards: list[Guard] = [
        *not_begun,
        (("EXISTS", keys.session), (1,)),
        (("LLEN", keys.section(DEFAULT, 0)), (1,)),
        (("EXISTS", keys.steps(ref.execution_id)), (0,)),
    ]
    taken, replies = attempt.make("claim.new", guards, writes, loading.reads(keys, ref.execution_id, None))
    return _with_reads(attempt, taken, None, replies)


def _beginning(attempt: _Attempt) -> tuple[Sequence[Guard], Sequence[Command]]:
    """Of the first claim of an execution: that it is the first, and what it writes."""
    keys, first = attempt.keys, ("HSET", attempt.keys.ctl, "started", attempt.now_ms)
    return [(("HGET", keys.ctl, "started"), (0,))], [first, *_start_commands(attempt.context, keys, attempt.ref)]


def _claim_and_read(attempt: _Attempt, held: CachedSession | None) -> Claimed | None:
    """The first claim of a step, and behind it, in a round trip of its own, what is not held.

    Who has the claim need not watch what it reads: nobody else saves the session, and what is saved after its lease is
    of a later version than the commit expects.
    """
    context, keys, ref = attempt.context, attempt.keys, attempt.ref
    guards, writes = _beginning(attempt) if ref.step == 1 else ((), ())
    taken, _ = attempt.make("claim.first", [(("EXISTS", keys.session), (1,)), *guards], writes)
    if taken is None:
        return None
    if held is None:
        context.cache.drop(ref.session_id)  # what there is of it is no beginning of what is read
    return _with_reads(
        attempt, taken, held, context.database.transaction("claim.load", loading.reads(keys, ref.execution_id, held))
    )


def _with_reads(
    attempt: _Attempt, taken: Claim | None, held: CachedSession | None, replies: Sequence[Reply]
) -> Claimed | None:
    """What was read with a claim.

    None too when the claim was taken and what was read needs a closer look: the long way finds the claim its own.
    """
    if taken is None:
        return None
    context, ref = attempt.context, attempt.ref
    try:
        stored = loading.at_once(context, attempt.keys, ref.execution_id, held, replies)
    except StateTooNew:
        # Not for this worker: the next look of its kind is to come before the claim.
        context.cache.has_met_newer = True
        context.cache.drop(ref.session_id)
        release(context, taken, delay_ms=None, give_back=True)
        raise
    except StateUnreadable:
        return None
    return _first(attempt, taken, stored) if stored is not None and _is_next(stored.state, ref) else None


def _is_next(state: AgentState, ref: StepRef) -> bool:
    execution = state.execution
    if execution is None or execution.status.is_terminal():
        return False
    return (execution.execution_id, execution.step_count + 1) == (ref.execution_id, ref.step)


def _steps_behind(state: AgentState, ref: StepRef) -> int | None:
    """How many commits a state lacks in front of a step; negative: it has made it. None: of another execution."""
    execution = state.execution
    if execution is None or execution.status is not ExecutionStatus.IN_PROGRESS or execution.started_at is None:
        return None
    return ref.step - execution.step_count - 1 if execution.execution_id == ref.execution_id else None


@dataclass(slots=True)
class _Attempt:
    """A claim of a step that nobody has begun, in one script.

    Attributes:
        waiting: Messages in the queue when it was made; None: not known.
    """

    context: StoreContext
    keys: SessionKeys
    ref: StepRef
    claim_id: str
    worker: str
    now_ms: int
    waiting: int | None = None

    def make(
        self, point: str, guards: Sequence[Guard], writes: Sequence[Command] = (), reads: Sequence[Command] = ()
    ) -> tuple[Claim | None, Sequence[Reply]]:
        """Claim it where the guards hold too, write more with it, and give the replies to the reads."""
        context, keys, ref = self.context, self.keys, self.ref
        journal = keys.journal(ref.execution_id, ref.step)
        untouched: list[Guard] = [
            (("HMGET", keys.ctl, "execution", "step", *_UNTOUCHED), (ref.execution_id, ref.step, *_UNTOUCHED.values())),
            (("EXISTS", journal), (0,)),
        ]
        claiming: list[Command] = [
            ("HINCRBY", keys.ctl, "fence", 1),
            context.clock.now(),
            ("HSET", keys.ctl, "claim", self.claim_id, "worker", self.worker, "attempts", 1, "nudges", 0),
            *_lease_commands(context, keys, self.claim_id, self.worker, self.now_ms),
            ("HSET", journal, f"try:{self.claim_id}", self.now_ms),
            *writes,
            *(counting := context.publisher.waiting()),
        ]
        replies = context.database.compare_and_apply(point, [*untouched, *guards], [*claiming, *reads])
        if replies is None:
            return None, ()
        crash_points.at("c1")
        if counting:
            self.waiting = fields.number(replies[len(claiming) - 1])
        taken = Claim(self.claim_id, self.worker, ref, int(replies[0]), 1, context.clock.milliseconds(replies[1]))
        return taken, replies[len(claiming) :]


def _first(attempt: _Attempt, taken: Claim, held: CachedSession) -> Claimed:
    """A claim with which a step begins: nothing of it is journaled."""
    execution = held.state.execution
    assert execution is not None
    started_ms = attempt.now_ms if execution.started_at is None else milliseconds(execution.started_at)
    loaded = LoadedSession(held, Journal(), None, 1, 0, 0, started_ms, taken.now_ms)
    return Claimed(taken, loaded, attempt.waiting)


def _claim_once(
    context: StoreContext, keys: SessionKeys, ref: StepRef, claim_id: str, worker: str, alone: bool
) -> ClaimResult:
    held = context.cache.get(ref.session_id)
    journal_key = keys.journal(ref.execution_id, ref.step)
    reads = [
        control_command(keys),
        context.clock.now(),
        ("HGETALL", journal_key),
        *loading.reads(keys, ref.execution_id, held),
    ]
    with context.database.watch("claim.read", (keys.session, keys.ctl, journal_key), reads) as watched:
        ctl = ControlFields.read(watched.replies[0])
        now_ms = context.clock.milliseconds(watched.replies[1])
        left = _refusal(ctl, ref, claim_id, now_ms) or _held_by_another(context, keys, ctl, claim_id, watched)
        if left is not None:
            return NotClaimed(left)
        if ctl.attempts + 1 >= context.settings.suspect_attempts and not alone and ctl.claim != claim_id:
            return Suspect(ctl.attempts)
        journal = decoding.journal(watched.replies[2])
        stored = loading.finish(context, keys, ref.execution_id, held, watched, watched.replies[3:])
        if not _is_next(stored.state, ref):
            raise StateUnreadable("head", "it tells of another execution or step than the control fields")
        taken = _taken(ref, ctl, claim_id, worker, now_ms)
        if ctl.claim != claim_id:
            watched.commit("claim.exec", _claim_commands(context, keys, ctl, taken, journal, now_ms))
    crash_points.at("c1")
    loaded = LoadedSession(
        stored, journal, ctl.cancel if ctl.cancel == ref.execution_id else None,
        taken.attempt, ctl.delays, ctl.delayed_ms, ctl.started_ms or now_ms, now_ms,
    )  # fmt: skip
    return Claimed(taken, loaded)


def _refusal(  # noqa: PLR0911 - a list of reasons, each on its line
    ctl: ControlFields, ref: StepRef, claim_id: str, now_ms: int
) -> NotClaimedReason | None:
    """Why a step cannot be claimed, from the control hash alone."""
    if not ctl.execution:
        return NotClaimedReason.MISSING
    if ctl.execution != ref.execution_id or ref.step < ctl.step:
        return NotClaimedReason.STALE
    if ref.step > ctl.step:
        return NotClaimedReason.AHEAD
    if ctl.phase == "end":
        return NotClaimedReason.ENDED
    if ctl.claim == claim_id:
        return None
    if ctl.phase == "wait" and not (ctl.not_before_ms and ctl.not_before_ms <= now_ms):
        return NotClaimedReason.WAITING
    if ctl.not_before_ms > now_ms:
        return NotClaimedReason.NOT_YET
    return None


def _held_by_another(
    context: StoreContext, keys: SessionKeys, ctl: ControlFields, claim_id: str, watched: WatchedTransaction
) -> NotClaimedReason | None:
    if not ctl.claim or ctl.claim == claim_id:
        return None
    lease = keys.shard.lease(ctl.claim)
    (alive,) = watched.pipeline("claim.lease", [("EXISTS", lease)])
    if alive:
        return NotClaimedReason.BUSY
    if _restarted_lately(context, watched):
        return NotClaimedReason.RESTARTED
    return None


def _restarted_lately(context: StoreContext, watched: WatchedTransaction) -> bool:
    """Leases end while Redis is down; their holders need one lease to come back, or every step would be paid twice."""
    (reply,) = watched.pipeline("claim.uptime", [context.clock.uptime()])
    return context.clock.uptime_seconds(reply) < context.settings.lease_seconds


def _taken(ref: StepRef, ctl: ControlFields, claim_id: str, worker: str, now_ms: int) -> Claim:
    again = ctl.claim == claim_id
    return Claim(claim_id, worker, ref, ctl.fence + (not again), ctl.attempts + (not again), now_ms)


def _claim_commands(
    context: StoreContext, keys: SessionKeys, ctl: ControlFields, taken: Claim, journal: Journal, now_ms: int
) -> list[Command]:
    ref = taken.ref
    changed: list[str | int] = ["claim", taken.id, "worker", taken.worker, "fence", taken.fence]
    changed += ["attempts", taken.attempt, "nudges", 0]
    if not ctl.started_ms:
        changed += ["started", now_ms]
    commands: list[Command] = [
        ("HSET", keys.ctl, *changed),
        *_lease_commands(context, keys, taken.id, taken.worker, now_ms),
    ]
    if journal.answer is None:
        # The driver may be called from here on; one round trip saved against a record of its own.
        commands.append(("HSET", keys.journal(ref.execution_id, ref.step), f"try:{taken.id}", now_ms))
    if not ctl.started_ms:
        commands += _start_commands(context, keys, ref)
    elif taken.attempt > 1:
        data = {"attempt": taken.attempt, "worker": taken.worker}
        commands += event_commands(context, keys, [NewEvent("step_recovered", ref.execution_id, ref.step, data)])
    return commands


def _start_commands(context: StoreContext, keys: SessionKeys, ref: StepRef) -> list[Command]:
    """An execution begins, for those who watch."""
    return [
        ("HSET", keys.session, "status", "in_progress"),
        *event_commands(context, keys, [NewEvent("execution_started", ref.execution_id, ref.step, {})]),
    ]


def _lease_commands(context: StoreContext, keys: SessionKeys, claim_id: str, worker: str, now_ms: int) -> list[Command]:
    """A lease, and the sweep's next look after its end."""
    return [
        context.clock.start_lease(keys.shard.lease(claim_id), worker, context.lease_ms),
        ("ZADD", keys.shard.due, "XX", now_ms + context.lease_ms + context.grace_ms, keys.session_id),
    ]


def renew(context: StoreContext, claims: Sequence[Claim]) -> list[Renewal]:
    """Renew leases in one round trip. See `StepStore.renew`."""
    commands: list[Command] = []
    for held in claims:
        keys = context.keys(held.ref.session_id)
        commands.append(context.clock.renew_lease(keys.shard.lease(held.id), context.lease_ms))
        commands.append(("HGET", keys.ctl, "cancel"))
    replies = context.database.pipeline("renew", commands)
    return [Renewal(bool(replies[2 * i]), _cancel(replies[2 * i + 1], held.ref)) for i, held in enumerate(claims)]


def _cancel(value: bytes | None, ref: StepRef) -> str | None:
    name = fields.text(value)
    return name if name == ref.execution_id else None


def restore(context: StoreContext, held: Claim) -> bool:
    """Take a lease that ended back, if the claim still stands. See `StepStore.restore`."""
    keys = context.keys(held.ref.session_id)
    for _ in range(_CONFLICTS):
        try:
            with context.database.watch("restore.read", (keys.ctl,), [("HGET", keys.ctl, "claim")]) as watched:
                if fields.text(watched.replies[0]) != held.id:
                    return False
                # Rewriting the claim aborts a rival that has looked but not yet taken it.
                watched.commit(
                    "restore.exec",
                    [
                        context.clock.start_lease(keys.shard.lease(held.id), held.worker, context.lease_ms),
                        ("HSET", keys.ctl, "claim", held.id),
                    ],
                )
                return True
        except Changed:
            continue
    return False


def release(context: StoreContext, held: Claim, *, delay_ms: int | None, give_back: bool) -> StepRef | None:
    """Give a claim back. See `StepStore.release`."""
    keys = context.keys(held.ref.session_id)
    for _ in range(_CONFLICTS):
        try:
            return _release_once(context, keys, held, delay_ms, give_back)
        except Changed:
            continue
    raise StoreUnavailable(f"session {held.ref.session_id} is too busy to give its claim back; the lease will end")


def _release_once(
    context: StoreContext, keys: SessionKeys, held: Claim, delay_ms: int | None, give_back: bool
) -> StepRef | None:
    with context.database.watch("release.read", (keys.ctl,), [control_command(keys), context.clock.now()]) as watched:
        ctl = ControlFields.read(watched.replies[0])
        now_ms = context.clock.milliseconds(watched.replies[1])
        if ctl.claim != held.id:
            return None
        changed: list[str | int] = ["claim", "", "worker", "", "attempts", max(0, ctl.attempts - give_back)]
        publish: Sequence[Command] = ()
        if delay_ms is None:
            due = now_ms + context.due_ms
            publish = context.publisher.commands(held.ref, now_ms)
            changed += ["published", now_ms]
        else:
            due = now_ms + delay_ms
            changed += [
                "delays",
                ctl.delays + 1,
                "delayed",
                ctl.delayed_ms or now_ms,
                "not_before",
                due,
                "published",
                0,
            ]
        watched.commit(
            "release.exec",
            [
                ("HSET", keys.ctl, *changed),
                ("DEL", keys.shard.lease(held.id)),
                ("ZADD", keys.shard.due, "XX", due, held.ref.session_id),
                *publish,
            ],
        )
        return held.ref if delay_ms is None and not publish else None
