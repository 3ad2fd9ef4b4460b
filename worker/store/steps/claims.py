"""Claiming a step: by one script where the session is as expected, else by WATCH and a transaction.

    WATCH session, ctl, journal → read everything → decide → MULTI claim, attempts+1, lease, due → EXEC

Whatever the script does not expect, and a claim whose reply was lost, goes that way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ... import crash_points
from ...errors import StateUnreadable
from .. import fields, primaries
from ..cache import CachedSession
from ..context import SessionScope, StorePart, TooManyConflicts
from ..control import ControlFields, abandoned_attempt, control_command
from ..database import Changed, Command, WatchedTransaction
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
from ..waking import resumed_event
from .scripted_claims import ClaimRequest, claim_by_script


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
        request = ClaimRequest(scope=scope, ref=ref, claim_id=claim_id, worker=worker, alone=alone)
        claimed = claim_by_script(request)
        if claimed is not None:
            return claimed
        try:
            return scope.retry(lambda: _claim_by_watch(request), f"claim step {ref.step}")
        except TooManyConflicts:
            return NotClaimed(NotClaimedReason.BUSY)

    def reload(self, claim: Claim) -> LoadedSession:
        """Load the session as stored now, for the same claim, after another transaction has saved it.

        Raises:
            ClaimLost: The claim is no longer valid.
        """
        scope = self._context.session(claim.ref.session_id)
        cached = scope.cache.get(scope.session_id)
        return scope.retry(lambda: _reload(scope, claim, cached), "be read")


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
        return _load_claimed(asked, session, control, read_journal(watched.replies[2], control.retries))


def _reads_with_journal(scope: SessionScope, ref: StepRef, cached: CachedSession | None) -> list[Command]:
    return [
        control_command(scope.keys),
        scope.clock.now(),
        ("HGETALL", scope.keys.journal(ref.execution_id, ref.step)),
        *loading.reads(scope, ref.execution_id, cached),
    ]


def _load_claimed(claim: Claim, session: CachedSession, control: ControlFields, journal: Journal) -> LoadedSession:
    """The session of a claim, as its control fields and its journal were read with it."""
    return LoadedSession(
        session=session,
        journal=journal,
        cancel=control.requested_stop,
        attempts=claim.attempt,
        delays=control.delays,
        delayed_since_ms=control.delayed_ms,
        tried_since_ms=control.tried_since_ms(claim.now_ms),
        started_ms=control.started_ms or claim.now_ms,
        now_ms=claim.now_ms,
        legs=control.legs,
        hold=control.hold,
        followed_until_ms=control.followed_until_ms,
        budget=control.changed_budget,
        is_interrupted=control.is_interrupted,
        carries_on=_carries_on(control, claim),
    )


def _carries_on(control: ControlFields, claim: Claim) -> bool:
    """Whether the claim before was lost, or its time was over: one that was given back otherwise has left no worker."""
    return claim.attempt > 1 and bool(control.worker) and control.claim != claim.id


def _claim_by_watch(request: ClaimRequest) -> ClaimResult:
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
        refusal = _refuse(request, control, now_ms) or _refuse_if_claimed_by_another(request, control, watched, now_ms)
        if refusal is not None:
            return NotClaimed(refusal)
        is_mine = control.claim == claim_id
        if control.attempts + 1 >= scope.settings.suspect_attempts and not request.alone and not is_mine:
            return Suspect(control.attempts)
        journal = read_journal(watched.replies[2], control.retries)
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
    request: ClaimRequest, control: ControlFields, now_ms: int
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
    request: ClaimRequest, control: ControlFields, watched: WatchedTransaction, now_ms: int
) -> NotClaimedReason | None:
    """Refuse if another claim's lease is alive, or may have expired during a Redis outage."""
    if not control.claim or control.claim == request.claim_id:
        return None
    if request.scope.is_lease_alive(control.claim, "claim.lease", watched):
        return NotClaimedReason.BUSY
    # Leases end while Redis is down or moves; their holders need one lease to come back, or every step would be paid
    # twice.
    scope, shard = request.scope, request.scope.keys.shard
    uptime, *replies = watched.pipeline("claim.uptime", [scope.clock.uptime(), *primaries.reads(shard)])
    primary = primaries.read_primary(shard, now_ms, *replies)
    if primary.notes:
        watched.pipeline("claim.primary", primary.notes)
    has_settled = primary.has_settled(now_ms, scope.context.lease_ms)
    if scope.clock.uptime_seconds(uptime) < scope.settings.lease_seconds or not has_settled:
        return NotClaimedReason.RESTARTED
    return None


def _recovery(control: ControlFields, claim: Claim, journal: Journal) -> dict[str, Any]:
    """The data of the event `step_recovered`: what the lost attempt had done by then."""
    begun = {str(index): each.at_ms for index, each in journal.begun.items() if each.claim == control.claim}
    return {
        "attempt": claim.attempt,
        "worker": claim.worker,
        "lost_worker": control.worker,
        "since_ms": journal.asked_ms.get(control.claim) or None,
        "answered": journal.answer is not None,
        "begun": {index: at_ms for index, at_ms in begun.items() if int(index) not in journal.results},
    }


def _claim_commands(request: ClaimRequest, control: ControlFields, claim: Claim, journal: Journal) -> list[Command]:
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
        # The driver may be called from here on; this saves the round trip of a separate record.
        commands.append(("HSET", request.journal, f"try:{claim.id}", claim.now_ms))
    if not control.started_ms:
        commands += request.begin_execution(claim.now_ms)
    elif control.has_waited:
        commands.append(("HSET", scope.keys.session, "status", "in_progress"))
    if control.phase == "wait":
        commands.append(("HSET", scope.keys.ctl, "phase", "run", "not_before", 0))
        commands += resumed_event(scope, control, {"cause": "time"})
    if control.started_ms and _carries_on(control, claim):
        commands += tell(scope, ref, EventType.STEP_RECOVERED, _recovery(control, claim, journal))
    elif control.delays:
        commands += tell(scope, ref, EventType.STEP_RESUMED, {"delays": control.delays, "worker": claim.worker})
    return commands
