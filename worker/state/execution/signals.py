"""Why an execution stops: signals, their ranks, and the decision they lead to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from ..values.field_types import Flag, Text, check_kind
from ..values.frozen import FrozenDict
from ..values.value import Value


class StopReason(StrEnum):
    """Why. `PRIORITIES` ranks them."""

    COMPLETED = "completed"
    STEPS_LIMIT_REACHED = "steps_limit"
    TOKEN_LIMIT_REACHED = "token_limit"  # noqa: S105  (no password)
    COST_LIMIT_REACHED = "cost_limit"
    TIME_LIMIT_REACHED = "time_limit"
    RETRY_LIMIT_REACHED = "retry_limit"
    ERROR_FORBADE = "error"
    STOP_REQUESTED = "stop_requested"
    FINISH_REASON_RECEIVED = "finish_reason"
    USER_REQUESTED = "user_requested"
    HOLD_EXPIRED = "hold_expired"
    UNKNOWN = "unknown"

    @property
    def priority(self) -> int:
        """0 is the most authoritative."""
        return PRIORITIES[self]

    def was_force_stopped(self) -> bool:
        """True for every reason but the two natural endings."""
        return self not in (StopReason.COMPLETED, StopReason.FINISH_REASON_RECEIVED)

    def is_limit(self) -> bool:
        """Tell whether it is a limit of the execution's budget: steps, tokens, cost or time."""
        return self in _LIMITS


_LIMITS = frozenset(
    {
        StopReason.STEPS_LIMIT_REACHED,
        StopReason.TOKEN_LIMIT_REACHED,
        StopReason.COST_LIMIT_REACHED,
        StopReason.TIME_LIMIT_REACHED,
    }
)

PRIORITIES: Mapping[StopReason, int] = MappingProxyType(
    {
        StopReason.ERROR_FORBADE: 0,
        StopReason.STOP_REQUESTED: 1,
        StopReason.STEPS_LIMIT_REACHED: 2,
        StopReason.TOKEN_LIMIT_REACHED: 3,
        StopReason.COST_LIMIT_REACHED: 3,
        StopReason.TIME_LIMIT_REACHED: 4,
        StopReason.RETRY_LIMIT_REACHED: 5,
        StopReason.FINISH_REASON_RECEIVED: 6,
        StopReason.USER_REQUESTED: 7,
        StopReason.HOLD_EXPIRED: 7,
        StopReason.COMPLETED: 8,
        StopReason.UNKNOWN: 9,
    }
)
"""The ranks, in this one place. Of equal ranks the signal that came first decides. A reached deadline is a
`TIME_LIMIT_REACHED`; cost, which the source has no case for, ranks with tokens, and a hold that was not ended with a
person's stop."""


class StopSignal(Value):
    """One request to stop.

    Attributes:
        reason: Why.
        message: For a person.
        context: The numbers behind it, such as `{"currentSteps": 20, "maxSteps": 20}`.
        source: Who asked: the guard, the hook, the client.
    """

    reason: StopReason
    message: Text = ""
    context: FrozenDict = FrozenDict()
    source: Text | None = None

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else str(self.reason)


class StopSignals(tuple[StopSignal, ...]):
    """All signals of an execution, in the order they came."""

    __slots__ = ()

    def with_signal(self, signal: StopSignal) -> StopSignals:
        """One more; nothing is replaced and nothing merged."""
        return StopSignals((*self, check_kind("signal", signal, StopSignal)))

    def first(self) -> StopSignal | None:
        """The signal that came first; None without any."""
        return self[0] if self else None

    def highest(self) -> StopSignal | None:
        """The most authoritative; of equal ones the first; None when there is none."""
        return min(self, key=lambda signal: signal.reason.priority, default=None)

    def has_any(self) -> bool:
        """Tell whether there is a signal."""
        return bool(self)

    def __str__(self) -> str:
        return " | ".join(str(signal) for signal in self)

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        signals = core_schema.tuple_variable_schema(handler.generate_schema(StopSignal))
        return core_schema.no_info_after_validator_function(_to_signals, signals)


def _to_signals(signals: Iterable[StopSignal]) -> StopSignals:
    return signals if isinstance(signals, StopSignals) else StopSignals(signals)


class ExecutionContinuation(Value):
    """The stop signals of an execution, and a hook's request to continue in spite of them.

    Signals stay for the whole execution; the request to continue holds until the end of the step.
    """

    stop_signals: StopSignals = StopSignals()
    is_continuation_requested: Flag = False

    def should_stop(self) -> bool:
        """There is a signal, and no request to continue."""
        return self.stop_signals.has_any() and not self.is_continuation_requested

    def with_signal(self, signal: StopSignal) -> ExecutionContinuation:
        """Add a signal."""
        return self._with(stop_signals=self.stop_signals.with_signal(signal))

    def with_continuation_requested(self, requested: bool = True) -> ExecutionContinuation:
        """Set or clear the request to continue."""
        return self if self.is_continuation_requested == requested else self._with(is_continuation_requested=requested)

    def explain(self) -> str:
        """The signals and the request in words, for logs."""
        signals = f"Stop Signals: {self.stop_signals}" if self.stop_signals else "No Stop Signals"
        return f"{signals}; Continuation Requested: {'Yes' if self.is_continuation_requested else 'No'}"


NO_CONTINUATION = ExecutionContinuation()
