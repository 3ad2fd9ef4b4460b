"""The claim phase: takes the right to run a step, and makes a run of it."""

from __future__ import annotations

import logging
from typing import Final

from ..agent import AgentRegistry
from ..errors import SessionNotFound, StateTooNew, StateUnreadable, StoreUnavailable, UnknownAgent
from ..guards import time_left
from ..store import Claimed, ClaimResult, NotClaimed, NotClaimedReason, StepRef, Suspect, new_claim_id
from .applied_step import start_execution
from .auxiliary_calls import AuxiliaryCalls
from .outcome import NothingToDo, Outcome, Parked
from .releases import release_and_retry
from .run import Run, TimedClaim, moment
from .services import EngineServices
from .sticky import StickySessions

log = logging.getLogger(__name__)

_OTHER_WORKER_SECONDS: Final = 2.0


class StepClaimer:
    """Claims steps for one worker."""

    def __init__(self, services: EngineServices, agents: AgentRegistry, sticky: StickySessions, *, worker: str) -> None:
        self._services = services
        self._store = services.store
        self._agents = agents
        self._sticky = sticky
        self._worker = worker
        self._auxiliary_calls = AuxiliaryCalls(services)

    def claim_step(self, ref: StepRef, *, alone: bool) -> Run | Suspect | Outcome:
        """Claim a step that may be due.

        Args:
            alone: Nothing else runs in this process, so that a suspect may.
        """
        sent_at = self._services.monotonic()
        try:
            answer = self._claim(ref, alone=alone)
        except StateTooNew as error:
            return self._leave_to_newer_worker(ref, error)
        except (StateUnreadable, SessionNotFound) as error:  # not found: only its control fields are there
            return self.park(ref, error)
        if isinstance(answer, NotClaimed):
            return NothingToDo(ref, answer.reason)
        if isinstance(answer, Suspect):
            return answer
        try:
            sticky_until = self._sticky.stays_until(answer.waiting, others=self._services.keeper.running)
            return self.begin_run(TimedClaim(answer, sent_at, sticky_until))
        except UnknownAgent as error:
            return self._leave_to_other_worker(answer, error)

    def begin_run(self, claim: TimedClaim) -> Run:
        """Make a run of a claim, and keep its lease.

        Raises:
            UnknownAgent: This worker does not offer the session's agent.
        """
        services, claimed = self._services, claim.claimed
        loaded = claimed.loaded
        agent = self._agents[loaded.agent]
        seconds = agent.step_timeout or services.settings.step_timeout_seconds
        lease = services.keeper.hold(claimed.claim, seconds, claim.sent_at)
        state = start_execution(loaded.state, agent.limits, moment(loaded.started_ms))
        assert state.execution is not None
        left = time_left(state.execution, moment(claimed.claim.now_ms))
        # Counted from before the claim was sent: rather too early than too late for a limit.
        lease.budget_ends = None if left is None else claim.sent_at + left
        extents = state.store.extents
        return Run(
            ref=claimed.claim.ref,
            claim=claimed.claim,
            loaded=loaded,
            lease=lease,
            agent=agent,
            state=state,
            claim_sent_at=claim.sent_at,
            claimed_at=services.monotonic(),
            sticky_until=claim.sticky_until,
            seen_extents=extents,
            stored_extents=extents,
            asking=self._auxiliary_calls.ask,
        )

    def park(self, ref: StepRef, error: Exception) -> Parked:
        """Take a session that no worker can read out of the due index."""
        self._store.steps.park(ref, str(error))
        log.error("session %s is parked: %s", ref.session_id, error)
        return Parked(ref, str(error))

    def _claim(self, ref: StepRef, *, alone: bool) -> ClaimResult:
        """Claim; after a lost reply once more with the same id, since that is the same claim."""
        claim_id = new_claim_id()
        try:
            return self._store.steps.claim(ref, claim_id, self._worker, alone=alone)
        except StoreUnavailable:
            # Redis may have taken the claim; a fresh id would wait for its lease to end.
            return self._store.steps.claim(ref, claim_id, self._worker, alone=alone)

    def _leave_to_other_worker(self, claimed: Claimed, error: UnknownAgent) -> Outcome:
        """Release a step whose agent a live worker offers; park it when none does."""
        ref = claimed.claim.ref
        if any(error.name in facts.get("agents", {}) for facts in self._store.registry.workers().values()):
            why = f"this worker does not offer agent {error.name!r}"
            return release_and_retry(self._store, claimed.claim, why, delay_seconds=_OTHER_WORKER_SECONDS)
        self._store.steps.park(ref, f"no live worker offers agent {error.name!r}")
        return Parked(ref, str(error))

    def _leave_to_newer_worker(self, ref: StepRef, error: StateTooNew) -> Outcome:
        """Leave a step due whose state a live worker can read; park it when none can."""
        if any(facts.get("schema", 0) >= error.version for facts in self._store.registry.workers().values()):
            return NothingToDo(ref, NotClaimedReason.BUSY)
        self._store.steps.park(ref, str(error))
        return Parked(ref, str(error))
