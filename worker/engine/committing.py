"""The end of a step: its commit, which makes it real, or its wait, which gives back everything but its journal."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import Final

from .. import crash_points
from ..capability import Capability, CommittedStep
from ..concurrency.fibers import bounded
from ..errors import StoreFull, StoreUnavailable, VersionConflict
from ..moments import moment
from ..redaction import describe_exception
from ..state.agent_state import AgentState
from ..state.execution.signals import StopReason
from ..store.children.making import ChildPlan
from ..store.records import Committed, LoadedSession, NextState, Snapshot, Transition
from ..store.steps.waits import RefusedWait, WaitResult
from ..store.store import SessionActions
from .applied_step import AppliedStep, apply_step, start_execution, without_provider_time
from .asked import describe_asked
from .asked_calls import has_outside_result
from .changed_budgets import adopt_budget, decide_again
from .children import Children
from .endings import OF_STORE, user_stop_signal
from .guarding import run_before_hooks
from .inference import Inference
from .outcome import Done, Waiting
from .request_closing import RequestCloser
from .run import Run
from .run_values import TimedClaim
from .services import EngineServices
from .step_texts import failure_text, summarize_step, summarize_wait
from .sticky import KeepClaimPolicy
from .transitions import step_transition

log = logging.getLogger(__name__)

_MOST_CONFLICTS: Final = 20


class StepCommitter:
    """Commits runs, and with them claims the steps that follow."""

    def __init__(self, services: EngineServices, inference: Inference) -> None:
        self._services = services
        self._steps = services.store.steps
        self._inference = inference

    def commit(self, run: Run, policy: KeepClaimPolicy) -> Run:
        """Commit a run, and claim the following step where the policy says so.

        Returns:
            A decided run.
        Raises:
            StoreUnavailable, StoreFull: Redis gave no answer, or had no room, for as long as the step may live.
            ClaimLost: Another worker has the step.
        """
        if run.outcome is not None:
            return run
        # Taken before the first try: a commit whose reply was lost has set the next lease already.
        sent_at, conflicts = self._services.monotonic(), 0
        while conflicts < _MOST_CONFLICTS:
            applied = apply_step(run, moment(self._services.redis_ms(run)))
            try:
                committed = self._commit_once(run, applied, policy)
            except VersionConflict:
                run, conflicts = self._reload(run), conflicts + 1
                if run.outcome is not None:
                    return run
            except (StoreFull, StoreUnavailable) as error:
                # Redis has no room for the commit; some memory is reserved for the journal.
                run = self._services.try_to_journal_results(run) if isinstance(error, StoreFull) else run
                self._services.wait_for_redis(run, error, "the commit")
            else:
                crash_points.at("c8")
                return _decide(run, applied, committed, sent_at, self._services.store.sessions)
        raise StoreUnavailable(f"session {run.ref.session_id} changes too fast to commit step {run.ref.step}")

    def _commit_once(self, run: Run, applied: AppliedStep, policy: KeepClaimPolicy) -> Committed:
        return self._steps.commit(
            run.claim,
            run.loaded,
            step_transition(run, applied),
            results=run.obtained.unjournaled,
            keep_claim=not applied.has_ended and self._may_keep_claim(run, policy),
        )

    def _may_keep_claim(self, run: Run, policy: KeepClaimPolicy) -> bool:
        return policy.keeps_claim(run.times.sticky_until) and not self._services.concurrency.must_yield(run)

    def _reload(self, run: Run) -> Run:
        """Apply the same answer and results to the session that another transaction has saved meanwhile.

        Returns:
            The run; decided, where its budget was raised: then it goes on from its journal.
        """
        loaded, known = self._steps.reload(run.claim), run.loaded.budget
        # The claim is the same, so the journaled answer and results still hold; only the state is a newer one.
        state = _start_again(run, loaded.state, loaded)
        run = run.changed(loaded=loaded, state=state).with_progress(is_reloaded=True)
        run = run if loaded.budget == known else decide_again(run, self._services)
        if run.outcome is not None:
            return run
        try:
            return self._inference.run_hooks_again(run_before_hooks(run))
        except OF_STORE:
            raise
        except Exception as error:  # noqa: BLE001 - a hook of the user's
            return run.failing(describe_exception(error), StopReason.ERROR_FORBADE)


def _decide(run: Run, applied: AppliedStep, committed: Committed, sent_at: float, sessions: SessionActions) -> Run:
    done = _done(run, applied, committed, sessions)
    if committed.carried is None:
        return run.decide(done)
    return run.changed(outcome=done, next_claim=TimedClaim(committed.carried, sent_at, run.times.sticky_until))


def _done(run: Run, applied: AppliedStep, committed: Committed, sessions: SessionActions) -> Done:
    state, after = applied.state, committed.state
    if after is not None and after.execution is not None and after.execution.execution_id == run.ref.execution_id:
        state = after  # a stop that came with the inbox has ended it
    execution = state.execution
    assert execution is not None
    for each in run.agent.commit_listeners:
        _tell(each, run, state, sessions)
    following = committed.next
    has_more = following is not None and following.execution_id == run.ref.execution_id
    next_step = run.ref.step + 1 if has_more else None
    return Done(
        ref=run.ref,
        publish=committed.woken or (None if committed.is_published else following),
        next=following,
        status=execution.status,
        summary=summarize_step(run, state, next_step),
        error=failure_text(applied.failure, execution),
        state=committed.state,
    )


def _tell(capability: Capability, run: Run, state: AgentState, sessions: SessionActions) -> None:
    """Tell a capability that the step is committed; its error changes nothing."""
    ref = run.ref
    step = CommittedStep(
        session_id=ref.session_id,
        execution_id=ref.execution_id,
        step=ref.step,
        agent=run.agent.name,
        state=state,
        parent=run.parent,
        weight=run.loaded.session.weight,
        note_failed_sinks=partial(sessions.note_failed_sinks, ref.session_id, ref.execution_id),
    )
    try:
        bounded(capability.committed, step)
    except Exception as error:  # noqa: BLE001 - a capability of the user's
        described = describe_exception(error).message
        log.warning("capability %s missed the commit of step %s: %s", capability.name, ref.step, described)


class StepWaiter:
    """Stores a waiting step and gives its claim back."""

    def __init__(self, services: EngineServices) -> None:
        self._services = services
        self._steps = services.store.steps
        self._children = Children(services, RequestCloser(services))

    def wait(self, run: Run) -> Run:
        """Let an undecided run wait for its open requests.

        Returns:
            A decided run; or the run with a newer journal, when an answer came meanwhile or a stop was asked for.
        Raises:
            StoreUnavailable, StoreFull: Redis gave no answer, or had no room, for as long as the step may live.
            ClaimLost: Another worker has the step; or it waits already, and the reply was lost.
        """
        loaded = replace(run.loaded, is_interrupted=run.progress.is_left_off)
        run, plan = self._children.plan(run)
        if not run.progress.is_waiting:
            return run
        for _ in range(_MOST_CONFLICTS):
            try:
                result = self._services.ask_store(run, partial(self._wait, run, loaded, plan), "the wait")
            except VersionConflict:
                # The run keeps what it has loaded: when it continues, its commit meets the same conflict and applies
                # the step to the newer state.
                loaded = replace(  # a newer budget, or an interruption, it must look at
                    self._steps.reload(run.claim), budget=run.loaded.budget, is_interrupted=loaded.is_interrupted
                )
                continue
            if isinstance(result, RefusedWait):
                return self._go_on(run, result)
            publish = (*run.publish, *result.publish)
            summary = summarize_wait(result.open)
            return run.decide(Waiting(run.ref, result.open, result.until_ms, summary=summary, publish=publish))
        raise StoreUnavailable(f"session {run.ref.session_id} changes too fast to let step {run.ref.step} wait")

    def _go_on(self, run: Run, refused: RefusedWait) -> Run:
        """The run with what has happened meanwhile."""
        run = run.with_journal(refused.journal).with_progress(is_waiting=False)
        run = run if refused.budget is None else adopt_budget(run, refused.budget, self._services)
        if refused.is_interrupted:
            run.lease.cut()
        run = self._children.refuse(run, refused.refused)
        return run if refused.cancel is None or run.ending.is_stopping else run.stopping(user_stop_signal())

    def _wait(self, run: Run, base: LoadedSession, plan: ChildPlan) -> WaitResult:
        # Those that follow from answers are not journaled.
        missing = run.obtained.records.keys() - run.journal.results.keys()
        results = {i: run.obtained.records[i].to_json() for i in missing if not has_outside_result(run, i)}
        return self._steps.wait(run.claim, base, _wait_transition(run), seen=run.journal, results=results, plan=plan)


def _wait_transition(run: Run) -> Transition:
    """The stored state with its execution waiting: what hooks have changed comes with the step's commit."""
    open_requests = tuple(request.summarize() for request in run.journal.open_requests)
    asked = describe_asked(run)

    def transition(snapshot: Snapshot) -> NextState:
        state = _start_again(run, snapshot.state, run.loaded)
        state = state.with_execution_waiting(open_requests, now=moment(snapshot.now_ms))
        definition = run.agent.stored_definition if run.ref.step == 1 else None
        return NextState(state=state, definition=definition, asked=asked)

    return transition


def _start_again(run: Run, state: AgentState, loaded: LoadedSession) -> AgentState:
    """A stored state with its execution in progress, as the claim has put it."""
    limits, default_steps = run.agent.effective_budget, run.execution.default_steps or 0
    started_at = moment(loaded.started_ms)
    state = without_provider_time(state, run.loaded.journal.waited_ms(run.claim.now_ms))
    return start_execution(
        state, limits, started_at, resumed_at=run.resumed_at, default_steps=default_steps, budget=loaded.budget
    )
