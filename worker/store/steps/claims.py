"""Claiming a step: by one script where the session is as expected, else by WATCH and a transaction.

    WATCH session, ctl, journal → read everything → decide → MULTI claim, attempts+1, lease, due → EXEC

The script compares the control fields and what else is expected, writes the claim, and reads what this process lacks
where that is little. It may only grant what the way by WATCH would grant; whatever it does not expect, and a claim
whose reply was lost, goes that way. The rest is read right behind it: nobody else saves a session whose claim is
taken, and what is saved after its lease has another version than the commit expects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ... import crash_points
from ...errors import StateTooNew, StateUnreadable
from ...state.agent_state import AgentState
from ...state.execution.status import ExecutionStatus
from .. import fields
from ..bookkeeping import remembers
from ..cache import CachedSession
from ..context import SessionScope, StorePart
from ..control import UNCLAIMED, ControlFields, abandoned_attempt, control_command
from ..database import Changed, Command, Guard, Reply, WatchedTransaction
from ..event_records import EventType
from ..events import tell
from ..journal import Journal, read_journal
from ..records import (
    Claim,
    Claimed,
    ClaimResult,
    LoadedSession,
    NotClaimed,
    NotClaimedReason,
    StepRef,
    Suspect,
    claim_lost,
)
from ..sessions import loading
from ..sessions.saving import milliseconds
from ..transaction_retries import TooManyConflicts
from ..waking import resumed_event
from .leases import LeaseVerbs

_NOTHING_JOURNALED: Final = Journal()
# Redis needs three times as long for what a script reads, so no more missed steps than these are read by the script.
_STEPS_READ: Final = 4


class ClaimVerbs(StorePart):
    """Claiming a step, and loading its session."""

    def claim(self, ref: StepRef, claim_id: str, worker: str, *, alone: bool) -> ClaimResult:
        """Take the right to run a step, and load the session with it.

        Args:
            claim_id: Fresh for each attempt; asking again with the same id after a lost reply is safe and not counted.
            alone: Nothing else runs in this process. Without it a step that died too often answers `Suspect`.
        Raises:
            StoreUnavailable: No answer in time. The claim may have been taken; its lease will end.
            StateTooNew: A worker of a newer version has to run it. No claim stays: WATCH refuses before it claims, and
                the script claims and gives the claim back.
            StateUnreadable: A part is damaged, and untouched. The claim may have been taken; its lease will end.
        """
        scope = self._context.session(ref.session_id)
        request = _ClaimRequest(scope=scope, ref=ref, claim_id=claim_id, worker=worker, alone=alone)
        claimed = _claim_by_script(request)
        if claimed is not None:
            return claimed
        try:
            return scope.retry(lambda: _claim_by_watch(request), purpose=f"claim step {ref.step}")
        except TooManyConflicts:
            return NotClaimed(NotClaimedReason.BUSY)

    def reload(self, claim: Claim) -> LoadedSession:
        """Load the session as stored now, for the same claim, after somebody else has saved it.

        Raises:
            ClaimLost: The claim no longer stands.
        """
        scope = self._context.session(claim.ref.session_id)
        cached = scope.cache.get(scope.session_id)
        return scope.retry(lambda: _reload(scope, claim, cached), purpose="be read")


def _reload(scope: SessionScope, claim: Claim, cached: CachedSession | None) -> LoadedSession:
    keys, execution_id = scope.keys, claim.ref.execution_id
    reads = _reads_with_journal(scope, claim.ref, cached)
    with scope.database.watch("reload.read", (keys.session, keys.ctl), reads) as watched:
        control = ControlFields.read(watched.replies[0])
        if not control.is_claimed_by(claim.id, claim.ref):
            raise claim_lost(claim)
        session = loading.finish(scope, execution_id, cached, watched, watched.replies[3:])
        (version,) = watched.pipeline("reload.check", [("HGET", keys.session, "version")])
        if fields.number(version) != session.version:
            raise Changed
        asked = replace(claim, now_ms=scope.clock.milliseconds(watched.replies[1]))
        return _load_claimed(asked, session, control, read_journal(watched.replies[2]))


def _reads_with_journal(scope: SessionScope, ref: StepRef, cached: CachedSession | None) -> list[Command]:
    return [
        control_command(scope.keys),
        scope.clock.now(),
        ("HGETALL", scope.keys.journal(ref.execution_id, ref.step)),
        *loading.reads(scope, ref.execution_id, cached),
    ]


@dataclass(frozen=True, slots=True)
class _ClaimRequest:
    """A worker that wants to run a step.

    Attributes:
        claim_id: Fresh for each attempt; the same when it is asked again after a lost reply.
        alone: Nothing else runs in this process.
    """

    scope: SessionScope
    ref: StepRef
    claim_id: str
    worker: str
    alone: bool

    @property
    def journal(self) -> str:
        """The key of the step's journal."""
        return self.scope.keys.journal(self.ref.execution_id, self.ref.step)

    def begin_execution(self, now_ms: int) -> list[Command]:
        """Commands that the first claim of an execution writes besides the claim."""
        return [
            ("HSET", self.scope.keys.ctl, "started", now_ms),
            ("HSET", self.scope.keys.session, "status", "in_progress"),
            *tell(self.scope, self.ref, EventType.EXECUTION_STARTED, {}),
        ]

    def grant(self, *, attempt: int, now_ms: int) -> Claim:
        """The claim, once it is stored."""
        return Claim(id=self.claim_id, worker=self.worker, ref=self.ref, attempt=attempt, now_ms=now_ms)

    def is_next_in(self, state: AgentState) -> bool:
        """Whether a session's state waits for this step."""
        execution = state.execution
        if execution is None or execution.status.is_terminal():
            return False
        return (execution.execution_id, execution.step_count + 1) == (self.ref.execution_id, self.ref.step)


def make_first_claimed(
    claim: Claim, session: CachedSession, started_ms: int, waiting: int | None = None, followed_until_ms: int = 0
) -> Claimed:
    """The first claim of a step: nothing is journaled, delayed or asked to stop.

    Args:
        started_ms: When the execution was claimed first.
        waiting: Messages in the queue; None: not known.
        followed_until_ms: As in `LoadedSession`.
    """
    loaded = LoadedSession(
        session=session,
        journal=_NOTHING_JOURNALED,
        cancel=None,
        attempts=claim.attempt,
        delays=0,
        delayed_since_ms=0,
        started_ms=started_ms,
        now_ms=claim.now_ms,
        followed_until_ms=followed_until_ms,
    )
    return Claimed(claim, loaded, waiting)


def _load_claimed(claim: Claim, session: CachedSession, control: ControlFields, journal: Journal) -> LoadedSession:
    """The session of a claim, as its control fields and its journal were read with it."""
    return LoadedSession(
        session=session,
        journal=journal,
        cancel=control.requested_stop,
        attempts=claim.attempt,
        delays=control.delays,
        delayed_since_ms=control.delayed_ms,
        started_ms=control.started_ms or claim.now_ms,
        now_ms=claim.now_ms,
        legs=control.legs,
        hold=control.hold,
        followed_until_ms=control.followed_until_ms,
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """The expectation of a worker that claims a step, and the reads that go with the claim.

    Attributes:
        point: The name of the round trip.
        session: The session as this process has cached it; None: it has cached nothing that it could go on from.
        is_current: `session` is what is stored, if the guards hold.
        reads: Read by the script. Empty: whatever is missing is read behind it.
    """

    point: str
    session: CachedSession | None = None
    is_current: bool = False
    guards: Sequence[Guard] = ()
    writes: Sequence[Command] = ()
    reads: Sequence[Command] = ()


def _claim_by_script(request: _ClaimRequest) -> Claimed | None:
    """Claim a step for the first time; None when anything is not as expected: nothing was decided.

    Raises:
        StateTooNew: A newer version of this package has written the session; the claim was given back.
    """
    now_ms = request.scope.clock.estimate_ms()
    plan = None if now_ms is None else _plan(request, now_ms)
    return None if plan is None or now_ms is None else _ScriptedClaim(request, plan, now_ms).run()


def _plan(request: _ClaimRequest, now_ms: int) -> _Plan | None:
    """Say what is expected, by what this process has cached of the session."""
    scope, ref = request.scope, request.ref
    latest = scope.cache.latest(scope.session_id)
    if ref.legs or (latest is not None and _waits_at(latest.state, ref)):
        return None  # its journal is there, which no script expects
    if latest is not None and _steps_behind(latest.state, ref) == 0:
        # The version alone does not tell: another worker's commit may have the same, and one that Redis lost.
        lineage: Guard = (
            ("HMGET", scope.keys.session, "version", "lineage"),
            (latest.version, latest.bookkeeping.lineage),
        )
        return _Plan("claim.attempt", latest, is_current=True, guards=[lineage])
    # A staged session may belong to a commit that fails. Only a committed one may be the base of an incremental read.
    session = None if latest is None else scope.cache.get(scope.session_id)
    behind = None if session is None else _steps_behind(session.state, ref)
    if session is None or behind is None or not remembers(behind):
        return _plan_unseen(request, now_ms)
    if behind < 0:
        return None
    if behind <= _STEPS_READ:
        return _Plan("claim.behind", session, reads=loading.reads(scope, ref.execution_id, session))
    return _Plan("claim.first", session, guards=[_exists(request)])


def _plan_unseen(request: _ClaimRequest, now_ms: int) -> _Plan | None:
    """Expect a session that this process has not cached: at step 1 it may be new, and then it has one message."""
    scope, ref = request.scope, request.ref
    if scope.cache.has_met_newer:
        return None
    if ref.step > 1:
        return _Plan("claim.first", guards=[_exists(request)])
    return _Plan(
        "claim.new",
        guards=[_exists(request), (("HGET", scope.keys.ctl, "started"), (0,))],
        writes=request.begin_execution(now_ms),
        reads=loading.reads_of_new(scope, ref.execution_id),
    )


def _exists(request: _ClaimRequest) -> Guard:
    return ("EXISTS", request.scope.keys.session), (1,)


@dataclass(slots=True)
class _ScriptedClaim:
    """One claim by a script, from the comparison to the session that was read."""

    request: _ClaimRequest
    plan: _Plan
    now_ms: int

    def run(self) -> Claimed | None:
        """Claim and load; None when nothing was decided, or the claim has to be looked at by a WATCH."""
        scope, publisher = self.request.scope, self.request.scope.context.publisher
        counting = publisher.count_commands(self.request.ref.queue)
        writes = [*self._claim_commands(), *self.plan.writes, *counting]
        replies = scope.database.compare_and_apply(
            self.plan.point, [*self._unclaimed_guards(), *self.plan.guards], [*writes, *self.plan.reads]
        )
        if replies is None:
            return None
        crash_points.at("c1")
        waiting = fields.number(replies[len(writes) - 1]) if counting else None
        claim = self.request.grant(attempt=1, now_ms=scope.clock.milliseconds(replies[1]))
        session = self.plan.session if self.plan.is_current else self._load(claim, replies[len(writes) :])
        if session is None:
            return None
        execution = session.state.execution
        assert execution is not None
        started_ms = self.now_ms if execution.started_at is None else milliseconds(execution.started_at)
        return make_first_claimed(claim, session, started_ms, waiting, fields.milliseconds(replies[2]))

    def _unclaimed_guards(self) -> list[Guard]:
        """Expect that nobody has begun the step."""
        request = self.request
        names = ("execution", "step", *UNCLAIMED)
        expected = (request.ref.execution_id, request.ref.step, *UNCLAIMED.values())
        return [
            (("HMGET", request.scope.keys.ctl, *names), expected),
            (("EXISTS", request.journal), (0,)),
        ]

    def _claim_commands(self) -> list[Command]:
        """Commands of the claim; a full Redis refuses the first one. The next ones read the time, and who watches."""
        request = self.request
        return [
            (
                "HSET", request.scope.keys.ctl, "claim", request.claim_id, "worker", request.worker,
                "attempts", 1, "nudges", 0,
            ),
            request.scope.clock.now(),
            ("HGET", request.scope.keys.ctl, "watched"),
            *request.scope.start_lease(request.claim_id, request.worker, self.now_ms),
            ("HSET", request.journal, f"try:{request.claim_id}", self.now_ms),
        ]  # fmt: skip

    def _load(self, claim: Claim, replies: Sequence[Reply]) -> CachedSession | None:
        """The session of a claim that was taken; None when it needs a closer look."""
        scope, ref = self.request.scope, self.request.ref
        try:
            session = self._join(self.plan.session, replies, limited=self.plan.session is None) if replies else None
            if session is None:
                session = self._read_behind()
        except StateTooNew:
            # Not for this worker. From now on it looks before it claims what it does not hold.
            scope.cache.has_met_newer = True
            scope.cache.drop(ref.session_id)
            LeaseVerbs(scope.context).release(claim, delay_ms=None, give_back=True)
            raise
        except StateUnreadable:
            return None
        return session if session is not None and self.request.is_next_in(session.state) else None

    def _read_behind(self) -> CachedSession | None:
        """Read in a round trip behind the claim what the script did not read."""
        scope, ref = self.request.scope, self.request.ref
        cached = None if self.plan.reads else self.plan.session
        if cached is None:
            scope.cache.drop(ref.session_id)  # it is not the beginning of what is read
        replies = scope.database.transaction("claim.load", loading.reads(scope, ref.execution_id, cached))
        return self._join(cached, replies)

    def _join(
        self, cached: CachedSession | None, replies: Sequence[Reply], *, limited: bool = False
    ) -> CachedSession | None:
        scope, execution_id = self.request.scope, self.request.ref.execution_id
        return loading.join_replies(scope, execution_id, cached, replies, limited=limited)


def _waits_at(state: AgentState, ref: StepRef) -> bool:
    """Whether a state waits at this step."""
    execution = state.execution
    if execution is None or execution.status is not ExecutionStatus.WAITING:
        return False
    return (execution.execution_id, execution.step_count + 1) == (ref.execution_id, ref.step)


def _steps_behind(state: AgentState, ref: StepRef) -> int | None:
    """How many commits a state lacks in front of a step; negative: it has made it. None: of another execution."""
    execution = state.execution
    if execution is None or execution.status is not ExecutionStatus.IN_PROGRESS or execution.started_at is None:
        return None
    return ref.step - execution.step_count - 1 if execution.execution_id == ref.execution_id else None


def _claim_by_watch(request: _ClaimRequest) -> ClaimResult:
    """Look at a session and claim its step where that is allowed.

    Raises:
        Changed: The session has changed, or the reply was lost. The next look finds a claim that was taken.
    """
    scope, ref, claim_id = request.scope, request.ref, request.claim_id
    cached = scope.cache.get(ref.session_id)
    reads = _reads_with_journal(scope, ref, cached)
    with scope.database.watch("claim.read", (scope.keys.session, scope.keys.ctl, request.journal), reads) as watched:
        control = ControlFields.read(watched.replies[0])
        now_ms = scope.clock.milliseconds(watched.replies[1])
        refusal = _refuse(request, control, now_ms) or _refuse_if_claimed_by_another(request, control, watched)
        if refusal is not None:
            return NotClaimed(refusal)
        is_mine = control.claim == claim_id
        if control.attempts + 1 >= scope.settings.suspect_attempts and not request.alone and not is_mine:
            return Suspect(control.attempts)
        journal = read_journal(watched.replies[2])
        session = loading.finish(scope, ref.execution_id, cached, watched, watched.replies[3:])
        if not request.is_next_in(session.state):
            raise StateUnreadable("head", "it tells of another execution or step than the control fields")
        claim = request.grant(attempt=control.attempts + (not is_mine), now_ms=now_ms)
        if not is_mine:
            watched.commit("claim.exec", _claim_commands(request, control, claim, journal))
    crash_points.at("c1")
    if control.has_waited:
        crash_points.at("w3")
    return Claimed(claim, _load_claimed(claim, session, control, journal))


def _refuse(  # noqa: PLR0911 - a list of reasons, each on its line
    request: _ClaimRequest, control: ControlFields, now_ms: int
) -> NotClaimedReason | None:
    """Why a step cannot be claimed, from the control fields alone."""
    if not control.execution:
        return NotClaimedReason.MISSING
    if control.execution != request.ref.execution_id or request.ref.step < control.step:
        return NotClaimedReason.STALE
    if request.ref.step > control.step:
        return NotClaimedReason.AHEAD
    if control.phase == "end":
        return NotClaimedReason.ENDED
    if control.claim == request.claim_id:
        return None
    if control.hold is not None:  # a stop, or the end of the hold, comes before every delay
        return NotClaimedReason.HELD if control.is_held(now_ms) else None
    if control.phase == "wait" and not (control.not_before_ms and control.not_before_ms <= now_ms):
        return NotClaimedReason.WAITING
    if control.not_before_ms > now_ms:
        return NotClaimedReason.NOT_YET
    return None


def _refuse_if_claimed_by_another(
    request: _ClaimRequest, control: ControlFields, watched: WatchedTransaction
) -> NotClaimedReason | None:
    """Refuse if another claim's lease is alive, or may have expired during a Redis outage."""
    if not control.claim or control.claim == request.claim_id:
        return None
    if request.scope.is_lease_alive(control.claim, "claim.lease", watched):
        return NotClaimedReason.BUSY
    # Leases end while Redis is down; their holders need one lease to come back, or every step would be paid twice.
    clock = request.scope.clock
    (reply,) = watched.pipeline("claim.uptime", [clock.uptime()])
    if clock.uptime_seconds(reply) < request.scope.settings.lease_seconds:
        return NotClaimedReason.RESTARTED
    return None


def _claim_commands(request: _ClaimRequest, control: ControlFields, claim: Claim, journal: Journal) -> list[Command]:
    scope, ref = request.scope, request.ref
    commands: list[Command] = [
        (
            "HSET", scope.keys.ctl, "claim", claim.id, "worker", claim.worker,
            "attempts", claim.attempt, "nudges", 0,
        ),
        *scope.start_lease(claim.id, claim.worker, claim.now_ms),
    ]  # fmt: skip
    abandoned = abandoned_attempt(control, claim.id)
    if abandoned is not None:
        data: dict[str, Any] = {"attempt": abandoned, "call": 0, "keeps_answer": journal.answer is not None}
        commands += [("HDEL", scope.keys.ctl, "live"), *tell(scope, ref, EventType.ATTEMPT_VOIDED, data)]
    if journal.answer is None:
        # The driver may be called from here on; this saves the round trip of a record of its own.
        commands.append(("HSET", request.journal, f"try:{claim.id}", claim.now_ms))
    if not control.started_ms:
        commands += request.begin_execution(claim.now_ms)
    elif control.has_waited:
        commands.append(("HSET", scope.keys.session, "status", "in_progress"))
    if control.phase == "wait":
        commands.append(("HSET", scope.keys.ctl, "phase", "run", "not_before", 0))
        commands += resumed_event(scope, control, {"cause": "time"})
    if control.started_ms and claim.attempt > 1:
        commands += tell(scope, ref, EventType.STEP_RECOVERED, {"attempt": claim.attempt, "worker": claim.worker})
    elif control.delays:
        commands += tell(scope, ref, EventType.STEP_RESUMED, {"delays": control.delays, "worker": claim.worker})
    return commands
