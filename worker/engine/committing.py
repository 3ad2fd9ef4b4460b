"""The commit phase: makes a step real, once."""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from .. import crash_points
from ..capability import Capability, CommittedStep
from ..errors import ClaimLost, StoreFull, StoreUnavailable, VersionConflict
from ..moments import moment
from ..redaction import describe_exception
from ..state.agent_state import AgentState
from ..state.execution.signals import StopReason
from ..store.records import Committed
from ..store.store import SessionActions
from .applied_step import AppliedStep, apply_step, start_execution
from .guarding import run_before_hooks
from .inference import Inference
from .outcome import Done, TakenOver
from .run import Run
from .run_values import TimedClaim
from .services import EngineServices
from .step_texts import failure_text, summarize_step
from .sticky import KeepClaimPolicy
from .store_retries import try_to_journal_results, wait_for_redis
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
        """
        if run.outcome is not None:
            return run
        # Taken before the first try: a commit whose reply was lost has set the next lease already.
        sent_at, conflicts = self._services.monotonic(), 0
        while conflicts < _MOST_CONFLICTS:
            applied = apply_step(run, moment(run.redis_ms(self._services.monotonic())))
            try:
                committed = self._commit_once(run, applied, policy)
            except ClaimLost:
                return run.decide(TakenOver(run.ref))
            except VersionConflict:
                run, conflicts = self._reload(run), conflicts + 1
                if run.outcome is not None:
                    return run
            except (StoreFull, StoreUnavailable) as error:
                # Redis has no room for the commit; some memory is reserved for the journal.
                run = try_to_journal_results(run, self._services) if isinstance(error, StoreFull) else run
                wait_for_redis(run, self._services, error, "the commit")
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
            keep_claim=not applied.has_ended and policy.keeps_claim(run.times.sticky_until),
        )

    def _reload(self, run: Run) -> Run:
        """Put the same answer and results on the session that somebody else has saved while the step ran."""
        try:
            loaded = self._steps.reload(run.claim)
        except ClaimLost:
            return run.decide(TakenOver(run.ref))
        # The claim is the same, so the journaled answer and results still hold; only the state is a newer one.
        started_at = moment(loaded.started_ms)
        state = start_execution(
            loaded.state,
            run.agent.effective_budget,
            started_at,
            resumed_at=run.resumed_at,
            default_steps=run.execution.default_steps or 0,
        )
        run = run.changed(loaded=loaded, state=state).with_progress(is_reloaded=True)
        try:
            return self._inference.run_hooks_again(run_before_hooks(run))
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
    is_same_execution = following is not None and following.execution_id == run.ref.execution_id
    next_step = following.step if following is not None and is_same_execution else None
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
        capability.committed(step)
    except Exception as error:  # noqa: BLE001 - a capability of the user's
        described = describe_exception(error).message
        log.warning("capability %s missed the commit of step %s: %s", capability.name, ref.step, described)
