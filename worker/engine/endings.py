"""How a step or its execution ends before its time: by an interruption, a stop, a hold that is over, or a hook.

A stop commits what there is; after every other interruption another worker takes over. A hook ends an execution by a
stop signal or by the status of the state that it returns. The run carries that end to the commit, which makes it like
any other end: with its events, its hooks, and the messages that came meanwhile.
"""

from __future__ import annotations

from typing import Final, assert_never

from ..errors import ClaimLost, PutOff, StoreFull, StoreUnavailable
from ..flow.values import AT_PROVIDER
from ..guards import longest_wait, time_left, time_signals
from ..hooks import HookContext, HookPoint
from ..moments import moment
from ..redaction import redact
from ..state.agent_state import AgentState
from ..state.execution.execution import ExecutionState
from ..state.execution.signals import StopReason, StopSignal
from ..state.execution.status import ExecutionStatus
from ..state.values.error_info import ErrorInfo
from ..store.records import Claim, Hold
from ..store.store import Store
from .leases import Interruption
from .outcome import RetryLater, TakenOver
from .run import Run, milliseconds
from .services import EngineServices

OF_STORE: Final = (StoreUnavailable, StoreFull, ClaimLost)
"""Errors that end an attempt and not the execution, also where they come through a hook that asks a model."""

_GIVEN_BACK: Final = {
    Interruption.DRAIN: "this worker drains",
    Interruption.HOLDER: "its holder of a concurrency limit went to another step",
}
_HOOK_FAILED: Final = ErrorInfo(kind="hook", message="a hook failed the execution")


def release_and_retry(
    store: Store, claim: Claim, why: str, *, delay_seconds: float | None = None, counts: bool = False
) -> RetryLater:
    """Release a claim; the step is due again after the delay.

    Args:
        why: For people, redacted.
        delay_seconds: The step is delayed, which the session counts. None: any worker may have the step at once.
        counts: The attempt counts towards the limit of attempts.
    """
    delay_ms = None if delay_seconds is None else milliseconds(delay_seconds)
    publish = store.steps.release(claim, delay_ms=delay_ms, give_back=not counts, reason=why)
    return RetryLater(ref=claim.ref, seconds=delay_seconds or 0.0, reason=why, publish=publish)


def delay_step(run: Run, store: Store, why: str, seconds: float, *, cause: PutOff | None = None) -> Run:
    """Release the run's claim; the step is due again after the delay. Watchers are told how far the attempt came.

    Args:
        why: For people, redacted.
        cause: What puts the step off, so that the session does not count the delay. None: nothing does.
    """
    told: dict[str, str | bool] | None = None
    if cause is None or cause.is_told:
        memory = run.memory
        is_answered = memory.has_answer or run.obtained.response is not None or run.journal.answer is not None
        told = {"answered": True} if is_answered else {}
        told |= {"failed_model": memory.failed_model} if memory.failed_model and not is_answered else {}
    publish = store.steps.release(
        run.claim, delay_ms=milliseconds(seconds), give_back=True, reason=why,
        put_off="" if cause is None else cause.put_off, told=told,
    )  # fmt: skip
    return run.decide(RetryLater(ref=run.claim.ref, seconds=seconds, reason=why, publish=publish))


def user_stop_signal() -> StopSignal:
    """The signal of a stop that a client asked for."""
    return StopSignal(reason=StopReason.USER_REQUESTED, message="stopped on request", source="client")


def hold_signal(hold: Hold) -> StopSignal:
    """The signal of a hold that was not ended in time."""
    by = f" by {hold.by}" if hold.by else ""
    why = f": {hold.reason}" if hold.reason else ""
    message = f"suspended{by} and not resumed in time{why}"
    return StopSignal(reason=StopReason.HOLD_EXPIRED, message=message, source="hold")


def resolve_interruption(run: Run, services: EngineServices) -> Run:
    """Stop or decide a run by the reason of its interruption. A decided run journals its results first.

    Returns:
        The run as it is where nothing interrupts it and its lease could be renewed.
    """
    store, lease = services.store, run.lease
    if lease.interruption in (None, Interruption.CALL) and services.keeper.confirm(lease):
        return run
    match lease.interruption:  # the renewal may have brought a stop
        case Interruption.CANCEL:
            return run.stopping(user_stop_signal())
        case Interruption.LIMIT:
            return run.stopping(*time_signals(run.execution, moment(run.claim.now_ms)))
        case Interruption.DRAIN | Interruption.HOLDER as why:
            return give_back(run, store, _GIVEN_BACK[why])
        case Interruption.DEADLINE:
            return give_back(run, store, "the step reached its deadline", counts=True)
        # A lease that could not be renewed, or a late function that has returned after all.
        case Interruption.LOST | Interruption.CALL | None:
            return _leave_to_new_owner(run, store)
        case _ as never:
            assert_never(never)


def give_back(run: Run, store: Store, why: str, *, counts: bool = False) -> Run:
    """Release the run's claim, so that another worker may have the step at once.

    Args:
        counts: The attempt counts towards the limit of attempts.
    """
    return _journal_results(run, store).decide(release_and_retry(store, run.claim, why, counts=counts))


def put_off(run: Run, services: EngineServices, error: PutOff) -> Run:
    """Release the run's claim until what puts it off is over, or until the end of its time; nothing is counted."""
    now = moment(services.redis_ms(run))
    has_begun = run.journal.was_paid_for or run.obtained.response is not None
    left = time_left(run.execution, now) if has_begun else longest_wait(run.execution, now)
    # The time at a provider does not count; its own end is among the seconds.
    seconds = error.seconds if left is None or error.put_off == AT_PROVIDER else min(error.seconds, left)
    why, store = redact(str(error)), services.store
    delayed = delay_step(run, store, why, seconds, cause=error)
    return _journal_results(delayed, store)


def _leave_to_new_owner(run: Run, store: Store) -> Run:
    """Decide a run whose claim is gone; the journal keeps what it has obtained."""
    return _journal_results(run, store).decide(TakenOver(run.ref))


def _journal_results(run: Run, store: Store) -> Run:
    if run.obtained.unjournaled:
        store.steps.record_results(run.claim, run.obtained.unjournaled)
    return run.without_unjournaled()


def run_state_hooks(run: Run, point: HookPoint) -> Run:
    """Run the hooks of a point before or around the model call that may change only the state."""
    stack = run.agent.hook_stack
    return adopt_hook_context(run, stack.run(run.hook_context(point, run.state))) if stack.at(point) else run


def adopt_hook_context(run: Run, context: HookContext) -> Run:
    """The run with the state that hooks have made; stopping or failing, where they end the execution."""
    before, state = run.execution, context.state
    run = run.changed(state=state)
    has_answered = context.point is HookPoint.BEFORE_STEP and context.response is not None
    if has_answered and run.obtained.response is None and run.journal.answer is None:
        run = run.with_response(context.response, is_given=True)
    if context.stop_signals:
        run = run.stopping(*context.stop_signals)
    execution = state.execution
    if execution is None or not execution.status.is_terminal():
        return run
    reopened = execution.with_end_taken_back(before.errors)
    run = run.changed(state=state.with_context_and_execution(state.context, reopened))
    if execution.status is ExecutionStatus.FAILED:
        errors = execution.errors[len(before.errors) :]
        return run.failing(errors[-1] if errors else _HOOK_FAILED, StopReason.ERROR_FORBADE)
    return run.stopping(*signals_of_end(execution)).with_ending(status=execution.status)


def error_of_end(state: AgentState) -> ErrorInfo | None:
    """The error by which a hook has failed the execution of a state; None when it has not failed."""
    if state.status is not ExecutionStatus.FAILED:
        return None
    return state.errors[-1] if state.errors else _HOOK_FAILED


def signals_of_end(execution: ExecutionState) -> tuple[StopSignal, ...]:
    """The signal of an execution that a hook has stopped without saying why."""
    if execution.status is not ExecutionStatus.STOPPED or execution.continuation.stop_signals:
        return ()
    message = "a hook ended the execution"
    return (StopSignal(reason=StopReason.STOP_REQUESTED, message=message, source="hook"),)
