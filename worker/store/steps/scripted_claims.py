"""Claiming a step by one script, where the session is as expected.

The script compares the control fields and what else is expected, writes the claim, and reads what this process lacks
where that is little. It may only grant what the way by WATCH in `claims` would grant. The rest is read right behind it:
no other process saves a session whose claim is taken, and what is saved after its lease has another version than the
commit expects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ... import crash_points
from ...errors import StateTooNew, StateUnreadable
from ...moments import unix_ms
from ...state.agent_state import AgentState
from ...state.execution.status import ExecutionStatus
from .. import fields
from ..bookkeeping import remembers
from ..cache import CachedSession
from ..context import SessionScope
from ..control import UNCLAIMED
from ..database import Command, Guard, Reply
from ..event_records import EventType
from ..events import tell
from ..records import Claim, Claimed, LoadedSession, StepRef
from ..sessions import loading
from .leases import LeaseVerbs

# Redis needs three times as long for what a script reads, so no more missed steps than these are read by the script.
_STEPS_READ: Final = 4


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """A worker that wants to run a step; its fields are those of `ClaimVerbs.claim`."""

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
        return execution is not None and not execution.status.is_terminal() and self.ref.follows(execution)


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
        attempts=claim.attempt,
        started_ms=started_ms,
        now_ms=claim.now_ms,
        followed_until_ms=followed_until_ms,
    )
    return Claimed(claim, loaded, waiting)


def claim_by_script(request: ClaimRequest) -> Claimed | None:
    """Claim a step for the first time; None when anything is not as expected: nothing was decided.

    Raises:
        StateTooNew: A newer version of this package has written the session; the claim was given back.
    """
    now_ms = request.scope.clock.estimate_ms()
    plan = None if now_ms is None else _plan(request, now_ms)
    return None if plan is None else plan.run()


def _plan(request: ClaimRequest, now_ms: int) -> _ScriptedClaim | None:
    """Say what is expected, by what this process has cached of the session."""
    scope, ref = request.scope, request.ref
    latest = scope.cache.latest(scope.session_id)
    if ref.legs or (latest is not None and _waits_at(latest.state, ref)):
        return None  # its journal is there, which no script expects
    if latest is not None and _steps_behind(latest.state, ref) == 0:
        # The version alone does not tell: another worker's commit may have the same, and one that Redis lost.
        stored = (latest.version, latest.bookkeeping.lineage)
        lineage: Guard = (("HMGET", scope.keys.session, "version", "lineage"), stored)
        return _ScriptedClaim(request, now_ms, "claim.attempt", session=latest, is_current=True, guards=[lineage])
    # A staged session may belong to a commit that fails. Only a committed one may be the base of an incremental read.
    session = None if latest is None else scope.cache.get(scope.session_id)
    behind = None if session is None else _steps_behind(session.state, ref)
    if session is None or behind is None or not remembers(behind):
        return _plan_unseen(request, now_ms)
    if behind < 0:
        return None
    if behind <= _STEPS_READ:
        reads = loading.reads(scope, ref.execution_id, session)
        return _ScriptedClaim(request, now_ms, "claim.behind", session=session, reads=reads)
    return _ScriptedClaim(request, now_ms, "claim.first", session=session, guards=[_exists(request)])


def _plan_unseen(request: ClaimRequest, now_ms: int) -> _ScriptedClaim | None:
    """Expect a session that this process has not cached: at step 1 it may be new, and then it has one message."""
    scope, ref = request.scope, request.ref
    if scope.cache.has_met_newer:
        return None
    if ref.step > 1:
        return _ScriptedClaim(request, now_ms, "claim.first", guards=[_exists(request)])
    return _ScriptedClaim(
        request,
        now_ms,
        "claim.new",
        guards=[_exists(request), (("HGET", scope.keys.ctl, "started"), (0,))],
        writes=request.begin_execution(now_ms),
        reads=loading.reads_of_new(scope, ref.execution_id),
    )


def _exists(request: ClaimRequest) -> Guard:
    return ("EXISTS", request.scope.keys.session), (1,)


@dataclass(frozen=True, slots=True)
class _ScriptedClaim:
    """One claim by a script: what is expected and read with it, and the session that was read.

    Attributes:
        now_ms: Redis's time, as it is estimated.
        point: The name of the round trip.
        session: The session as this process has cached it; None: it has cached nothing that it could start from.
        is_current: `session` is what is stored, if the guards hold.
        reads: Read by the script. Empty: what is missing is read behind it.
    """

    request: ClaimRequest
    now_ms: int
    point: str
    session: CachedSession | None = None
    is_current: bool = False
    guards: Sequence[Guard] = ()
    writes: Sequence[Command] = ()
    reads: Sequence[Command] = ()

    def run(self) -> Claimed | None:
        """Claim and load; None when nothing was decided, or the claim has to be looked at by a WATCH."""
        scope, publisher = self.request.scope, self.request.scope.context.publisher
        counting = publisher.count_commands(self.request.ref.queue)
        writes = [*self._claim_commands(), *self.writes, *counting]
        replies = scope.database.compare_and_apply(
            self.point, [*self._unclaimed_guards(), *self.guards], [*writes, *self.reads]
        )
        if replies is None:
            return None
        crash_points.at("c1")
        waiting = fields.number(replies[len(writes) - 1]) if counting else None
        claim = self.request.grant(attempt=1, now_ms=scope.clock.milliseconds(replies[1]))
        session = self.session if self.is_current else self._load(claim, replies[len(writes) :])
        if session is None:
            return None
        execution = session.state.execution
        assert execution is not None
        started_ms = self.now_ms if execution.started_at is None else unix_ms(execution.started_at)
        return make_first_claimed(claim, session, started_ms, waiting, fields.milliseconds(replies[2]))

    def _unclaimed_guards(self) -> list[Guard]:
        """Expect that no worker has begun the step."""
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
            session = self._join(self.session, replies, limited=self.session is None) if replies else None
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
        cached = None if self.reads else self.session
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
    return state.status is ExecutionStatus.WAITING and ref.follows(state.execution)


def _steps_behind(state: AgentState, ref: StepRef) -> int | None:
    """How many commits a state lacks in front of a step; negative: it has made it. None: of another execution."""
    execution = state.execution
    if execution is None or execution.status is not ExecutionStatus.IN_PROGRESS or execution.started_at is None:
        return None
    return ref.step - execution.step_count - 1 if execution.execution_id == ref.execution_id else None
