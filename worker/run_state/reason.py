"""The closed set of reasons for which a run ends, and the stop signals that carry them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from ..state.execution.signals import StopReason, StopSignal
from ..state.values.frozen import FrozenDict

_KEY: Final = "run_reason"


class RunReason(StrEnum):
    """Why a run ended. If several hold at once, the first in this order counts."""

    ERROR = "error"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    MAX_ITERATIONS = "max_iterations"
    TOKEN_BUDGET = "token_budget"  # noqa: S105  (no password)
    TIME_BUDGET = "time_budget"
    TOOL_LOOP = "tool_loop"
    NO_TOOLS = "no_tools"
    GROUNDING_FAILED = "grounding_failed"
    TERMINAL_TOOL = "terminal_tool"
    CONFIDENCE_MET = "confidence_met"
    COMPLETE = "complete"

    @property
    def is_success(self) -> bool:
        """Tell whether a run that ends so has done what it was asked for."""
        return self in _SUCCESSES

    @property
    def rank(self) -> int:
        """0 is the most authoritative."""
        return _RANKS[self]

    def signal(self, message: str, source: str) -> StopSignal:
        """The stop signal of this reason; that of a success lets the execution end as completed."""
        return StopSignal(
            reason=_STOP_REASONS[self], message=message, context=FrozenDict({_KEY: self.value}), source=source
        )

    @classmethod
    def named(cls, text: str) -> RunReason | None:
        """The reason of this name; None where there is none."""
        return _BY_NAME.get(text)

    @classmethod
    def of_signal(cls, signal: StopSignal) -> RunReason:
        """The reason that a stop signal means, from any source."""
        named = signal.context.get(_KEY)
        known = cls.named(named) if isinstance(named, str) else None
        return known or _REASONS[signal.reason]


_RANKS: Final[Mapping[RunReason, int]] = MappingProxyType({each: rank for rank, each in enumerate(RunReason)})
_BY_NAME: Final[Mapping[str, RunReason]] = MappingProxyType({each.value: each for each in RunReason})
_SUCCESSES: Final = frozenset({RunReason.COMPLETE, RunReason.TERMINAL_TOOL, RunReason.CONFIDENCE_MET})

_STOP_REASONS: Final[Mapping[RunReason, StopReason]] = MappingProxyType(
    {
        RunReason.ERROR: StopReason.ERROR_FORBADE,
        RunReason.CANCELLED: StopReason.USER_REQUESTED,
        RunReason.INTERRUPTED: StopReason.STOP_REQUESTED,
        RunReason.MAX_ITERATIONS: StopReason.STEPS_LIMIT_REACHED,
        RunReason.TOKEN_BUDGET: StopReason.TOKEN_LIMIT_REACHED,
        RunReason.TIME_BUDGET: StopReason.TIME_LIMIT_REACHED,
        RunReason.TOOL_LOOP: StopReason.STOP_REQUESTED,
        RunReason.NO_TOOLS: StopReason.STOP_REQUESTED,
        RunReason.GROUNDING_FAILED: StopReason.STOP_REQUESTED,
        RunReason.TERMINAL_TOOL: StopReason.COMPLETED,
        RunReason.CONFIDENCE_MET: StopReason.COMPLETED,
        RunReason.COMPLETE: StopReason.COMPLETED,
    }
)

# Cost has no reason of its own in the closed set; it ranks with tokens.
_REASONS: Final[Mapping[StopReason, RunReason]] = MappingProxyType(
    {
        StopReason.COMPLETED: RunReason.COMPLETE,
        StopReason.STEPS_LIMIT_REACHED: RunReason.MAX_ITERATIONS,
        StopReason.TOKEN_LIMIT_REACHED: RunReason.TOKEN_BUDGET,
        StopReason.COST_LIMIT_REACHED: RunReason.TOKEN_BUDGET,
        StopReason.TIME_LIMIT_REACHED: RunReason.TIME_BUDGET,
        StopReason.RETRY_LIMIT_REACHED: RunReason.ERROR,
        StopReason.ERROR_FORBADE: RunReason.ERROR,
        StopReason.STOP_REQUESTED: RunReason.INTERRUPTED,
        StopReason.FINISH_REASON_RECEIVED: RunReason.INTERRUPTED,
        StopReason.USER_REQUESTED: RunReason.CANCELLED,
        StopReason.HOLD_EXPIRED: RunReason.CANCELLED,
        StopReason.UNKNOWN: RunReason.ERROR,
    }
)
