"""The engine: one step, from claim to commit.

Clients use the transitions only; the runner, and what it needs to run steps, is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..concurrency.event_loop import EventLoopThread
from .leases import Interruption, LeaseKeeper
from .observer import StepObserver, new_records
from .outcome import Done, NothingToDo, Outcome, Parked, RetryLater, TakenOver
from .transitions import first_state, operation_transition, retry_transition, stop_transition

if TYPE_CHECKING:
    from .runner import StepRunner

__all__ = [
    "Done",
    "EventLoopThread",
    "Interruption",
    "LeaseKeeper",
    "NothingToDo",
    "Outcome",
    "Parked",
    "RetryLater",
    "StepObserver",
    "StepRunner",
    "TakenOver",
    "first_state",
    "new_records",
    "operation_transition",
    "retry_transition",
    "stop_transition",
]


def __getattr__(name: str) -> Any:
    """Import the runner when somebody asks for it.

    Raises:
        AttributeError: There is no such name.
    """
    if name != "StepRunner":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .runner import StepRunner

    globals()[name] = StepRunner
    return StepRunner
