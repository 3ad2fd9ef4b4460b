"""The claim phase: takes the right to run a step, and makes a run of it."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from ...config.settings import GROUP_MARK
from ..agent import Agent, AgentRegistry
from ..errors import (
    WRONG_TYPE,
    CeleryAgentsError,
    SessionNotFound,
    StateTooNew,
    StateUnreadable,
    StoreUnavailable,
    UnknownAgent,
)
from ..guards import time_left
from ..moments import moment
from ..state.execution.budget import ExecutionBudget
from ..store.records import Claim, Claimed, ClaimResult, NotClaimed, NotClaimedReason, StepRef, Suspect
from ..store.store import Store
from ..unique import unique_hex
from .applied_step import start_execution, without_provider_time
from .auxiliary_calls import AuxiliaryCalls
from .charges import read_rejected
from .endings import release_and_retry
from .live_writer import RunText
from .outcome import Moved, NothingToDo, Outcome, Parked, RetryLater
from .run import Run
from .run_values import AttemptMemory, ClaimTimes, TimedClaim
from .services import EngineServices
from .sticky import StickySessions
from .transitions import stop_transition

log = logging.getLogger(__name__)

_OTHER_WORKER_SECONDS: Final = 0.5


class StepClaimer:
    """Claims steps for one worker."""

    def __init__(self, services: EngineServices, agents: AgentRegistry, sticky: StickySessions, *, worker: str) -> None:
        self._services = services
        self._store = services.store
        self._agents = agents
        self._sticky = sticky
        self._worker = worker
        self._auxiliary_calls = AuxiliaryCalls(services)
        self._peers = Peers(services.store, services.monotonic)

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
            return self._leave_to_other_worker(answer, error.name)

    def begin_run(self, claim: TimedClaim) -> Run:
        """Make a run of a claim, and keep its lease.

        Raises:
            UnknownAgent: This worker does not offer the session's agent.
        """
        services, claimed = self._services, claim.claimed
        loaded = claimed.loaded
        agent = self._agents[loaded.agent]
        own_claim = self._in_lane(_in_queue_of(agent, claimed.claim))
        seconds = agent.step_timeout or services.settings.step_timeout_seconds
        lease = services.keeper.keep(own_claim, seconds, claim.sent_at)
        started_at, claimed_at = moment(loaded.started_ms), moment(claimed.claim.now_ms)
        default_steps = 0 if agent.has_budget else services.settings.default_max_steps
        state = start_execution(
            without_provider_time(loaded.state, loaded.journal.waited_ms(claimed.claim.now_ms)),
            agent.effective_budget, started_at, resumed_at=claimed_at, default_steps=default_steps,
            budget=loaded.budget,
        )  # fmt: skip
        execution = state.execution
        assert execution is not None

        def left_of(budget: ExecutionBudget) -> float | None:
            return time_left(execution.with_budget(budget), claimed_at)

        lease.followed_until_ms = loaded.followed_until_ms
        if loaded.is_interrupted:
            lease.cut()
        # Counted from before the claim was sent: rather too early than too late for a limit.
        lease.count_time(execution.budget, left_of, since=claim.sent_at)
        extents = state.store.extents
        return Run(
            claim=own_claim,
            loaded=loaded,
            lease=lease,
            agent=agent,
            state=state,
            times=ClaimTimes(claim.sent_at, services.monotonic(), claim.sticky_until),
            seen_extents=extents,
            stored_extents=extents,
            memory=AttemptMemory(rejected=read_rejected(loaded.journal), jobs=[*loaded.journal.jobs]),
            make_auxiliary_call=self._auxiliary_calls.ask,
            live=RunText(services.live, claimed, lease, monotonic=services.monotonic),
        )

    def park(self, ref: StepRef, error: Exception) -> Parked:
        """Take a session that no worker can read out of the due index.

        Raises:
            StoreUnavailable: Not the session is damaged, but a key that all sessions share. The step stays due.
        """
        if isinstance(error, StateUnreadable) and error.part == WRONG_TYPE:
            self._store.housekeeping.expect_shared_keys(ref.queue)
        self._store.steps.park(ref, str(error))
        log.error("session %s is parked: %s", ref.session_id, error)
        return Parked(ref, str(error))

    def _claim(self, ref: StepRef, *, alone: bool) -> ClaimResult:
        """Claim; after a lost reply once more with the same id, since that is the same claim."""
        claim_id = unique_hex()
        try:
            return self._store.steps.claim(ref, claim_id, self._worker, alone=alone)
        except StoreUnavailable:
            # Redis may have taken the claim; a fresh id would wait for its lease to end.
            return self._store.steps.claim(ref, claim_id, self._worker, alone=alone)

    def _in_lane(self, claim: Claim) -> Claim:
        """The claim with the lane for the session's next steps, where it has none from before the shares were set."""
        services, ref = self._services, claim.ref
        shares = services.gate.view.shares
        if ref.lane or shares is None:
            return claim
        try:
            labels = services.store.flow.labels_of(ref.session_id)
        except CeleryAgentsError:  # the next step's worker asks again
            return claim
        return replace(claim, ref=replace(ref, lane=shares.lane_for(labels)))

    def _leave_to_other_worker(self, claimed: Claimed, agent: str) -> Outcome:
        """Move a step whose agent this worker does not offer to a worker that offers it, or let it wait for one."""
        claim, steps = claimed.claim, self._store.steps
        queue = self._peers.queue_for(agent, besides=claim.ref.queue)
        if queue is not None:
            return Moved(claim.ref, queue, publish=steps.move(claim, queue))
        if self._peers.offer(agent):  # it drains, or is of a version without a queue for this
            why = f"this worker does not offer agent {agent!r}"
            return release_and_retry(self._store, claim, why, delay_seconds=_OTHER_WORKER_SECONDS)
        steps.wait_for_worker(claim, agent)
        if not claimed.loaded.journal.was_paid_for and self._end_if_stopped(claim):
            return NothingToDo(claim.ref, NotClaimedReason.ENDED)
        offered = self._store.registry.offers()
        if agent in offered:  # by a worker that looked for waiting sessions just before this one waited
            self._store.housekeeping.offer({agent: offered[agent]})
        why = f"no live worker offers agent {agent!r}"
        return RetryLater(claim.ref, self._services.settings.agent_grace_seconds, why)

    def _end_if_stopped(self, claim: Claim) -> bool:
        """End an execution whose stop was asked of this claim, which has begun nothing and is given up by now."""
        ref, sessions = claim.ref, self._store.sessions
        try:
            is_stopping = sessions.step_facts(ref.session_id).is_stopping
            return is_stopping and sessions.stop(ref.session_id, ref.execution_id, stop_transition).outcome == "changed"
        except SessionNotFound:  # it was deleted meanwhile
            return True

    def _leave_to_newer_worker(self, ref: StepRef, error: StateTooNew) -> Outcome:
        """Leave a step due whose state a live worker can read; park it when none can."""
        if any(facts["schema"] >= error.version for facts in self._store.registry.workers().values()):
            return NothingToDo(ref, NotClaimedReason.BUSY)
        self._store.steps.park(ref, str(error))
        return Parked(ref, str(error))


def _in_queue_of(agent: Agent, claim: Claim) -> Claim:
    """The claim with the queue for the session's next steps: the agent's own, or that of the worker group."""
    queue = agent.queue or (claim.ref.queue if claim.ref.queue.startswith(GROUP_MARK) else "")
    return claim if queue == claim.ref.queue else replace(claim, ref=replace(claim.ref, queue=queue))


Workers = Mapping[str, Mapping[str, Any]]

# Many steps of such agents may come at once; workers register every five seconds.
_CACHE_SECONDS: Final = 1.0


class Peers:
    """Chooses the queue where a step of another worker's agent is run."""

    def __init__(self, store: Store, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._monotonic = monotonic
        self._workers: Workers = {}
        self._read_at = float("-inf")

    def queue_for(self, agent: str, *, besides: str) -> str | None:
        """Name of a queue that only workers take which offer the agent; None when there is none.

        A worker with more free slots is chosen more often.

        Args:
            besides: The queue that the step came from.
        """
        found = _choose_queue(self._read_cached(), agent, besides)
        return found if found is not None else _choose_queue(self._read(), agent, besides)

    def offer(self, agent: str) -> bool:
        """Whether a live worker offers the agent, as the registry says now."""
        return any(agent in facts["agents"] for facts in self._read().values())

    def _read_cached(self) -> Workers:
        return self._workers if self._monotonic() - self._read_at < _CACHE_SECONDS else self._read()

    def _read(self) -> Workers:
        self._workers, self._read_at = self._store.registry.workers(), self._monotonic()
        return self._workers


def _choose_queue(workers: Workers, agent: str, besides: str) -> str | None:
    free: dict[str, int] = {}
    for facts in workers.values():
        if agent not in facts["agents"] or facts["draining"]:
            continue
        queue = facts["agent_queues"].get(agent) or facts["group"]
        if queue and queue != besides and queue in facts["queues"]:
            free[queue] = free.get(queue, 1) + max(0, facts["slots"] - facts["running"])
    return random.choices(list(free), weights=list(free.values()))[0] if free else None
