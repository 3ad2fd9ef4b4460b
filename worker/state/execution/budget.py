"""The limits of an execution."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeVar

from ...errors import InvalidInput
from ..values.field_types import Amount, Count, UtcDatetime, check_amount, utcnow
from ..values.value import Value

if TYPE_CHECKING:
    from .execution import ExecutionState

N = TypeVar("N", int, float)
T = TypeVar("T", int, float, datetime)

_ADVICE: Final = "give what was used as a number, from 0."


class ExecutionBudget(Value):
    """Limits of one execution. None is unlimited; 0 stops before the first step. `used >= limit` stops.

    Attributes:
        max_steps: Steps.
        max_tokens: Tokens of all kinds, as `InferenceUsage.total`.
        max_seconds: Seconds since the execution started, without those spent waiting for a person.
        max_cost: US dollars.
        deadline: A moment, with timezone; reached counts as exhausted.
    """

    max_steps: Count | None = None
    max_tokens: Count | None = None
    max_seconds: Amount | None = None
    max_cost: Amount | None = None
    deadline: UtcDatetime | None = None

    @classmethod
    def unlimited(cls) -> ExecutionBudget:
        """A budget without limits."""
        return UNLIMITED

    def is_empty(self) -> bool:
        """No limit is set. A limit of 0 is a limit."""
        return self.max_steps is self.max_tokens is self.max_seconds is self.max_cost is self.deadline is None

    def is_exhausted(self, now: datetime | None = None) -> bool:
        """Any limit is at zero, or the deadline is reached."""
        if self.deadline is not None and self.deadline <= (now or utcnow()):
            return True
        limits = (self.max_steps, self.max_tokens, self.max_seconds, self.max_cost)
        return any(limit is not None and limit <= 0 for limit in limits)

    def remaining(
        self,
        steps: int = 0,
        tokens: int = 0,
        seconds: float = 0.0,
        cost: float = 0.0,
        *,
        steps_used: int = 0,
        tokens_used: int = 0,
    ) -> ExecutionBudget:
        """The budget that is left after this use: never below 0, None stays None, the deadline stays.

        Args:
            steps_used: Another name of `steps`; given together, the two add up.
            tokens_used: Another name of `tokens`; given together, the two add up.
        Raises:
            InvalidInput: A use is below 0, or steps or tokens are no whole number.
        """
        used_steps = _check_count("steps", steps) + _check_count("steps_used", steps_used)
        used_tokens = _check_count("tokens", tokens) + _check_count("tokens_used", tokens_used)
        return self._with(
            max_steps=_less(self.max_steps, used_steps),
            max_tokens=_less(self.max_tokens, used_tokens),
            max_seconds=_less(self.max_seconds, check_amount("remaining(seconds)", seconds, _ADVICE)),
            max_cost=_less(self.max_cost, check_amount("remaining(cost)", cost, _ADVICE)),
        )

    def remaining_from(self, execution: ExecutionState, now: datetime | None = None) -> ExecutionBudget:
        """The budget that an execution has left of this one."""
        return self.remaining(
            steps=execution.steps_used,
            tokens=execution.usage.total,
            seconds=execution.elapsed_seconds(now),
            cost=execution.cost or 0.0,
        )

    def capped_by(self, other: ExecutionBudget) -> ExecutionBudget:
        """The smaller limit of both, field by field; of the deadlines the earlier one."""
        return self._with(
            max_steps=_smaller(self.max_steps, other.max_steps),
            max_tokens=_smaller(self.max_tokens, other.max_tokens),
            max_seconds=_smaller(self.max_seconds, other.max_seconds),
            max_cost=_smaller(self.max_cost, other.max_cost),
            deadline=_smaller(self.deadline, other.deadline),
        )


def _check_count(field: str, used: object) -> int:
    if isinstance(used, int) and not isinstance(used, bool) and used >= 0:
        return used
    raise InvalidInput(f"remaining({field})", used, "give what was used as a whole number, from 0.")


def _less(limit: N | None, used: N) -> N | None:
    return None if limit is None else max(type(limit)(0), limit - used)


def _smaller(one: T | None, other: T | None) -> T | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


Budget = ExecutionBudget
"""Its name in an earlier version of the source document."""

UNLIMITED = ExecutionBudget()
