"""The engine: one step, from claim to commit."""

from ..concurrency.event_loop import EventLoopThread
from .leases import Interruption, LeaseKeeper
from .observer import StepObserver, new_records
from .outcome import Done, NothingToDo, Outcome, Parked, RetryLater, TakenOver
from .runner import StepRunner
from .transitions import first_state, operation_transition, retry_transition, stop_transition

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
