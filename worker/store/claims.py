"""Claiming a step, keeping the claim alive, giving it back.

WATCH session, ctl → read everything → decide → MULTI claim, fence, attempts+1, lease, due → EXEC

Where this process holds the session, as it is or as it was, and where the session is new, one script compares all
that is expected, writes, and reads what is not held; anything unexpected is left to the long way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .. import crash_points
from ..errors import StateTooNew, StateUnreadable, StoreUnavailable
from ..state import DEFAULT, AgentState, ExecutionStatus
from . import decoding, fields, loading
from .cache import Held
from .events import event_commands
from .ground import Ground
from .keys import SessionKeys
from .records import Claim, ClaimAnswer, Claimed, Journal, Left, LeftReason, Loaded, NewEvent, Renewal, StepRef, Suspect
from .standing import remembers
from .tables import Changed, Command, Guard, Reply, Watched
from .writes import milliseconds

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
class Ctl:
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
    def read(cls, reply: Reply) -> Ctl:
        """From the reply to `_CTL`."""
        f = reply
        return cls(
            fields.text(f[0]), fields.number(f[1]), fields.text(f[2]), fields.text(f[3]), fields.number(f[4]),
            fields.number(f[5]), fields.number(f[6]), fields.milliseconds(f[7]), fields.milliseconds(f[8]),
            fields.text(f[9]), fields.milliseconds(f[10]),
        )  # fmt: skip


def ctl_read(keys: SessionKeys) -> Command:
    """The command whose reply `Ctl.read` takes."""
    return ("HMGET", keys.ctl, *_CTL)


def claim(ground: Ground, ref: StepRef, claim_id: str, worker: str, *, alone: bool) -> ClaimAnswer:
    """Take the right to run a step. See `StepStore.claim`."""
    keys = ground.keys(ref.session_id)
    claimed = _claim_as_expected(ground, keys, ref, claim_id, worker)
    if claimed is not None:
        return claimed
    for _ in range(_CONFLICTS):
        try:
            return _claim_once(ground, keys, ref, claim_id, worker, alone)
        except Changed:
            continue  # the next look decides anew; it also finds a claim whose EXEC reply was lost
    return Left(LeftReason.BUSY)


# Of the control hash of a step that nobody has begun, after execution and step.
_UNTOUCHED: Final = {"claim": "", "phase": "run", "attempts": 0, "delays": 0, "not_before": 0, "cancel": ""}


def _claim_as_expected(ground: Ground, keys: SessionKeys, ref: StepRef, claim_id: str, worker: str) -> Claimed | None:
    """The first claim of a step; None when anything is not as expected."""
    latest, now_ms = ground.cache.latest(ref.session_id), ground.clock.estimate_ms()
    if now_ms is None:
        return None
    attempt = _Attempt(ground, keys, ref, claim_id, worker, now_ms)
    if latest is not None and _steps_behind(latest.state, ref) == 0:
        return _claim_held(attempt, latest)
    # What was only announced is no beginning of what is read.
    held = None if latest is None else ground.cache.get(ref.session_id)
    behind = None if held is None else _steps_behind(held.state, ref)
    if held is None or behind is None or not remembers(behind):
        return _claim_unseen(attempt)
    if behind < 0:
        return None
    return _claim_from_behind(attempt, held) if behind <= _FEW else _claim_and_read(attempt, held)


def _claim_held(attempt: _Attempt, held: Held) -> Claimed | None:
    """The first claim of a step whose session stands as it is held.

    Its version alone does not tell: another worker's commit may bear the same, of one that was announced here, and of
    one that Redis lost.
    """
    guards: list[Guard] = [
        (("HMGET", attempt.keys.session, "version", "lineage"), (held.version, held.standing.lineage))
    ]
    taken, _ = attempt.make("claim.attempt", guards)
    return _first(attempt, taken, held) if taken is not None else None


def _claim_from_behind(attempt: _Attempt, held: Held) -> Claimed | None:
    """The first claim of a step, by a worker that holds the session as it was a few steps ago: it reads what is new."""
    reads = loading.reads(attempt.keys, attempt.ref.execution_id, held)
    taken, replies = attempt.make("claim.behind", (), (), reads)
    return _with_reads(attempt, taken, held, replies)


def _claim_unseen(attempt: _Attempt) -> Claimed | None:
    """The first claim of a step, by a worker that holds nothing of its session that it could go on from."""
    if attempt.ground.cache.has_met_newer:
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
    return [(("HGET", keys.ctl, "started"), (0,))], [first, *_start_commands(attempt.ground, keys, attempt.ref)]


def _claim_and_read(attempt: _Attempt, held: Held | None) -> Claimed | None:
    """The first claim of a step, and behind it, in a round trip of its own, what is not held.

    Who has the claim need not watch what it reads: nobody else saves the session, and what is saved after its lease is
    of a later version than the commit expects.
    """
    ground, keys, ref = attempt.ground, attempt.keys, attempt.ref
    guards, writes = _beginning(attempt) if ref.step == 1 else ((), ())
    taken, _ = attempt.make("claim.first", [(("EXISTS", keys.session), (1,)), *guards], writes)
    if taken is None:
        return None
    if held is None:
        ground.cache.drop(ref.session_id)  # what there is of it is no beginning of what is read
    return _with_reads(
        attempt, taken, held, ground.tables.apply("claim.load", loading.reads(keys, ref.execution_id, held))
    )


def _with_reads(attempt: _Attempt, taken: Claim | None, held: Held | None, replies: Sequence[Reply]) -> Claimed | None:
    """What was read with a claim.

    None too when the claim was taken and what was read needs a closer look: the long way finds the claim its own.
    """
    if taken is None:
        return None
    ground, ref = attempt.ground, attempt.ref
    try:
        stored = loading.at_once(ground, attempt.keys, ref.execution_id, held, replies)
    except StateTooNew:
        # Not for this worker: the next look of its kind is to come before the claim.
        ground.cache.has_met_newer = True
        ground.cache.drop(ref.session_id)
        release(ground, taken, delay_ms=None, give_back=True)
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

    ground: Ground
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
        ground, keys, ref = self.ground, self.keys, self.ref
        journal = keys.journal(ref.execution_id, ref.step)
        untouched: list[Guard] = [
            (("HMGET", keys.ctl, "execution", "step", *_UNTOUCHED), (ref.execution_id, ref.step, *_UNTOUCHED.values())),
            (("EXISTS", journal), (0,)),
        ]
        claiming: list[Command] = [
            ("HINCRBY", keys.ctl, "fence", 1),
            ground.clock.now(),
            ("HSET", keys.ctl, "claim", self.claim_id, "worker", self.worker, "attempts", 1, "nudges", 0),
            *_lease_commands(ground, keys, self.claim_id, self.worker, self.now_ms),
            ("HSET", journal, f"try:{self.claim_id}", self.now_ms),
            *writes,
            *(counting := ground.handover.waiting()),
        ]
        replies = ground.tables.attempt(point, [*untouched, *guards], [*claiming, *reads])
        if replies is None:
            return None, ()
        crash_points.at("c1")
        if counting:
            self.waiting = fields.number(replies[len(claiming) - 1])
        taken = Claim(self.claim_id, self.worker, ref, int(replies[0]), 1, ground.clock.milliseconds(replies[1]))
        return taken, replies[len(claiming) :]


def _first(attempt: _Attempt, taken: Claim, held: Held) -> Claimed:
    """A claim with which a step begins: nothing of it is journaled."""
    execution = held.state.execution
    assert execution is not None
    started_ms = attempt.now_ms if execution.started_at is None else milliseconds(execution.started_at)
    loaded = Loaded(held, Journal(), None, 1, 0, 0, started_ms, taken.now_ms)
    return Claimed(taken, loaded, attempt.waiting)


def _claim_once(
    ground: Ground, keys: SessionKeys, ref: StepRef, claim_id: str, worker: str, alone: bool
) -> ClaimAnswer:
    held = ground.cache.get(ref.session_id)
    journal_key = keys.journal(ref.execution_id, ref.step)
    reads = [
        ctl_read(keys),
        ground.clock.now(),
        ("HGETALL", journal_key),
        *loading.reads(keys, ref.execution_id, held),
    ]
    with ground.tables.watch("claim.read", (keys.session, keys.ctl, journal_key), reads) as watched:
        ctl = Ctl.read(watched.replies[0])
        now_ms = ground.clock.milliseconds(watched.replies[1])
        left = _refusal(ctl, ref, claim_id, now_ms) or _held_by_another(ground, keys, ctl, claim_id, watched)
        if left is not None:
            return Left(left)
        if ctl.attempts + 1 >= ground.settings.suspect_attempts and not alone and ctl.claim != claim_id:
            return Suspect(ctl.attempts)
        journal = decoding.journal(watched.replies[2])
        stored = loading.finish(ground, keys, ref.execution_id, held, watched, watched.replies[3:])
        if not _is_next(stored.state, ref):
            raise StateUnreadable("head", "it tells of another execution or step than the control fields")
        taken = _taken(ref, ctl, claim_id, worker, now_ms)
        if ctl.claim != claim_id:
            watched.commit("claim.exec", _claim_commands(ground, keys, ctl, taken, journal, now_ms))
    crash_points.at("c1")
    loaded = Loaded(
        stored, journal, ctl.cancel if ctl.cancel == ref.execution_id else None,
        taken.attempt, ctl.delays, ctl.delayed_ms, ctl.started_ms or now_ms, now_ms,
    )  # fmt: skip
    return Claimed(taken, loaded)


def _refusal(  # noqa: PLR0911 - a list of reasons, each on its line
    ctl: Ctl, ref: StepRef, claim_id: str, now_ms: int
) -> LeftReason | None:
    """Why a step cannot be claimed, from the control hash alone."""
    if not ctl.execution:
        return LeftReason.MISSING
    if ctl.execution != ref.execution_id or ref.step < ctl.step:
        return LeftReason.STALE
    if ref.step > ctl.step:
        return LeftReason.AHEAD
    if ctl.phase == "end":
        return LeftReason.ENDED
    if ctl.claim == claim_id:
        return None
    if ctl.phase == "wait" and not (ctl.not_before_ms and ctl.not_before_ms <= now_ms):
        return LeftReason.WAITING
    if ctl.not_before_ms > now_ms:
        return LeftReason.NOT_YET
    return None


def _held_by_another(ground: Ground, keys: SessionKeys, ctl: Ctl, claim_id: str, watched: Watched) -> LeftReason | None:
    if not ctl.claim or ctl.claim == claim_id:
        return None
    lease = keys.shard.lease(ctl.claim)
    (alive,) = watched.ask("claim.lease", [("EXISTS", lease)])
    if alive:
        return LeftReason.BUSY
    if _restarted_lately(ground, watched):
        return LeftReason.RESTARTED
    return None


def _restarted_lately(ground: Ground, watched: Watched) -> bool:
    """Leases end while Redis is down; their holders need one lease to come back, or every step would be paid twice."""
    (reply,) = watched.ask("claim.uptime", [ground.clock.uptime()])
    return ground.clock.uptime_seconds(reply) < ground.settings.lease_seconds


def _taken(ref: StepRef, ctl: Ctl, claim_id: str, worker: str, now_ms: int) -> Claim:
    again = ctl.claim == claim_id
    return Claim(claim_id, worker, ref, ctl.fence + (not again), ctl.attempts + (not again), now_ms)


def _claim_commands(
    ground: Ground, keys: SessionKeys, ctl: Ctl, taken: Claim, journal: Journal, now_ms: int
) -> list[Command]:
    ref = taken.ref
    changed: list[str | int] = ["claim", taken.id, "worker", taken.worker, "fence", taken.fence]
    changed += ["attempts", taken.attempt, "nudges", 0]
    if not ctl.started_ms:
        changed += ["started", now_ms]
    commands: list[Command] = [
        ("HSET", keys.ctl, *changed),
        *_lease_commands(ground, keys, taken.id, taken.worker, now_ms),
    ]
    if journal.answer is None:
        # The driver may be called from here on; one round trip saved against a record of its own.
        commands.append(("HSET", keys.journal(ref.execution_id, ref.step), f"try:{taken.id}", now_ms))
    if not ctl.started_ms:
        commands += _start_commands(ground, keys, ref)
    elif taken.attempt > 1:
        data = {"attempt": taken.attempt, "worker": taken.worker}
        commands += event_commands(ground, keys, [NewEvent("step_recovered", ref.execution_id, ref.step, data)])
    return commands


def _start_commands(ground: Ground, keys: SessionKeys, ref: StepRef) -> list[Command]:
    """An execution begins, for those who watch."""
    return [
        ("HSET", keys.session, "status", "in_progress"),
        *event_commands(ground, keys, [NewEvent("execution_started", ref.execution_id, ref.step, {})]),
    ]


def _lease_commands(ground: Ground, keys: SessionKeys, claim_id: str, worker: str, now_ms: int) -> list[Command]:
    """A lease, and the sweep's next look after its end."""
    return [
        ground.clock.start_lease(keys.shard.lease(claim_id), worker, ground.lease_ms),
        ("ZADD", keys.shard.due, "XX", now_ms + ground.lease_ms + ground.grace_ms, keys.session_id),
    ]


def renew(ground: Ground, claims: Sequence[Claim]) -> list[Renewal]:
    """Renew leases in one round trip. See `StepStore.renew`."""
    commands: list[Command] = []
    for held in claims:
        keys = ground.keys(held.ref.session_id)
        commands.append(ground.clock.renew_lease(keys.shard.lease(held.id), ground.lease_ms))
        commands.append(("HGET", keys.ctl, "cancel"))
    replies = ground.tables.ask("renew", commands)
    return [Renewal(bool(replies[2 * i]), _cancel(replies[2 * i + 1], held.ref)) for i, held in enumerate(claims)]


def _cancel(value: bytes | None, ref: StepRef) -> str | None:
    name = fields.text(value)
    return name if name == ref.execution_id else None


def restore(ground: Ground, held: Claim) -> bool:
    """Take a lease that ended back, if the claim still stands. See `StepStore.restore`."""
    keys = ground.keys(held.ref.session_id)
    for _ in range(_CONFLICTS):
        try:
            with ground.tables.watch("restore.read", (keys.ctl,), [("HGET", keys.ctl, "claim")]) as watched:
                if fields.text(watched.replies[0]) != held.id:
                    return False
                # Rewriting the claim aborts a rival that has looked but not yet taken it.
                watched.commit(
                    "restore.exec",
                    [
                        ground.clock.start_lease(keys.shard.lease(held.id), held.worker, ground.lease_ms),
                        ("HSET", keys.ctl, "claim", held.id),
                    ],
                )
                return True
        except Changed:
            continue
    return False


def release(ground: Ground, held: Claim, *, delay_ms: int | None, give_back: bool) -> StepRef | None:
    """Give a claim back. See `StepStore.release`."""
    keys = ground.keys(held.ref.session_id)
    for _ in range(_CONFLICTS):
        try:
            return _release_once(ground, keys, held, delay_ms, give_back)
        except Changed:
            continue
    raise StoreUnavailable(f"session {held.ref.session_id} is too busy to give its claim back; the lease will end")


def _release_once(
    ground: Ground, keys: SessionKeys, held: Claim, delay_ms: int | None, give_back: bool
) -> StepRef | None:
    with ground.tables.watch("release.read", (keys.ctl,), [ctl_read(keys), ground.clock.now()]) as watched:
        ctl = Ctl.read(watched.replies[0])
        now_ms = ground.clock.milliseconds(watched.replies[1])
        if ctl.claim != held.id:
            return None
        changed: list[str | int] = ["claim", "", "worker", "", "attempts", max(0, ctl.attempts - give_back)]
        publish: Sequence[Command] = ()
        if delay_ms is None:
            due = now_ms + ground.due_ms
            publish = ground.handover.commands(held.ref, now_ms)
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
