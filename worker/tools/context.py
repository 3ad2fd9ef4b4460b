"""What a running tool call knows about itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """Handed to a tool that has a parameter annotated `ToolContext`; the model does not see that parameter.

    Attributes:
        session_id: The session the call belongs to.
        execution_id: The execution the call belongs to.
        step: Number of the step, from 1.
        index: Position of the call among the calls of its step, from 0.
        idempotency_key: The same for every attempt at this call, different for every other call. Hand it to a service
            that deduplicates.
        deadline: When the call must have ended, with timezone. An async tool is cancelled then; a plain function looks.
        cancelled: True once nobody wants the result any more: a stop, the deadline, or a lost lease.
    """

    session_id: str
    execution_id: str
    step: int
    index: int
    idempotency_key: str
    deadline: datetime
    cancelled: Callable[[], bool] = _never

    def remaining_seconds(self) -> float:
        """Seconds until the deadline, never below 0; made for the timeout of an HTTP client."""
        return max(0.0, (self.deadline - datetime.now(UTC)).total_seconds())
