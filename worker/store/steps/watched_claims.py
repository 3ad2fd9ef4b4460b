"""Claiming a step by WATCH and a transaction: the rules of a claim, for every state that a session can be in.

WATCH session, ctl, journal → read everything → decide → MULTI claim, attempts+1, lease, due → EXEC
"""

from __future__ import annotations

from typing import Any

from ... import crash_points
from ...errors import StateUnreadable
from .. import decoding
from ..control import ControlFields, abandoned_attempt, control_command
from ..database import Command, WatchedTransaction
from ..event_records import EventType, NewEvent
from ..events import event_commands
from ..journal import Journal
from ..records import Claim, Claimed, ClaimResult, NotClaimed, NotClaimedReason, Suspect
from ..sessions import loading
from ..waking import resumed_event
from .claim_request import ClaimRequest, load_claimed


def claim_by_watch(request: ClaimRequest) -> ClaimResult:
    """Look at a session and claim its step where that is allowed.

    Raises:
        Changed: The session has changed, or the reply was lost. The next look finds a claim that was taken.
    """
    scope, ref, claim_id = request.scope, request.ref, request.claim_id
    cached = scope.cache.get(ref.session_id)
    reads = [
        control_command(scope.keys),
        scope.clock.now(),
        ("HGETALL", request.journal),
        *loading.reads(scope, ref.execution_id, cached),
    ]
    with scope.database.watch("claim.read", (scope.keys.session, scope.keys.ctl, request.journal), reads) as watched:
        control = ControlFields.read(watched.replies[0])
        now_ms = scope.clock.milliseconds(watched.replies[1])
        refusal = _refuse(request, control, now_ms) or _refuse_if_claimed_by_another(request, control, watched)
        if refusal is not None:
            return NotClaimed(refusal)
        is_mine = control.claim == claim_id
        if control.attempts + 1 >= scope.settings.suspect_attempts and not request.alone and not is_mine:
            return Suspect(control.attempts)
        journal = decoding.journal(watched.replies[2])
        session = loading.finish(scope, ref.execution_id, cached, watched, watched.replies[3:])
        if not request.is_next_in(session.state):
            raise StateUnreadable("head", "it tells of another execution or step than the control fields")
        claim = request.grant(attempt=control.attempts + (not is_mine), now_ms=now_ms)
        if not is_mine:
            watched.commit("claim.exec", _claim_commands(request, control, claim, journal))
    crash_points.at("c1")
    if control.has_waited:
        crash_points.at("w3")
    return Claimed(claim, load_claimed(claim, session, control, journal))


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
    request: ClaimRequest, control: ControlFields, watched: WatchedTransaction
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
        event = NewEvent(type=EventType.ATTEMPT_VOIDED, execution_id=ref.execution_id, step=ref.step, data=data)
        commands += [("HDEL", scope.keys.ctl, "live"), *event_commands(scope, [event])]
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
        data = {"attempt": claim.attempt, "worker": claim.worker}
        event = NewEvent(type=EventType.STEP_RECOVERED, execution_id=ref.execution_id, step=ref.step, data=data)
        commands += event_commands(scope, [event])
    elif control.delays:
        data = {"delays": control.delays, "worker": claim.worker}
        event = NewEvent(type=EventType.STEP_RESUMED, execution_id=ref.execution_id, step=ref.step, data=data)
        commands += event_commands(scope, [event])
    return commands
