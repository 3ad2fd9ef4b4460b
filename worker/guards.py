"""Guards: user code that may stop an execution before its next call, or delay it.

A guard answers from a closed set. The engine asks it before the driver call, and again after the step, before the next
one is published. A guard must not wait and must not change anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Protocol

from .concurrency import fibers
from .errors import ConfigurationError, InvalidInput
from .state.agent_state import AgentState
from .state.execution.budget import ExecutionBudget
from .state.execution.execution import ExecutionState
from .state.execution.inference import FinishReason
from .state.execution.signals import StopReason, StopSignal
from .state.values.field_types import is_number
from .tools.stop import StopExecution


class GuardPoint(StrEnum):
    """The points of a step at which the engine asks the guards.

    Attributes:
        BEFORE_CALL: Before the model is asked. A stop ends the execution without the call; a delay gives the
            step back until its next try.
        BEFORE_NEXT: After a step that asks for another one, before its message is published.
        BEFORE_END: After a step whose answer ends the execution. Only guards that judge answers are asked.
    """

    BEFORE_CALL = "before_call"
    BEFORE_NEXT = "before_next"
    BEFORE_END = "before_end"


@dataclass(frozen=True, slots=True)
class GuardView:
    """The session and the time that a guard decides by.

    Attributes:
        point: Before the driver call, before the next step, or before the end that a final answer brings.
        state: The session. At `BEFORE_NEXT` and `BEFORE_END` it holds the step that was just done.
        now: Redis's time.
        model: Name of the model that answers: the session's own, else the agent's; None where none is set.
    """

    point: GuardPoint
    state: AgentState
    session_id: str
    execution: ExecutionState
    now: datetime
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Proceed:
    """The execution goes on."""


@dataclass(frozen=True, slots=True)
class StopWith:
    """The execution ends; every signal is recorded, and the one of the highest priority is the reason."""

    signals: tuple[StopSignal, ...]

    def __post_init__(self) -> None:
        if not self.signals or not all(isinstance(signal, StopSignal) for signal in self.signals):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput("StopWith.signals", type(self.signals), "give at least one StopSignal, in a tuple.")


@dataclass(frozen=True, slots=True)
class Delay:
    """The step is tried again later. After the step, at `BEFORE_NEXT` and `BEFORE_END`, it means `Proceed`.

    Attributes:
        seconds: Time until the step is due again, from 0.
        reason: For people.
    """

    seconds: float
    reason: str = ""

    def __post_init__(self) -> None:
        if not is_number(self.seconds) or self.seconds < 0:
            raise InvalidInput("Delay.seconds", self.seconds, "give the seconds to wait, from 0.")


Verdict = Proceed | StopWith | Delay
PROCEED = Proceed()


class Guard(Protocol):
    """Decides whether an execution may go on.

    A guard with an attribute `judges_answers = True` is also asked about a final answer, at `BEFORE_END`: its signals
    say then how the execution ends.
    """

    def check(self, view: GuardView) -> Verdict:
        """Decide about an execution; an exception fails it."""
        ...


_STEPS: Final = StopReason.STEPS_LIMIT_REACHED
_TOKENS: Final = StopReason.TOKEN_LIMIT_REACHED
_COST: Final = StopReason.COST_LIMIT_REACHED
_TIME: Final = StopReason.TIME_LIMIT_REACHED
_STEP_NAMES: Final = ("currentSteps", "maxSteps")
_DEFAULT_STEPS: Final = (
    "limit of {} steps reached (default_max_steps): nobody gave a budget; give one, or ExecutionBudget.unlimited()"
)


class BudgetGuard:
    """Stops at the five limits of a budget: steps, tokens, seconds, cost, deadline. `used >= limit` stops."""

    def check(self, view: GuardView) -> Verdict:
        """Stop with a signal for each limit that is reached."""
        execution = view.execution
        if execution.budget.is_empty() and not execution.default_steps:
            return PROCEED
        signals = tuple(budget_signals(execution.budget, execution, view.now))
        return StopWith(signals) if signals else PROCEED


@dataclass(frozen=True)
class _Limit:
    """One limit of an execution: what it is, what counts against it, and what the signal says when it is reached."""

    reason: StopReason
    limit: Callable[[ExecutionBudget, ExecutionState], float | None]
    used: Callable[[ExecutionState, datetime], float]
    names: tuple[str, str]
    text: str


# Looked at twice in each step: what is used is computed for the limits that are set alone.
_LIMITS: Final = (
    _Limit(
        reason=_STEPS,
        limit=lambda budget, _: budget.max_steps,
        used=lambda execution, _: execution.steps_used,
        names=_STEP_NAMES,
        text="limit of {} steps reached",
    ),
    _Limit(
        reason=_TOKENS,
        limit=lambda budget, _: budget.max_tokens,
        used=lambda execution, _: execution.usage.total,
        names=("totalTokens", "maxTotalTokens"),
        text="limit of {} tokens reached",
    ),
    _Limit(
        reason=_COST,
        limit=lambda budget, _: budget.max_cost,
        used=lambda execution, _: execution.cost or 0.0,
        names=("totalCost", "maxCost"),
        text="limit of ${:g} reached",
    ),
    _Limit(
        reason=_TIME,
        limit=lambda budget, _: budget.max_seconds,
        used=ExecutionState.elapsed_seconds,
        names=("elapsedSeconds", "maxSeconds"),
        text="limit of {:g} s reached",
    ),
    _Limit(
        reason=_STEPS,
        limit=lambda _, execution: execution.default_steps or None,
        used=lambda execution, _: execution.step_count,
        names=_STEP_NAMES,
        text=_DEFAULT_STEPS,
    ),
)


def budget_signals(budget: ExecutionBudget, execution: ExecutionState, now: datetime) -> Sequence[StopSignal]:
    """A signal for each limit that an execution has reached."""
    signals: list[StopSignal] = []
    for each in _LIMITS:
        limit = each.limit(budget, execution)
        if limit is not None and (used := each.used(execution, now)) >= limit:
            signals.append(
                _signal(each.reason, dict(zip(each.names, (used, limit), strict=True)), each.text.format(limit))
            )
    if budget.deadline is not None and now >= budget.deadline:
        context = {"deadline": budget.deadline.isoformat(), "now": now.isoformat()}
        signals.append(_signal(StopReason.TIME_LIMIT_REACHED, context, "deadline reached"))
    return signals


def time_left(execution: ExecutionState, now: datetime) -> float | None:
    """Seconds until the budget's time is over, 0 when it is; None when it has no end."""
    budget = execution.budget
    ends: list[float] = []
    if budget.max_seconds is not None:
        ends.append(budget.max_seconds - execution.elapsed_seconds(now))
    if budget.deadline is not None:
        ends.append((budget.deadline - now).total_seconds())
    return max(0.0, min(ends)) if ends else None


def longest_wait(execution: ExecutionState, now: datetime) -> float | None:
    """Seconds for which a step may be put off: until the budget's time is over, or until its execution expires.

    Returns:
        0 where that time has come; None where there is no end.
    """
    left = time_left(execution, now)
    if execution.expires_at is None or execution.step_count:
        return left
    expires = max(0.0, (execution.expires_at - now).total_seconds())
    return expires if left is None else min(left, expires)


def expiry_signal(execution: ExecutionState, now: datetime) -> StopSignal | None:
    """The signal of an execution that has expired, if none of its steps is done; None while it may begin."""
    expires_at = execution.expires_at
    if expires_at is None or execution.step_count or now < expires_at:
        return None
    context: Any = {"expiresAt": expires_at.isoformat(), "now": now.isoformat()}
    message = f"it had not begun by {expires_at:%Y-%m-%d %H:%M:%S} UTC, when it expired"
    return StopSignal(reason=_TIME, message=message, context=context, source="expiry")


def time_signals(execution: ExecutionState, now: datetime) -> Sequence[StopSignal]:
    """Signals of a budget whose time is over.

    The signals are those of the moment at which it is over: the clock that gave `now` may be a millisecond early.
    """
    left = time_left(execution, now) or 0.0
    over = now + timedelta(seconds=left, milliseconds=1)
    return [signal for signal in budget_signals(execution.budget, execution, over) if signal.reason is _TIME]


def _signal(reason: StopReason, context: dict[str, Any], message: str) -> StopSignal:
    return StopSignal(reason=reason, message=message, context=context, source="BudgetGuard")  # pyright: ignore


class FinishReasonGuard:
    """Stops when the model ended its answer for one of the given reasons, such as `length` or `content_filter`.

    An execution whose answer was cut short ends as stopped, also where the answer asks for no tool.
    """

    judges_answers = True

    def __init__(self, reasons: Sequence[FinishReason | str]) -> None:
        """
        Args:
            reasons: Finish reasons that end the execution.
        Raises:
            ConfigurationError: There is no such reason.
        """
        unknown = [reason for reason in reasons if reason not in tuple(FinishReason)]
        if unknown or isinstance(reasons, str):
            raise ConfigurationError(f"finish reasons {unknown or reasons!r}: give a list of {', '.join(FinishReason)}")
        self._reasons = frozenset(FinishReason(reason) for reason in reasons)

    def check(self, view: GuardView) -> Verdict:
        """Look at the step that was just done, before the next one or the end."""
        step = view.state.current_step
        if view.point is GuardPoint.BEFORE_CALL or step is None:
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


# These only compare values; a guard of the user's may block, and gets a thread.
_QUICK: Final = (BudgetGuard, FinishReasonGuard)


def ask_guards(guards: Sequence[Guard], view: GuardView) -> Verdict:
    """Ask all guards: a stop has the signals of all, and without a stop the longest delay counts.

    A guard that raises `StopExecution` has answered with its signal. About a final answer only guards are asked that
    judge answers.

    Raises:
        InvalidInput: A guard answered something else.
    """
    signals: list[StopSignal] = []
    delay: Delay | None = None
    for guard in guards:
        if view.point is GuardPoint.BEFORE_END and not getattr(guard, "judges_answers", False):
            continue
        try:
            verdict = guard.check(view) if isinstance(guard, _QUICK) else fibers.run_users_code(guard.check, view)
        except StopExecution as stop:
            verdict = StopWith((stop.signal_from(type(guard).__name__),))
        match verdict:
            case Proceed():
                continue
            case StopWith():
                signals += verdict.signals
            case Delay():
                delay = max(delay or verdict, verdict, key=lambda each: each.seconds)
            case _ as other:  # pyright: ignore[reportUnnecessaryComparison]
                raise InvalidInput(f"guard {type(guard).__name__}", other, "answer Proceed(), StopWith(…) or Delay(…).")
    if signals:
        return StopWith(tuple(signals))
    return delay or PROCEED
