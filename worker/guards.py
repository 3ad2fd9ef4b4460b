"""Guards: what may stop an execution before the next call, or put it off.

A guard answers from a closed set. It is asked before the driver call and again after the step, before the next one is
published; it never waits and never changes anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from .state import AgentState, ExecutionBudget, ExecutionState, FinishReason, StopReason, StopSignal


class GuardPoint(StrEnum):
    """When a guard is asked."""

    BEFORE_CALL = "before_call"
    BEFORE_NEXT = "before_next"


@dataclass(frozen=True, slots=True)
class GuardView:
    """What a guard sees.

    Attributes:
        point: Before the driver call, or before the next step.
        state: The session; before the next step, with the step that was just done.
        now: Redis's time.
    """

    point: GuardPoint
    state: AgentState
    session_id: str
    execution: ExecutionState
    now: datetime


@dataclass(frozen=True, slots=True)
class Proceed:
    """Nothing speaks against it."""


@dataclass(frozen=True, slots=True)
class StopWith:
    """The execution ends; every signal is recorded, the most authoritative decides."""

    signals: tuple[StopSignal, ...]


@dataclass(frozen=True, slots=True)
class PutOff:
    """The step is tried again later. Only before the driver call; before the next step it means `Proceed`.

    Attributes:
        seconds: Not before then.
        reason: For people.
    """

    seconds: float
    reason: str = ""


Verdict = Proceed | StopWith | PutOff
PROCEED = Proceed()


class Guard(Protocol):
    """Decides whether an execution may go on."""

    def check(self, view: GuardView) -> Verdict:
        """Answer from the closed set; an exception fails the execution."""
        ...


class BudgetGuard:
    """All five limits: steps, tokens, seconds, cost, deadline. `used >= limit` stops."""

    def check(self, view: GuardView) -> Verdict:
        """A signal for each limit that is reached."""
        execution = view.execution
        if execution.budget.is_empty():
            return PROCEED
        signals = tuple(budget_signals(execution.budget, execution, view.now))
        return StopWith(signals) if signals else PROCEED


def budget_signals(budget: ExecutionBudget, execution: ExecutionState, now: datetime) -> Sequence[StopSignal]:
    """A signal for each limit that an execution has reached."""
    elapsed = execution.elapsed_seconds(now)
    cost = execution.cost or 0.0
    used: list[tuple[StopReason, float | None, float, str, str]] = [
        (StopReason.STEPS_LIMIT_REACHED, budget.max_steps, execution.step_count, "currentSteps", "maxSteps"),
        (StopReason.TOKEN_LIMIT_REACHED, budget.max_tokens, execution.usage.total, "totalTokens", "maxTotalTokens"),
        (StopReason.COST_LIMIT_REACHED, budget.max_cost, cost, "totalCost", "maxCost"),
        (StopReason.TIME_LIMIT_REACHED, budget.max_seconds, elapsed, "elapsedSeconds", "maxSeconds"),
    ]
    signals = [
        _signal(reason, {mine: amount, theirs: limit}, f"{theirs} of {limit} reached")
        for reason, limit, amount, mine, theirs in used
        if limit is not None and amount >= limit
    ]
    if budget.deadline is not None and now >= budget.deadline:
        context = {"deadline": budget.deadline.isoformat(), "now": now.isoformat()}
        signals.append(_signal(StopReason.TIME_LIMIT_REACHED, context, "deadline reached"))
    return signals


def _signal(reason: StopReason, context: dict[str, Any], message: str) -> StopSignal:
    return StopSignal(reason=reason, message=message, context=context, source="BudgetGuard")  # pyright: ignore


class FinishReasonGuard:
    """Stops when the model ended its answer for one of the given reasons, such as `length` or `content_filter`."""

    def __init__(self, reasons: Sequence[FinishReason | str]) -> None:
        """
        Args:
            reasons: Finish reasons that end the execution.
        """
        self._reasons = frozenset(FinishReason(reason) for reason in reasons)

    def check(self, view: GuardView) -> Verdict:
        """Looks at the step that was just done."""
        step = view.state.current_step
        if view.point is not GuardPoint.BEFORE_NEXT or step is None:
            return PROCEED
        reason = step.inference_response.finish_reason
        if reason not in self._reasons:
            return PROCEED
        context: Any = {"finishReason": reason.value, "stopReasons": sorted(self._reasons)}
        return StopWith(
            (
                StopSignal(
                    reason=StopReason.FINISH_REASON_RECEIVED,
                    message=f"the model ended with {reason.value}",
                    context=context,
                    source="FinishReasonGuard",
                ),
            )
        )


def ask_guards(guards: Sequence[Guard], view: GuardView) -> Verdict:
    """Ask all of them; signals are collected, a delay counts only where nothing stops."""
    signals: list[StopSignal] = []
    delay: PutOff | None = None
    for guard in guards:
        verdict = guard.check(view)
        if isinstance(verdict, StopWith):
            signals += verdict.signals
        elif isinstance(verdict, PutOff):
            delay = delay or verdict
    if signals:
        return StopWith(tuple(signals))
    return delay or PROCEED
