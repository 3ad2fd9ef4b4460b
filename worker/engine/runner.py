"""`StepRunner.run_step`: one step, whether first, later, retried or resumed. There is no second loop.

claim → guard → infer → call tools → commit
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

from ...config.logs import log_as
from ...config.settings import Settings
from .. import crash_points
from ..agent import AgentRegistry
from ..concurrency import fibers
from ..concurrency.event_loop import EventLoopThread
from ..concurrency.shared_lock import LockHolder, SharedLock
from ..concurrency.tool_threads import Threads, ToolThreads
from ..errors import (
    ClaimLost,
    SessionNotFound,
    StateTooNew,
    StateUnreadable,
    StoreFull,
    StoreUnavailable,
    UnknownAgent,
    VersionConflict,
)
from ..guards import Delay, GuardPoint, GuardView, StopWith, ask_guards, time_left
from ..hooks import HookPoint
from ..redaction import describe_exception, redact
from ..state import SCHEMA_VERSION, ErrorInfo, ExecutionStatus, StopReason
from ..store import Claimed, Committed, NotClaimed, NotClaimedReason, StepRef, Store, Suspect, new_claim_id
from .auxiliary_calls import AuxiliaryCalls, charge
from .inference import Inference
from .interruptions import user_stop
from .leases import Interruption, LeaseKeeper
from .observer import StepObserver
from .outcome import Done, NothingToDo, Outcome, Parked, RetryLater, TakenOver
from .run import Run, milliseconds, moment
from .sticky import StickySessions
from .tool_calls import ToolCalls
from .transitions import AppliedStep, apply_step, failure_text, new_signals, started, step_transition, summary

log = logging.getLogger(__name__)

_ALONE_PATIENCE_SECONDS: Final = 5.0
_ELSEWHERE_SECONDS: Final = 2.0
_CONFLICTS: Final = 20
_FULL_PAUSE_SECONDS: Final = 0.2


class StepRunner:
    """Runs steps in one process."""

    def __init__(
        self,
        store: Store,
        agents: AgentRegistry,
        settings: Settings,
        *,
        worker: str,
        keeper: LeaseKeeper,
        loop: EventLoopThread,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = fibers.sleep,
        threads: Threads | None = None,
        observer: StepObserver | None = None,
    ) -> None:
        """
        Args:
            worker: Name of this worker, unique among all.
            keeper: Keeps the leases; started, or ticked, by whoever made it.
            monotonic: This machine's clock, in seconds.
            sleep: Waits so many seconds.
            threads: Where plain tools of a step run side by side. None: a pool of this runner's own.
            watching: Told what steps do. None: nobody.
        """
        self._store = store
        self._agents = agents
        self._settings = settings
        self._worker = worker
        self._keeper = keeper
        self._monotonic = monotonic
        self._sleep = sleep
        self._gate = SharedLock()
        self._inference = Inference(store, keeper, loop, settings, monotonic=monotonic, sleep=sleep, observer=observer)
        self._auxiliary = AuxiliaryCalls(store, keeper, loop, settings, monotonic=monotonic, sleep=sleep)
        self._calls = ToolCalls(
            store, keeper, loop, settings, threads or ToolThreads.of(settings), monotonic=monotonic, sleep=sleep
        )
        self._watching = observer
        self.sticky = StickySessions(settings, monotonic)
        self.draining = False

    def run_step(self, session_id: str, execution_id: str, step: int) -> Outcome:
        """Run a step if it is due and nobody else does.

        Returns:
            What came of it; `Done.publish` is a message that the caller has to publish.
        Raises:
            StoreUnavailable, StoreFull: Redis is not there or full. Nothing is lost: the sweep finds the step again.
        """
        ref = StepRef(session_id, execution_id, step)
        crash_points.at("c0")
        kept = self.sticky.take(ref)
        if kept is not None:
            run = self._run_of(kept.claimed, kept.asked, kept.until)  # its lease is kept while it waits at the gate
            with self._gate.shared() as entered:
                return self._carried_out(run, entered)
        if self.draining:
            return RetryLater(ref, 0.0, "this worker drains", ref)
        with self._gate.shared() as entered:
            answer = self._take(ref, alone=False)
            if isinstance(answer, Run):
                return self._carried_out(answer, entered)
        if isinstance(answer, Suspect):
            return self._run_alone(ref)
        return answer

    def _run_alone(self, ref: StepRef) -> Outcome:
        with self._gate.alone(_ALONE_PATIENCE_SECONDS) as entered:
            if entered is None:
                return NothingToDo(ref, NotClaimedReason.BUSY)  # it stays due
            answer = self._take(ref, alone=True)
            if isinstance(answer, Run):
                return self._carried_out(answer, entered)
            return NothingToDo(ref, NotClaimedReason.BUSY) if isinstance(answer, Suspect) else answer

    def _carried_out(self, run: Run, entered: LockHolder) -> Outcome:
        """This step, and in burst mode the ones that follow it under the same claim."""
        until = self._monotonic() + self._settings.burst_milliseconds / 1000
        left = self._settings.steps_per_task

        def is_burst() -> bool:
            return left > 0 and self._monotonic() < until

        def stays() -> bool:
            """Asked when the step is done: whether this process claims the next one, too."""
            if self.draining or self._gate.is_closed:
                return False
            return is_burst() or self.sticky.may_stay(run.stays_until)

        while True:
            left -= 1
            # A thread that was given up must not keep suspects from running, nor everybody else from running again.
            run.held.on_abandon = lambda: self._gate.leave(entered)
            try:
                outcome, following, asked = self._watched(run, stays)
            finally:
                self._keeper.drop(run.held)
            if following is None or (not is_burst() and self.sticky.keep(following, asked, run.stays_until)):
                return outcome
            run = self._run_of(following, asked, run.stays_until)
            log_as(session_id=run.ref.session_id, execution_id=run.ref.execution_id, step=run.ref.step)

    def _watched(self, run: Run, stays: Callable[[], bool]) -> tuple[Outcome, Claimed | None, float]:
        if self._watching is None:
            return self._one(run, stays)
        outcome: Outcome | None = None
        self._watching.step_begun(run)
        try:
            outcome, following, asked = self._one(run, stays)
            return outcome, following, asked
        finally:
            self._watching.step_ended(run, outcome)

    def _one(self, run: Run, stays: Callable[[], bool]) -> tuple[Outcome, Claimed | None, float]:
        try:
            run = self._guard(run)
            run = self._infer(run)
            fibers.line_up()
            run = self._call_tools(run)
            fibers.line_up()
            asked = self._monotonic()
            return *self._commit(run, stays), asked
        except StateUnreadable as error:  # of the journal or the inbox
            return self._unreadable(run.ref, error), None, 0.0

    # --- claim ------------------------------------------------------------------------------------------------

    def _take(self, ref: StepRef, *, alone: bool) -> Run | Suspect | Outcome:
        asked = self._monotonic()
        try:
            answer = self._claim(ref, alone=alone)
        except StateTooNew as error:
            return self._too_new(ref, error)
        except (StateUnreadable, SessionNotFound) as error:  # not found: its control fields are there, and nothing else
            return self._unreadable(ref, error)
        if isinstance(answer, NotClaimed):
            return NothingToDo(ref, answer.reason)
        if isinstance(answer, Suspect):
            return answer
        try:
            until = self.sticky.stays_until(answer.waiting, others=self._keeper.running)
            return self._run_of(answer, asked, until)
        except UnknownAgent as error:
            return self._unknown_agent(answer, error)

    def _unreadable(self, ref: StepRef, error: Exception) -> Outcome:
        self._store.steps.park(ref, str(error))
        log.error("session %s is parked: %s", ref.session_id, error)
        return Parked(ref, str(error))

    def _claim(self, ref: StepRef, *, alone: bool) -> Claimed | Suspect | NotClaimed:
        """Ask again with the same claim id when a reply is lost: it is the same claim."""
        claim_id = new_claim_id()
        try:
            return self._store.steps.claim(ref, claim_id, self._worker, alone=alone)
        except StoreUnavailable:
            return self._store.steps.claim(ref, claim_id, self._worker, alone=alone)

    def _run_of(self, claimed: Claimed, asked: float, until: float) -> Run:
        agent = self._agents[claimed.loaded.agent]
        seconds = agent.step_timeout or self._settings.step_timeout_seconds
        held = self._keeper.hold(claimed.claim, seconds, asked)
        state = started(claimed.loaded.state, agent.limits, moment(claimed.loaded.started_ms))
        assert state.execution is not None
        left = time_left(state.execution, moment(claimed.claim.now_ms))
        held.limit = None if left is None else asked + left
        taken, seen = self._monotonic(), state.store.extents
        ref, loaded = claimed.claim.ref, claimed.loaded
        return Run(
            ref, claimed.claim, loaded, held, agent, state, asked, taken, seen, seen, until, asking=self._auxiliary.ask
        )

    def _unknown_agent(self, claimed: Claimed, error: UnknownAgent) -> Outcome:
        """Another worker may have it; when none has, the session is parked under that reason."""
        ref = claimed.claim.ref
        if any(error.name in facts.get("agents", {}) for facts in self._store.registry.workers().values()):
            publish = self._store.steps.release(
                claimed.claim, delay_ms=round(_ELSEWHERE_SECONDS * 1000), give_back=True
            )
            return RetryLater(ref, _ELSEWHERE_SECONDS, f"this worker does not offer agent {error.name!r}", publish)
        self._store.steps.park(ref, f"no live worker offers agent {error.name!r}")
        return Parked(ref, str(error))

    def _too_new(self, ref: StepRef, error: StateTooNew) -> Outcome:
        newer = any(facts.get("schema", 0) >= error.version for facts in self._store.registry.workers().values())
        if newer:
            return NothingToDo(ref, NotClaimedReason.BUSY)  # it stays due, for a worker of that version
        self._store.steps.park(ref, str(error))
        return Parked(ref, str(error))

    # --- guard ------------------------------------------------------------------------------------------------

    def _guard(self, run: Run) -> Run:
        loaded = run.loaded
        if loaded.attempts > self._settings.attempts_limit:
            error = ErrorInfo(
                kind="poison", message=f"step {run.ref.step} ended {loaded.attempts - 1} times without an answer"
            )
            return run.failing(error, StopReason.RETRY_LIMIT_REACHED)
        if loaded.cancel is not None:
            return run.stopping(user_stop())
        try:
            run = _with_before_hooks(run)
            charged = charge(run, run.state)
            run = run if charged is run.state else run.changed(state=charged)
            view = GuardView(
                GuardPoint.BEFORE_CALL, run.state, run.ref.session_id, run.execution, moment(loaded.now_ms)
            )
            verdict = ask_guards(run.agent.all_guards, view)
        except Exception as error:  # noqa: BLE001 - a guard or hook of the user's
            return self._inference.after_hook_error(run, error)
        if isinstance(verdict, Delay):
            return run if loaded.journal.holds_something else self._put_off(run, verdict)
        signals = new_signals(run.execution, verdict.signals) if isinstance(verdict, StopWith) else ()
        standing = run.execution.continuation
        if standing.is_continuation_requested:  # a hook overrides the limits, for this step
            return run.changed(signals=(*run.signals, *signals))
        stops = isinstance(verdict, StopWith) or standing.should_stop()
        return run.stopping(*signals) if stops else run

    def _put_off(self, run: Run, verdict: Delay) -> Run:
        left = time_left(run.execution, moment(run.loaded.now_ms))
        seconds = verdict.seconds if left is None else min(verdict.seconds, left)
        publish = self._store.steps.release(run.claim, delay_ms=milliseconds(seconds), give_back=True)
        return run.changed(decided=RetryLater(run.ref, seconds, redact(verdict.reason), publish))

    # --- infer, call tools ------------------------------------------------------------------------------------

    def _infer(self, run: Run) -> Run:
        if run.decided is not None:
            return run
        run = self._inference.infer(run)
        if run.held.interruption is Interruption.CANCEL and not run.forbidden:
            run = run.stopping(user_stop())
        return run

    def _call_tools(self, run: Run) -> Run:
        if run.decided is not None:
            return run
        run = self._calls.call(run)
        if self._watching is not None and run.records:
            self._watching.tools_called(run)
        return run

    # --- commit -----------------------------------------------------------------------------------------------

    def _commit(self, run: Run, stays: Callable[[], bool]) -> tuple[Outcome, Claimed | None]:
        if run.decided is not None:
            return run.decided, None
        conflicts = 0
        while conflicts < _CONFLICTS:
            advanced = apply_step(run, self._now(run))
            try:
                committed = self._store.steps.commit(
                    run.claim,
                    run.loaded,
                    step_transition(run, advanced),
                    results=run.unjournaled,
                    keep_claim=not advanced.ended and stays(),
                )
            except ClaimLost:
                return TakenOver(run.ref), None
            except VersionConflict:
                fresh = self._reloaded(run)
                if fresh is None:
                    return TakenOver(run.ref), None
                run, conflicts = fresh, conflicts + 1
                continue
            except (StoreFull, StoreUnavailable) as error:  # what was obtained is kept for as long as the step may take
                if self._keeper.remaining(run.held) <= 0:
                    raise
                log.warning("the commit of step %s of session %s waits: %s", run.ref.step, run.ref.session_id, error)
                run = self._kept(run) if isinstance(error, StoreFull) else run
                self._sleep(_FULL_PAUSE_SECONDS)
                continue
            crash_points.at("c8")
            return self._done(run, advanced, committed), committed.carried
        raise StoreUnavailable(f"session {run.ref.session_id} changes too fast to commit step {run.ref.step}")

    def _kept(self, run: Run) -> Run:
        """Results that Redis has no room to commit: the journal makes room for itself."""
        if not run.unjournaled:
            return run
        try:
            self._store.steps.record_results(run.claim, run.unjournaled)
        except (StoreFull, StoreUnavailable):
            return run
        return run.journaled()

    def _reloaded(self, run: Run) -> Run | None:
        """Somebody saved the session meanwhile: the same answer and results, on what is stored now."""
        try:
            loaded = self._store.steps.reload(run.claim)
        except ClaimLost:
            return None
        state = started(loaded.state, run.agent.limits, moment(loaded.started_ms))
        again = run.changed(loaded=loaded, state=state)
        try:
            return self._inference.shaped_again(_with_before_hooks(again))
        except Exception as error:  # noqa: BLE001 - a hook of the user's
            return again.failing(describe_exception(error), StopReason.ERROR_FORBADE)

    def _now(self, run: Run) -> datetime:
        return moment(run.claim.now_ms + round((self._monotonic() - run.taken) * 1000))

    def _done(self, run: Run, advanced: AppliedStep, committed: Committed) -> Done:
        state, after = advanced.state, committed.state
        if after is not None and after.execution is not None and after.execution.execution_id == run.ref.execution_id:
            state = after  # a stop that came with the inbox has ended it
        execution = state.execution
        assert execution is not None
        publish = committed.next if not committed.is_published else None
        next_step = committed.next.step if committed.next is not None else None
        error = failure_text(advanced.failure, execution)
        same = committed.next is not None and committed.next.execution_id == run.ref.execution_id
        return Done(
            run.ref, publish, committed.next, execution.status,
            summary(run, state, next_step if same else None), error, committed.state,
        )  # fmt: skip


def _with_before_hooks(run: Run) -> Run:
    if run.agent.hook_stack.is_empty:
        return run
    state = run.state
    first = run.loaded.state.execution
    if first is not None and first.status is ExecutionStatus.PENDING:
        state = run.agent_state_hooks(HookPoint.BEFORE_EXECUTION, state)
    state = run.agent_state_hooks(HookPoint.BEFORE_STEP, state)
    return run.changed(state=state, seen=state.store.extents)


def schema_version() -> int:
    """The newest state this package reads; workers tell it to each other."""
    return SCHEMA_VERSION
