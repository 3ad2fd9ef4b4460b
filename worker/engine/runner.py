"""`StepRunner.run_step` runs one step, whether first, later, retried or resumed.

A step is five phases over an immutable run: claim → guard → infer → call tools → wait or commit.
"""

from __future__ import annotations

from typing import Final

from ...config.logs import log_as
from .. import crash_points
from ..agent import AgentRegistry
from ..concurrency.shared_lock import LockHolder, SharedLock
from ..errors import ClaimLost, StateUnreadable
from ..state.agent_fields import PACKED_SCHEMA_VERSION
from ..store.records import NotClaimedReason, StepRef, Suspect
from .claiming import StepClaimer
from .committing import StepCommitter, StepWaiter
from .guarding import StepNotEnded, guard_run, spare_hooks
from .inference import Inference
from .outcome import NothingToDo, Outcome, RetryLater, TakenOver
from .remote_tools import RemoteTools
from .run import Run
from .services import EngineServices
from .sticky import KeepClaimPolicy, StickySessions
from .tool_calls import ToolCalls

_PATIENCE_SECONDS: Final = 5.0


class StepRunner:
    """Runs steps in one process.

    Attributes:
        sticky: The sessions whose next steps this worker runs itself.
        draining: Set when the worker ends: it begins no step, except those it has claimed.
    """

    def __init__(self, services: EngineServices, agents: AgentRegistry, *, worker: str) -> None:
        """
        Args:
            worker: Name of this worker, unique among all.
        """
        self._services = services
        self._lock = SharedLock()
        self.sticky = StickySessions(services.settings, services.monotonic)
        self.draining = False
        self._claimer = StepClaimer(services, agents, self.sticky, worker=worker)
        self._remote_tools = RemoteTools(services)
        self._inference = Inference(services)
        self._tool_calls = ToolCalls(services)
        self._waiter = StepWaiter(services)
        self._committer = StepCommitter(services, self._inference)

    def run_step(self, ref: StepRef) -> Outcome:
        """Run a step if it is due and no other worker runs it.

        Args:
            ref: As its message names it, with the queue that the message came from.
        Returns:
            What came of it; `Done.publish` is a message that the caller has to publish.
        Raises:
            StoreUnavailable, StoreFull: Redis is away or full. Nothing is lost: the sweep finds the step again.
        """
        crash_points.at("c0")
        kept = self.sticky.take(ref)
        if kept is not None:
            run = self._claimer.begin_run(kept)  # its lease is renewed while it waits for the lock
            with self._lock.shared() as holder:
                return self._run_claimed(run, holder)
        if self.draining:
            return self._give_back(ref)
        with self._lock.shared() as holder:
            claimed = self._give_back(ref) if self.draining else self._claimer.claim_step(ref, alone=False)
            if isinstance(claimed, Run):
                return self._run_claimed(claimed, holder)
        return self._run_alone(ref) if isinstance(claimed, Suspect) else claimed

    def _give_back(self, ref: StepRef) -> Outcome:
        return RetryLater(ref, 0.0, "this worker drains", publish=ref)

    def _run_alone(self, ref: StepRef) -> Outcome:
        """Run a suspect, which may have ended its process, while nothing else runs in this one, or leave it due."""
        with self._lock.exclusive(_PATIENCE_SECONDS) as holder:
            if holder is None:
                return NothingToDo(ref, NotClaimedReason.BUSY)
            claimed = self._give_back(ref) if self.draining else self._claimer.claim_step(ref, alone=True)
            if isinstance(claimed, Run):
                return self._run_claimed(claimed, holder)
            return NothingToDo(ref, NotClaimedReason.BUSY) if isinstance(claimed, Suspect) else claimed

    def _run_claimed(self, run: Run, holder: LockHolder) -> Outcome:
        """Run a claimed step, and in a burst the steps that follow it."""
        policy = KeepClaimPolicy(
            self._services.settings,
            self.sticky,
            monotonic=self._services.monotonic,
            must_become_free=lambda: self.draining or self._lock.is_closed,
        )
        while True:
            policy.count_step()
            # An abandoned thread must not keep suspects from running alone, nor the others from running again.
            run.lease.on_abandon = lambda: self._lock.leave(holder)
            try:
                run = self._run_observed(run, policy)
            finally:
                self._services.keeper.drop(run.lease)
                self._services.concurrency.leave(run)
            assert run.outcome is not None
            if run.next_claim is None or (not policy.is_burst() and self.sticky.keep(run.next_claim)):
                return run.outcome
            run = self._claimer.begin_run(run.next_claim)
            log_as(session_id=run.ref.session_id, execution_id=run.ref.execution_id, step=run.ref.step)

    def _run_observed(self, run: Run, policy: KeepClaimPolicy) -> Run:
        observer = self._services.observer
        if observer is None:
            return self._run_phases(run, policy)
        decided: Run | None = None
        observer.step_begun(run)
        try:
            decided = self._run_phases(run, policy)
            return decided
        finally:
            observer.step_ended(run, None if decided is None else decided.outcome)

    def _run_phases(self, run: Run, policy: KeepClaimPolicy) -> Run:
        try:
            run = guard_run(run, self._services, self._inference.resolve_hook_error)
            run = self._inference.infer(spare_hooks(self._adopt_tools(run), self._services.settings))
            run = self._call_tools(run)
            return self._committer.commit(run, policy)
        except ClaimLost:  # what it has obtained is in the journal, or the new owner obtains it
            return run.decide(TakenOver(run.ref))
        except (StateUnreadable, StepNotEnded) as error:  # unreadable: the journal or the inbox
            return run.decide(self._claimer.park(run.ref, error))

    def _adopt_tools(self, run: Run) -> Run:
        """Give the agent the tools of its MCP servers; an outage delays the step as one of the provider does."""
        try:
            return self._remote_tools.adopt(run)
        except StateUnreadable:
            raise
        except Exception as error:  # noqa: BLE001 - an outage, or a function of the user's
            return self._inference.resolve_hook_error(run, error)

    def _call_tools(self, run: Run) -> Run:
        """Run what can run; the run is decided when it waits, and continues when an answer came meanwhile."""
        run = self._tool_calls.call(run)
        while run.progress.is_waiting and run.outcome is None:
            run = self._tool_calls.call(self._waiter.wait(run))
        return run


def schema_version() -> int:
    """The newest schema of the state that this package reads; workers tell it to each other."""
    return PACKED_SCHEMA_VERSION
