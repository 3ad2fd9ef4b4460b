"""What becomes of a run that is ended from outside: a stop commits what there is, the rest is done elsewhere."""

from __future__ import annotations

from ..guards import time_signals
from ..state import StopReason, StopSignal
from ..store import Store
from .leases import Interruption, LeaseKeeper
from .outcome import RetryLater, TakenOver
from .run import Run, moment


def user_stop() -> StopSignal:
    """The signal of somebody's stop."""
    return StopSignal(reason=StopReason.USER_REQUESTED, message="stopped on request", source="client")


def interrupted(run: Run, store: Store, keeper: LeaseKeeper) -> Run:
    """Decide by the reason of the interruption. What the run has not journaled yet, it journals first."""
    match run.held.interruption:
        case Interruption.CANCEL:
            return run.stopping(user_stop())
        case Interruption.LIMIT:
            return run.stopping(*time_signals(run.execution, moment(run.claim.now_ms)))
        case Interruption.DRAIN:
            return given_back(run, store, "this worker drains")
        case Interruption.DEADLINE:
            return given_back(run, store, "the step reached its deadline", counts=True)
        case Interruption.LOST:
            return _left(run, store)
        case None | Interruption.CALL:
            return run if keeper.confirm(run.held) else _left(run, store)


def given_back(run: Run, store: Store, why: str, *, counts: bool = False) -> Run:
    """Another worker may have the step at once.

    Args:
        counts: The attempt counts towards the limit.
    """
    _journal(run, store)
    publish = store.steps.release(run.claim, delay_ms=None, give_back=not counts)
    return run.journaled().changed(decided=RetryLater(run.ref, 0.0, why, publish))


def _left(run: Run, store: Store) -> Run:
    """The claim is gone; what was obtained still counts."""
    _journal(run, store)
    return run.journaled().changed(decided=TakenOver(run.ref))


def _journal(run: Run, store: Store) -> None:
    if run.unjournaled:
        store.steps.record_results(run.claim, run.unjournaled)
