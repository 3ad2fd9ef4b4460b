"""The wait: a step whose calls need an answer gives back everything but its journal, and holds nothing meanwhile."""

from __future__ import annotations

from functools import partial
from typing import Final

from ..errors import ClaimLost, StoreUnavailable, VersionConflict
from ..moments import moment
from ..store.children.making import ChildPlan
from ..store.records import LoadedSession, NextState, Snapshot, Transition
from ..store.steps.waits import RefusedWait, StoredWait, WaitResult
from .applied_step import start_execution
from .asked_calls import has_outside_result
from .children import Children
from .interruptions import user_stop_signal
from .outcome import TakenOver, Waiting
from .request_closing import RequestCloser
from .run import Run
from .run_values import CallRecord
from .services import EngineServices
from .step_texts import summarize_wait
from .store_retries import ask_store

_MOST_CONFLICTS: Final = 20


class StepWaiter:
    """Stores a waiting step and gives its claim back."""

    def __init__(self, services: EngineServices) -> None:
        self._services = services
        self._steps = services.store.steps
        self._children = Children(services, RequestCloser(services))

    def wait(self, run: Run) -> Run:
        """Let a run wait for its open requests.

        Returns:
            A decided run; or the run with a newer journal, when an answer came meanwhile or a stop was asked for.
        Raises:
            StoreUnavailable, StoreFull: Redis gave no answer, or had no room, for as long as the step may live.
        """
        if run.outcome is not None or not run.progress.is_waiting:
            return run
        loaded = run.loaded
        run, plan = self._children.plan(run)
        if run.outcome is not None or not run.progress.is_waiting:
            return run
        for _ in range(_MOST_CONFLICTS):
            try:
                result = ask_store(run, self._services, partial(self._wait, run, loaded, plan), "the wait")
            except ClaimLost:  # perhaps because the wait was applied and its reply was lost
                return run.decide(TakenOver(run.ref))
            except VersionConflict:
                try:
                    # The run keeps what it has loaded: when it goes on, its commit meets the same conflict and
                    # applies the step to the newer state.
                    loaded = self._steps.reload(run.claim)
                except ClaimLost:
                    return run.decide(TakenOver(run.ref))
                continue
            if isinstance(result, RefusedWait):
                return self._go_on(run, result)
            return run.decide(_make_outcome(run, result))
        raise StoreUnavailable(f"session {run.ref.session_id} changes too fast to let step {run.ref.step} wait")

    def _go_on(self, run: Run, refused: RefusedWait) -> Run:
        """The run with what has happened meanwhile."""
        run = run.with_journal(refused.journal).with_progress(is_waiting=False)
        run = self._children.refuse(run, refused.refused)
        return run if refused.cancel is None or run.ending.is_stopping else run.stopping(user_stop_signal())

    def _wait(self, run: Run, base: LoadedSession, plan: ChildPlan) -> WaitResult:
        results = {index: record.to_json() for index, record in _results(run).items()}
        return self._steps.wait(run.claim, base, _wait_transition(run), seen=run.journal, results=results, plan=plan)


def _make_outcome(run: Run, wait: StoredWait) -> Waiting:
    return Waiting(
        ref=run.ref,
        requests=wait.open,
        until_ms=wait.until_ms,
        summary=summarize_wait(wait.open),
        publish=(*run.publish, *wait.publish),
    )


def _wait_transition(run: Run) -> Transition:
    """The stored state with its execution waiting: what hooks have changed comes with the step's commit."""
    open_requests = tuple(request.summarize() for request in run.journal.open_requests)

    def transition(snapshot: Snapshot) -> NextState:
        state = start_execution(
            snapshot.state,
            run.agent.effective_budget,
            started_at=moment(run.loaded.started_ms),
            resumed_at=run.resumed_at,
            default_steps=run.execution.default_steps or 0,
        )
        state = state.with_execution_waiting(open_requests, now=moment(snapshot.now_ms))
        return NextState(state=state, definition=run.agent.stored_definition if run.ref.step == 1 else None)

    return transition


def _results(run: Run) -> dict[int, CallRecord]:
    """Results not in the journal, except those derived from answers."""
    missing = (index for index in sorted(run.obtained.records) if index not in run.journal.results)
    return {index: run.obtained.records[index] for index in missing if not has_outside_result(run, index)}
