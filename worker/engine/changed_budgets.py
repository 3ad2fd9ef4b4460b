"""Decides again about a running step whose budget was changed meanwhile, and about its children."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

from ..guards import budget_signals, time_signals
from ..moments import moment
from ..state.execution.budget import ExecutionBudget
from ..state.execution.requests import Request
from ..state.execution.reservations import subtract
from ..state.execution.signals import StopSignal
from .charges import charge_execution
from .child_calls import left_for_children, shared_with_children
from .endings import give_back
from .leases import Interruption
from .run import Run
from .services import EngineServices

_RAISED: Final = "its budget was raised"
_RESERVED: Final = ("max_steps", "max_tokens", "max_cost", "max_seconds")


def adopt_budget(run: Run, budget: ExecutionBudget, services: EngineServices) -> Run:
    """The run of a step that was about to wait, with another budget; stopping, where that is used up."""
    execution = run.execution.with_budget(budget)
    state = run.state.with_context_and_execution(run.state.context, execution)
    run = run.changed(state=state, loaded=replace(run.loaded, budget=budget))
    if run.ending.is_stopping:
        return run
    signals = _reached(run, services)
    if signals:
        return run.stopping(*signals)
    return give_back(run, services.store, _RAISED) if run.lease.interruption is Interruption.LIMIT else run


def decide_again(run: Run, services: EngineServices) -> Run:
    """Decide about a run whose budget was changed before its commit.

    Where limits alone have kept it from asking the model, or from its calls, and none of them is reached any more, the
    claim is given back: the next one finds in the journal what was obtained, and goes on from there.
    """
    if not _is_ended_by_limits(run):
        return run
    signals = _reached(run, services)
    if signals:
        return run.with_ending(signals=tuple(signals))
    return give_back(run, services.store, _RAISED)


def _is_ended_by_limits(run: Run) -> bool:
    """Whether nothing but limits of the budget ends the execution, and no child was told yet that it ends."""
    signals, failure, status, is_stopping = run.ending
    if not is_stopping or failure is not None or status is not None or run.journal.ending is not None:
        return False
    is_of_budget = all(each.source == "BudgetGuard" and each.reason.is_limit() for each in signals)
    return is_of_budget and (bool(signals) or run.lease.interruption is Interruption.LIMIT)


def _reached(run: Run, services: EngineServices) -> list[StopSignal]:
    """The signals of the limits that are reached without the present step."""
    execution, lease = charge_execution(run, run.execution), run.lease
    lease.change_budget(execution.budget)
    signals = budget_signals(execution.budget, execution, moment(services.redis_ms(run)))
    is_over = lease.budget_ends is not None and services.monotonic() >= lease.budget_ends
    if not signals and is_over:  # by the clock of this process, which is a moment early
        signals = time_signals(execution, moment(run.claim.now_ms))
    return list(signals)


def find_unfit_children(run: Run, now: datetime) -> frozenset[str]:
    """Ids of requests whose children work with more than a lowered budget leaves for them.

    In the order of the calls, each child that fits takes its reservation out of what is left. Where no limit was
    lowered, each one keeps what it was promised.
    """
    budget, stored = run.loaded.budget, run.loaded.state.execution
    if budget is None or stored is None:
        return frozenset()
    lowered = [name for name in _RESERVED if _is_less(getattr(budget, name), getattr(stored.budget, name))]
    working = [
        each
        for each in run.journal.open_children
        if each.place in run.journal.made and each.place not in run.journal.stopped
    ]
    if not lowered or not working:
        return frozenset()
    left, unfit = shared_with_children(run, left_for_children(run, now, run.journal.open_children)), set[str]()
    for request in working:
        reserved = _reservation(request)
        if any(_is_less(getattr(left, name), getattr(reserved, name)) for name in lowered):
            unfit.add(request.id)
        else:
            left = subtract(left, reserved)
    return frozenset(unfit)


def _reservation(request: Request) -> ExecutionBudget:
    assert request.child is not None
    return request.child.budget


def _is_less(limit: float | None, than: float | None) -> bool:
    """Whether a limit leaves less than another one, where None is no limit."""
    return limit is not None and (than is None or limit < than)
