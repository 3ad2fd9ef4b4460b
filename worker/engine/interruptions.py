"""Ends interrupted runs: a stop commits what there is; for every other reason another worker takes over."""

from __future__ import annotations

from typing import assert_never

from ..guards import time_signals
from ..moments import moment
from ..state.execution.signals import StopReason, StopSignal
from ..store.records import Claim, Hold
from ..store.store import Store
from .leases import Interruption
from .outcome import RetryLater, TakenOver
from .run import Run, milliseconds
from .services import EngineServices


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


def user_stop_signal() -> StopSignal:
    """The signal of a stop that a client asked for."""
    return StopSignal(reason=StopReason.USER_REQUESTED, message="stopped on request", source="client")


def hold_signal(hold: Hold) -> StopSignal:
    """The signal of a hold that nobody has ended in time."""
    by = f" by {hold.by}" if hold.by else ""
    why = f": {hold.reason}" if hold.reason else ""
    message = f"suspended{by} and not resumed in time{why}"
    return StopSignal(reason=StopReason.HOLD_EXPIRED, message=message, source="hold")


def resolve_interruption(run: Run, services: EngineServices) -> Run:
    """Stop or decide a run by the reason of its interruption. A decided run journals its results first."""
    store = services.store
    match run.lease.interruption:
        case Interruption.CANCEL:
            return run.stopping(user_stop_signal())
        case Interruption.LIMIT:
            return run.stopping(*time_signals(run.execution, moment(run.claim.now_ms)))
        case Interruption.DRAIN:
            return give_back(run, store, "this worker drains")
        case Interruption.DEADLINE:
            return give_back(run, store, "the step reached its deadline", counts=True)
        case Interruption.LOST:
            return _leave_to_new_owner(run, store)
        # A lease that is no longer fresh, or a late function that has returned after all.
        case None | Interruption.CALL:
            return run if services.keeper.confirm(run.lease) else _leave_to_new_owner(run, store)
        case _ as never:
            assert_never(never)


def give_back(run: Run, store: Store, why: str, *, counts: bool = False) -> Run:
    """Release the run's claim, so that another worker may have the step at once.

    Args:
        counts: The attempt counts towards the limit of attempts.
    """
    _journal_results(run, store)
    return run.without_unjournaled().decide(release_and_retry(store, run.claim, why, counts=counts))


def _leave_to_new_owner(run: Run, store: Store) -> Run:
    """Decide a run whose claim is gone; the journal keeps what it has obtained."""
    _journal_results(run, store)
    return run.without_unjournaled().decide(TakenOver(run.ref))


def _journal_results(run: Run, store: Store) -> None:
    if run.obtained.unjournaled:
        store.steps.record_results(run.claim, run.obtained.unjournaled)
